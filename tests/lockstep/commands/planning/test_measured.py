"""Members as their coordinator measures them become lines and speeds of a plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import main
from lockstep.commands import plan as planning
from lockstep.commands.planning.measured import measured
from lockstep.exit_codes import ExitCode
from lockstep.run_file import run_file_text
from protocol.errors import RemoteProtocolError, SettingsError
from protocol.runfile import RunSpec


def member(name: str, speed: Any, rate: Any) -> dict[str, Any]:
    return {"name": name, "samples_per_second": speed, "up_bit_per_second": rate}


STATUS = {"members": [member("ada", 4.0, 2e6), member("bob", 2.0, 8e6), member("new", 0.0, 0)]}


def test_speeds_and_rates_are_those_of_the_members_that_were_measured() -> None:
    found = measured(STATUS)
    assert [line.name for line in found.network.lines] == ["ada", "bob"]
    assert [line.up_bit_s for line in found.network.lines] == [2e6, 8e6]
    assert {line.down_bit_s for line in found.network.lines} == {8e6}
    assert found.slower == (1.0, 2.0)
    assert found.pass_s(32) == 8.0
    assert found.left_out == ("new",)


def test_before_anything_was_measured_the_person_is_told_to_wait() -> None:
    with pytest.raises(SettingsError, match="wait for the first committed rounds"):
        measured({"members": [member("new", 0.0, 0)]})


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"members": {}},
        {"members": [7]},
        {"members": [member("ada", "fast", 1)]},
        {"members": [member("ada", 1, -1)]},
        {"members": [member("ada", float("nan"), 1)]},
        {"members": [member("ada", True, 1)]},
    ],
)
def test_a_status_of_another_form_is_an_error(status: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="expected"):
        measured(status)


def test_the_members_of_a_running_coordinator_are_planned_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planning, "ask", lambda link: STATUS)
    path, out = tmp_path / "run.toml", tmp_path / "plan.json"
    path.write_text(run_file_text(RunSpec()))
    arguments = ["plan", str(path), "--measure", "127.0.0.1:1", "--json", str(out)]
    assert main(arguments) == ExitCode.OK
    document = json.loads(out.read_text())
    assert [line["name"] for line in document["lines"]] == ["ada", "bob"]
    assert document["compute"]["slower"] == [1.0, 2.0]
    assert "too little is known of new" in capsys.readouterr().err
    assert main([*arguments, "--nodes", "4"]) == ExitCode.USAGE


# ---- links


ADA, BOB, CY = (f"{number:032x}" for number in (1, 2, 3))


def with_links(round_trip_ms: Any, bit_per_second: Any, peers: Any = (ADA, BOB, CY)) -> Any:
    members = [
        member(name, 4.0, 2e6) | {"peer_id": peer}
        for name, peer in (("ada", ADA), ("bob", BOB), ("cy", CY))
    ]
    links = {
        "peers": list(peers),
        "round_trip_ms": round_trip_ms,
        "bit_per_second": bit_per_second,
    }
    return {"members": members, "links": links}


TRIPS = [[None, 4, 60], [4, None, None], [60, None, None]]
RATES = [[None, 90_000_000, 3_000_000], [80_000_000, None, None], [None, None, None]]


def test_round_trips_and_rates_of_pairs_enter_the_matrix() -> None:
    network = measured(with_links(TRIPS, RATES)).network
    assert 2 * network.delay_s[0, 1] == pytest.approx(0.004)
    assert 2 * network.delay_s[0, 2] == pytest.approx(0.060)
    assert network.rate_bit_s[0, 1] == 90e6
    assert network.rate_bit_s[1, 0] == 80e6
    assert network.rate_bit_s[0, 2] == 3e6
    assert network.rate_bit_s[2, 0] == 2e6, "not measured: that of cy's line"


def test_a_pair_that_nobody_measured_is_as_far_as_the_way_through_another() -> None:
    found = measured(with_links(TRIPS, RATES))
    assert found.links.measured_pairs == 2
    assert 2 * found.network.delay_s[1, 2] == pytest.approx(0.064)
    assert found.network.rate_bit_s[1, 2] == 3e6, "what comes to cy from another"


def test_a_coordinator_that_names_no_links_gives_no_delays() -> None:
    status = with_links(TRIPS, RATES) | {"links": None}
    assert not measured(status).network.delay_s.any()
    assert not measured(STATUS).network.delay_s.any()


@pytest.mark.parametrize(
    "links",
    [
        7,
        {"peers": None},
        {"peers": [ADA], "round_trip_ms": [[None]], "bit_per_second": [[None, 1]]},
        {"peers": [ADA], "round_trip_ms": [], "bit_per_second": [[None]]},
        {"peers": [ADA], "round_trip_ms": [["4"]], "bit_per_second": [[None]]},
        {"peers": [ADA], "round_trip_ms": [[-1]], "bit_per_second": [[None]]},
        {"peers": [ADA], "round_trip_ms": [[True]], "bit_per_second": [[None]]},
        {"peers": [ADA], "round_trip_ms": [[None]], "bit_per_second": [[10**13]]},
        {"peers": [ADA] * 65, "round_trip_ms": [], "bit_per_second": []},
    ],
)
def test_links_of_another_form_are_an_error(links: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="expected"):
        measured(with_links(TRIPS, RATES) | {"links": links})


def test_the_json_shows_rates_and_round_trips_of_each_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planning, "ask", lambda link: with_links(TRIPS, RATES))
    path, out = tmp_path / "run.toml", tmp_path / "plan.json"
    path.write_text(run_file_text(RunSpec()))
    arguments = ["plan", str(path), "--measure", "127.0.0.1:1", "--json", str(out)]
    assert main(arguments) == ExitCode.OK
    links = json.loads(out.read_text())["links"]
    assert links["nodes"] == ["ada", "bob", "cy"]
    assert links["one_way_ms"][0] == [0, 2, 30]
    assert links["mbit_s"][0] == [0, 90, 3]
    assert links["measured_pairs"] == 2
    shown = capsys.readouterr().out
    assert "round trips 4 ms to 64 ms; 2 of 3 pairs measured" in shown
    assert max(map(len, shown.splitlines())) <= 80

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
    assert document["growth"] == {}, "lines of more nodes are not known"
    assert "too little is known of new" in capsys.readouterr().err
    assert main([*arguments, "--nodes", "4"]) == ExitCode.USAGE

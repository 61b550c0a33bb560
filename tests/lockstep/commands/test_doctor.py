"""`lockstep doctor`: a line for each check, a remedy where something is wrong."""

import asyncio
import json
from pathlib import Path

import pytest

from coordinator.machine.events.acts import Admit, Ban, Token
from coordinator.process import CoordinatorProcess
from lockstep.cli import main
from lockstep.commands import doctor
from lockstep.commands.doctor import (
    Finding,
    examine_admission,
    examine_device,
    examine_disk,
    examine_door,
    examine_rounds,
    examine_way_in,
    render,
    upload_words,
)
from lockstep.exit_codes import ExitCode
from lockstep.service.contact import ask_run
from lockstep.service.home import Home
from lockstep.service.keys import load_or_create_key
from node.rehearsal import Rehearsal
from node.settings import NodeSettings
from node.system.hardware import Facts, unused
from protocol.border.join_link import parse_link
from protocol.handshake import public_bytes
from protocol.ids import peer_id, sha256
from protocol.planner.parameters import Size
from protocol.planner.sums import with_sums
from protocol.runfile import AlgorithmSpec, RoundsSpec, RunSpec
from tests.lockstep.shared import printed
from tests.node.test_process import coordinator_of
from tests.support.tiny import tiny_corpus, tiny_spec


def test_a_gpu_that_lies_idle_is_a_note_with_a_remedy() -> None:
    assert examine_device("a card", "").verdict == "ok"
    noted = examine_device("a CPU", unused(Facts(nvidia=True)))
    assert (noted.verdict, noted.found.startswith("a CPU; the driver of a GPU")) == ("note", True)
    assert noted.remedy.startswith("install the build of torch for CUDA")


def test_a_full_disk_and_a_private_address_are_noted(tmp_path: Path) -> None:
    assert examine_disk(tmp_path / "not" / "there", 1).verdict == "ok"
    assert examine_disk(tmp_path, 10**18).verdict == "note"
    assert examine_way_in("127.0.0.1:50700").verdict == "ok"
    assert examine_way_in("nowhere.invalid:50700").verdict == "bad"


def test_the_upload_is_that_of_the_runs_algorithm() -> None:
    size = Size(1_000_000, 245)
    timed = RoundsSpec(publish_ms=2_000, exchange_ms=14_000)
    mixes = AlgorithmSpec(name="gossip-adam")
    words = upload_words(RunSpec(rounds=timed, algorithm=mixes), size, 0)
    assert words.startswith("1,000 kbit/s for one payload in time; about 4 MB a round, half of it")
    votes = upload_words(RunSpec(rounds=timed), size, 0)
    assert votes.startswith("20 kbit/s for one payload in time; about 81.3 kB a round, half of it")
    added = with_sums(RunSpec(rounds=timed), size)
    few, many = (upload_words(added, size, members) for members in (8, 9))
    assert "for one payload in time; about" in few
    assert "kbit/s for its payload to two summers in time; about" in many
    assert "with 9 members, whose payloads are added for all" in many
    assert 1.9 * _rate(few) < _rate(many) < 2.2 * _rate(few), "twice, in parts"


def _rate(words: str) -> float:
    return float(words.split(maxsplit=1)[0])


def test_a_measured_round_that_misses_the_bell_and_limits_that_are_too_low_are_bad() -> None:
    spec, slow = RunSpec(), Rehearsal(2, 2, 40.0, 50.0, "")
    low = NodeSettings("h:1", Path("x"), download_limit=20_000)
    many = {"members": [{}] * 500, "phase": "waiting", "reason": "waiting for a member"}
    found = {
        each.check: each for each in examine_rounds(low, spec, slow, Size(1_000_000, 245), many)
    }
    assert found["pass"].found == "2 samples, as you chose"
    assert (found["speed"].verdict, found["limits"].verdict) == ("bad", "bad")
    assert found["counted"].found.endswith("now: waiting for a member")


def test_a_run_that_does_not_admit_everybody_says_what_it_takes() -> None:
    assert list(examine_admission({"operator": {"admission": "open"}})) == []
    assert list(examine_admission({})) == []
    (token,) = examine_admission({"operator": {"admission": "token"}})
    (listed,) = examine_admission({"operator": {"admission": "list"}})
    assert (token.verdict, listed.verdict) == ("note", "note")
    assert "--token" in token.remedy
    assert "id to be allowed" in listed.remedy


async def test_a_key_that_the_run_does_not_take_is_told_with_the_code_of_a_join(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"

    def found(process: CoordinatorProcess) -> list[Finding]:
        link = parse_link(process.address)
        return list(examine_door(link, ask_run(link), Home(home), {}))

    async with coordinator_of(tiny_spec(), tmp_path / "c") as process:
        assert await asyncio.to_thread(found, process) == [], "it has no key yet"
        peer = peer_id(public_bytes(load_or_create_key(home)))
        assert await asyncio.to_thread(found, process) == []
        await process.desk.order(Ban(peer, "noise"))
        (banned,) = await asyncio.to_thread(found, process)
    assert (banned.verdict, banned.code) == ("bad", ExitCode.REFUSED)
    assert "banned this node: noise" in banned.found


@pytest.mark.parametrize("has_key", [False, True])
async def test_a_token_is_judged_as_at_a_join_and_not_used(tmp_path: Path, has_key: bool) -> None:
    home, token = tmp_path / "home", Token("friends", sha256(b"secret"), 1)
    if has_key:
        load_or_create_key(home)

    def found(process: CoordinatorProcess, secret: str) -> list[Finding]:
        link = parse_link(process.address).with_token(secret)
        return list(examine_door(link, ask_run(link), Home(home), {}))

    async with coordinator_of(tiny_spec(), tmp_path / "c") as process:
        await process.desk.order(Admit("token"))
        await process.desk.order(token)
        for _ in range(2):
            (taken,) = await asyncio.to_thread(found, process, "secret")
            assert (taken.check, taken.verdict) == ("admission", "ok")
        (wrong,) = await asyncio.to_thread(found, process, "another")
        assert (wrong.verdict, wrong.code) == ("bad", ExitCode.REFUSED)
        assert process.rounds.state.operator.admission.tokens["friends"].uses == 0


def test_doctor_takes_the_token_out_of_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[NodeSettings] = []

    def examined(settings: NodeSettings, *_: object, **__: object) -> list[Finding]:
        taken.append(settings)
        return []

    monkeypatch.setattr(doctor, "examine", examined)
    main(["doctor", "lockstep://127.0.0.1:1?token=secret"])
    (settings,) = taken
    assert (settings.coordinator, settings.token) == ("lockstep://127.0.0.1:1", "secret")


def test_the_table_fits_80_columns() -> None:
    text = printed(render([Finding("coordinator", "bad", "word " * 40, "remedy " * 20)]))
    assert max(map(len, text.splitlines())) <= 80
    assert "-> remedy" in text


def test_where_no_coordinator_is_the_cause_is_named_and_the_code_is_that_of_a_join(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "127.0.0.1:1", "--json", "-"]) == ExitCode.UNREACHABLE
    document = json.loads(capsys.readouterr().out)
    (bad,) = [check for check in document["checks"] if check["verdict"] == "bad"]
    assert bad["check"] == "coordinator"
    assert "refuses port 1" in bad["found"]
    assert document["makes_the_bell"] is None


def test_the_directory_of_one_run_is_examined_in_place_of_the_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "127.0.0.1:1", "--directory", str(tmp_path / "state"), "--json", "-"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert f"{tmp_path / 'state'} can be written" in [check["found"] for check in checks]


def test_a_home_that_cannot_be_written_is_found_and_a_join_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    home = str(tmp_path / "file" / "home")
    assert main(["doctor", "127.0.0.1:1", "--home", home, "--json", "-"]) == ExitCode.STORAGE
    checks = json.loads(capsys.readouterr().out)["checks"]
    (found,) = [check for check in checks if check["check"] == "home"]
    assert found["found"] == f"cannot make {home} in {tmp_path / 'file'}: Not a directory"
    assert "another place" in found["remedy"]
    assert main(["join", "127.0.0.1:1", "--home", home, "--nice", "0"]) == ExitCode.STORAGE
    assert capsys.readouterr().err.strip().endswith(f"{found['found']}; {found['remedy']}")


async def test_a_run_s_directory_of_another_account_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "home" / "runs"
    runs.mkdir(parents=True)
    arguments = ["--home", str(runs.parent), "--data", str(tmp_path / "none"), "--json", "-"]
    async with coordinator_of(tiny_spec(), tmp_path / "coordinator") as coordinator:
        assert isinstance(coordinator, CoordinatorProcess)
        (runs / coordinator.run_id).touch()
        code = await asyncio.to_thread(main, ["doctor", coordinator.address, *arguments])
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert code == ExitCode.STORAGE
    assert ("run's place", "bad") in [(check["check"], check["verdict"]) for check in checks]


async def test_at_a_live_run_it_measures_a_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_corpus(tmp_path / "data")
    options = ["--data", str(tmp_path / "data"), "--threads", "1", "--device", "cpu"]
    spec = tiny_spec()
    async with coordinator_of(spec, tmp_path / "coordinator") as coordinator:
        assert isinstance(coordinator, CoordinatorProcess)
        arguments = ["doctor", coordinator.address, *options, "--json", "-"]
        code = await asyncio.to_thread(main, arguments)
    document = json.loads(capsys.readouterr().out)
    found = {check["check"]: check for check in document["checks"]}
    assert code == ExitCode.OK, document
    assert set(found) >= {
        "software",
        "coordinator",
        "run",
        "device",
        "disk",
        "data",
        "pass",
        "speed",
        "counted",
    }
    assert document["makes_the_bell"] is True
    assert "no member has joined yet" in found["run"]["found"]
    assert list((tmp_path / "data").glob("*.part*")) == []


def test_damaged_data_is_found_with_the_code_of_a_join(tmp_path: Path) -> None:
    from protocol.ids import RunId
    from protocol.run_info import RunInfo

    tiny_corpus(data := tmp_path / "data")
    shard = next(data.glob("train-*.bin"))
    blob = bytearray(shard.read_bytes())
    blob[100] ^= 1
    shard.write_bytes(blob)
    info = RunInfo(tiny_spec(), RunId("a" * 32), b"")
    (finding,) = doctor._examine_data(NodeSettings("x:1", tmp_path, data=data), info)
    assert (finding.verdict, finding.code) == ("bad", ExitCode.DATA)
    assert shard.name in finding.found

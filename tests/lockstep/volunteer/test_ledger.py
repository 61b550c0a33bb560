"""What a computer has given outlives its sessions, and is told without a node too."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import main
from lockstep.exit_codes import ExitCode
from lockstep.volunteer.ledger import Ledger, read_all
from lockstep.volunteer.screen import in_all
from protocol.ids import RunId

FIRST, SECOND = RunId("1a" * 16), RunId("2b" * 16)
NOW = datetime(2026, 11, 27, 12)


def status(trained: int, counted: int) -> dict[str, Any]:
    rounds = {"trained": trained, "counted": counted, "left_out": trained - counted}
    traffic = {"payload_up_bytes": 1000 * trained, "payload_down_bytes": 500 * trained}
    return {"rounds": rounds, "samples": trained, "tokens": 10 * trained, "traffic": traffic}


def session(home: Path, run_id: RunId, trained: int, counted: int, page: str = "") -> Ledger:
    """A process that has made these rounds and ended."""
    ledger = Ledger(home, run_id, "winter", page)
    ledger.note(status(1, 1), NOW)
    ledger.note(status(trained, counted), NOW)
    ledger.save()
    return ledger


def test_sessions_of_a_run_add_up(tmp_path: Path) -> None:
    session(tmp_path, FIRST, 58, 55)
    session(tmp_path, FIRST, 2, 2)
    work = read_all(tmp_path)[FIRST]
    assert (work.trained, work.counted, work.tokens) == (60, 57, 600)
    assert (work.up_bytes, work.down_bytes, work.name) == (60_000, 30_000, "winter")


def test_a_session_tells_its_run_and_all_runs(tmp_path: Path) -> None:
    session(tmp_path, FIRST, 58, 55)
    now = status(4, 3)
    ledger = Ledger(tmp_path, SECOND, "summer")
    assert in_all(now | {"totals": ledger.document(now)}) == (
        "counted in 3 of 4 rounds of this run · 58 rounds of 2 runs"
    )
    again = Ledger(tmp_path, FIRST, "winter")
    assert in_all(now | {"totals": again.document(now)}) == "counted in 58 of 62 rounds of this run"


def test_a_first_session_says_nothing_twice(tmp_path: Path) -> None:
    now = status(4, 3)
    assert in_all(now | {"totals": Ledger(tmp_path, FIRST, "winter").document(now)}) == ""
    assert in_all(now) == ""


def test_a_session_without_work_leaves_nothing(tmp_path: Path) -> None:
    Ledger(tmp_path, FIRST, "winter").save()
    assert not read_all(tmp_path)


def test_a_damaged_file_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session(tmp_path, FIRST, 2, 2)
    session(tmp_path, SECOND, 2, 2)
    (tmp_path / "work" / f"{FIRST}.json").write_text("{")
    assert list(read_all(tmp_path)) == [SECOND]
    assert FIRST in str(caplog.records[-1].__dict__["path"])


def test_a_disk_that_takes_nothing_does_not_hide_how_the_node_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "work").write_text("a file")
    session(tmp_path, FIRST, 2, 2)
    assert "the work of this session is not kept" in caplog.text


def test_me_without_a_node_tells_what_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["me", "--home", str(tmp_path)]) == ExitCode.UNREACHABLE
    session(tmp_path, FIRST, 1058, 1055)
    session(tmp_path, SECOND, 2, 2)
    capsys.readouterr()
    assert main(["me", "--home", str(tmp_path)]) == ExitCode.OK
    said = capsys.readouterr()
    assert "no node is at work" in said.err
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[-5][:5] == ["1a1a1a1a", "winter", "1,058", "1,055", "10,580"]
    assert lines[-2][:4] == ["in", "all", "1,060", "1,057"]
    assert max(map(len, said.out.splitlines())) <= 80


def test_me_without_a_node_tells_where_the_run_shows_what_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = f"https://{'long.' * 20}example/?me={32 * 'a'}"
    session(tmp_path, FIRST, 4, 4, page)
    session(tmp_path, FIRST, 2, 2)  # while the coordinator told no page
    session(tmp_path, SECOND, 2, 2)
    assert main(["me", "--home", str(tmp_path)]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[-1] == f"page of winter: {page}"

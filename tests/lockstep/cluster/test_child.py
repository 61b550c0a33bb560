"""One process of a cluster: given up when a restart is hopeless, asked where it lives."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.cluster.child import RESTARTS_MAX, Child
from lockstep.exit_codes import UsageError
from tests.lockstep.shared import END_S


def test_a_child_that_dies_too_often_is_given_up(tmp_path: Path) -> None:
    child = Child("node-0", tmp_path, ["join", "127.0.0.1:1", "--no-such-flag"], dict(os.environ))
    child.start()
    child.restarts = RESTARTS_MAX
    child.wait(time.monotonic() + END_S)
    with pytest.raises(UsageError, match=f"died {RESTARTS_MAX + 1} times.*no-such-flag"):
        child.restart()


def test_a_child_that_never_ran_has_neither_pid_nor_note(tmp_path: Path) -> None:
    child = Child("node-0", tmp_path / "none", ["join"], {})
    assert (child.pid, child.exit_status, child.note()) == (None, None, None)
    assert "no log" in child.last_words()


def test_a_child_is_started_and_asked_where_it_lives(tmp_path: Path) -> None:
    visits: list[str] = []

    @contextlib.contextmanager
    def where(name: str) -> Iterator[None]:
        visits.append(name)
        yield

    child = Child("node-0", tmp_path, ["--version"], dict(os.environ), where)
    child.start()
    assert visits == ["node-0"]
    (tmp_path / "process.json").write_text(
        json.dumps({"pid": child.pid, "admin": "http://127.0.0.1:1"})
    )
    child.refresh()
    assert (visits, child.status) == (["node-0", "node-0"], {})
    child.wait(time.monotonic() + END_S)

"""The runner of commands."""

import os
from pathlib import Path

import pytest

from lockstep.wan.lab.iproute import run_command
from lockstep.wan.lab.tc_commands import words
from protocol.errors import UnavailableError


def test_a_command_that_fails_is_quoted_with_its_reason() -> None:
    with pytest.raises(UnavailableError, match=r"ls /nowhere: .*nowhere"):
        run_command(words("ls /nowhere"))
    with pytest.raises(UnavailableError, match="expected the command 'no-such-tool'"):
        run_command(words("no-such-tool"))


def test_a_command_that_may_not_be_run_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-rights").touch(mode=0o644)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{tmp_path}")
    with pytest.raises(UnavailableError, match="expected the command 'no-rights'"):
        run_command(words("no-rights"))

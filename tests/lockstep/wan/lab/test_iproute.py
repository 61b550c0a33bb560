"""The runner of commands."""

import pytest

from lockstep.wan.lab.iproute import run_command
from lockstep.wan.lab.tc_commands import words
from protocol.errors import UnavailableError


def test_a_command_that_fails_is_quoted_with_its_reason() -> None:
    with pytest.raises(UnavailableError, match=r"ls /nowhere: .*nowhere"):
        run_command(words("ls /nowhere"))
    with pytest.raises(UnavailableError, match="expected the command 'no-such-tool'"):
        run_command(words("no-such-tool"))

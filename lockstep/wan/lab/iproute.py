"""Runs `ip`, `tc` and their like."""

import subprocess
from collections.abc import Sequence

from lockstep.wan.lab.tc_commands import Command
from protocol.errors import UnavailableError


def run_command(command: Command) -> str:
    """Standard output of a command; `UnavailableError` with its reason when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except (FileNotFoundError, PermissionError):  # of a directory on the path, for example
        raise UnavailableError(
            f"expected the command {command[0]!r} of the package iproute2, found none"
        ) from None
    if done.returncode:
        raise UnavailableError(
            f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}"
        )
    return done.stdout


def run_commands(commands: Sequence[Command]) -> None:
    """Runs commands in order; `UnavailableError` at the first that fails."""
    for command in commands:
        run_command(command)

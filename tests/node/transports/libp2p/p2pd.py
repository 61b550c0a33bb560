"""Whether libp2p's daemon runs on this machine, for tests that need it."""

import subprocess
from pathlib import Path

import pytest

from node.transports.libp2p.daemon import find_p2pd
from protocol.errors import UnavailableError


def _trouble() -> str:
    try:
        subprocess.run([find_p2pd(), "--help"], capture_output=True, check=False, timeout=60)
    except (UnavailableError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""


needs_p2pd = pytest.mark.skipif(
    bool(TROUBLE := _trouble()), reason=f"libp2p's daemon does not run here: {TROUBLE}"
)
"""Skips a test, with the reason, where the daemon does not run."""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet collected does not."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def daemon_pid(directory: Path) -> int:
    """The process of the daemon whose control socket lies in a directory."""
    control = f"{directory}/control.sock".encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            if control in command:
                return int(process.name)
    raise LookupError(f"no daemon has its control socket in {directory}")

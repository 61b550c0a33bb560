"""Ranks on this machine that rank 0 starts: the same command again, each with a rank of its own.

Rank 0 is the process that its owner started, with its terminal, its signals and its exit code; the
others are its children, and end when it does. They meet on the loopback interface alone.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from node.ranks.place import RankPlace, environment_of

LEAVE_S = 5.0
"""Longest wait for a rank that is told to leave, before it is killed."""


@dataclass(slots=True)
class Children:
    """The ranks that this process has started, by rank, and where they meet it."""

    place: RankPlace
    listener_fd: int
    """Socket at which torch's store of this process is to listen."""
    _processes: "dict[int, subprocess.Popen[bytes]]" = field(default_factory=dict)

    def ended(self) -> dict[int, str]:
        """The ranks whose processes have ended, and how."""
        codes = {rank: process.poll() for rank, process in self._processes.items()}
        return {rank: _ending(code) for rank, code in codes.items() if code is not None}

    def end(self) -> None:
        """Wait for those that leave, and kill the others."""
        until_s = time.monotonic() + LEAVE_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self) -> None:
        """End them at once, stopped ones too."""
        for process in self._processes.values():
            process.kill()


@contextmanager
def children(count: int, environment: Mapping[str, str]) -> Iterator[Children]:
    """Starts all ranks of a node but rank 0 with this process's own command, and ends them with the
    block.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    place = RankPlace(0, count, 0, count, *listener.getsockname())
    made = Children(place, listener.detach())
    try:
        for rank in range(1, count):
            own = RankPlace(rank, count, rank, count, place.address, place.port)
            made._processes[rank] = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env={**environment, **environment_of(own)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # signals of a terminal are for rank 0
            )
        yield made
    finally:
        made.end()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"

"""What this process has on the line, and how much of it nobody else owns: overhead.

    overhead = frames of all its TCP connections (`lockstep.service.tcp_counters`) - payload, catch-up and control

That is what transports and the operating system add: TLS, HTTP/2 and gRPC, headers,
acknowledgements, retransmissions, and what was begun and not ended. Processes count the other three
by themselves, and ask here for the fourth.

Ours are the connections that this process or a descendant of it holds, such as libp2p's daemon, and
those that one of them held: the kernel sends their last bytes, and counts them. (Not of one that
its process resets, as libp2p's daemon does where it closes first: its last figures are zeros, so
the last seen count.) It is asked every second, so a connection that begins and ends between two
looks is not counted: a failed attempt, mostly, of some hundred bytes. Nor is UDP: a name server is
asked now and then. Left out is who reads the admin page on this machine.

Bytes lie in buffers between the kernel's count and that of their owners, so the difference wavers
by what is on its way, and what is exported as a counter has to be kept from falling.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lockstep.service.tcp_counters import Connection, TcpCounters
from protocol.errors import UnavailableError

LOOK_SECONDS = 1.0
"""How often the kernel is asked: that takes a millisecond or two."""

LAST_WORD_SECONDS = 10.0
"""How long a connection that is gone is remembered: the kernel tells its last figures a moment
after its end."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpDown:
    """Bytes of both directions."""

    up: int = 0
    down: int = 0

    def __add__(self, other: "UpDown") -> "UpDown":
        return UpDown(self.up + other.up, self.down + other.down)

    def at_least(self, other: "UpDown") -> "UpDown":
        """The larger of each."""
        return UpDown(max(self.up, other.up), max(self.down, other.down))


class ConnectionSource(Protocol):
    """Who knows of connections; see `TcpCounters`."""

    def open(self) -> list[Connection]:
        """All of them."""

    def destroyed(self) -> list[Connection]:
        """Those that were destroyed since the last call."""

    def close(self) -> None:
        """Let go."""


class OverheadMeter:
    """The connections of this process and its descendants, within a `with` block. Where the kernel
    does not tell there are no figures.
    """

    def __init__(
        self,
        kernel: Callable[[], ConnectionSource] = TcpCounters,
        own_sockets: Callable[[], set[int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own_sockets()` are the inodes of the sockets that are ours; `clock()` are seconds."""
        self.reason = "nobody has looked yet"
        """Why there are no figures; empty while there are."""
        self.admin_port = 0
        """What comes to it from within the machine is on no line; 0: there is none."""
        self._make_kernel = kernel
        self._own_sockets = own_sockets or ProcessTree().sockets
        self._clock = clock
        self._figures: dict[int, UpDown] = {}  # of our connections, by cookie
        self._gone_s: dict[
            int, float
        ] = {}  # of these, since when such as are not there any more are missed
        self._past = UpDown()
        self._kernel: ConnectionSource | None = None

    def __enter__(self) -> "OverheadMeter":
        try:
            self._kernel, self.reason = self._make_kernel(), ""
        except UnavailableError as error:
            self._give_up(str(error))
        return self

    def __exit__(self, *_: object) -> None:
        if self._kernel:
            self._kernel.close()
            self._kernel = None

    def overhead(self, up: int, down: int) -> tuple[int, int] | None:
        """Bytes up and down that nobody owns, when others own so many; None: the kernel does not
        tell.
        """
        carried = self.carried()
        return (max(0, carried.up - up), max(0, carried.down - down)) if carried else None

    def carried(self) -> UpDown | None:
        """Bytes of all frames so far; None: the kernel does not tell."""
        self.look()
        return sum(self._figures.values(), self._past) if self._kernel else None

    async def watch(self) -> None:
        """Look every second, until cancelled."""
        while self._kernel:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Take the figures as they are now."""
        if self._kernel is None:
            return
        try:
            own = self._own_sockets()
            found = [
                each
                for each in self._kernel.open()
                if each.cookie in self._figures or self._is_ours(each, own)
            ]
            destroyed = self._kernel.destroyed()
        except (UnavailableError, OSError) as error:
            self._give_up(str(error))
            return
        self._figures |= {each.cookie: UpDown(each.up_bytes, each.down_bytes) for each in found}
        for each in destroyed:
            if seen := self._figures.get(each.cookie):
                self._figures[each.cookie] = seen.at_least(UpDown(each.up_bytes, each.down_bytes))
                self._end(each.cookie)
        now_s = self._clock()
        gone = self._figures.keys() - {each.cookie for each in found}
        self._gone_s = {cookie: self._gone_s.get(cookie, now_s) for cookie in gone}
        for cookie in [
            cookie
            for cookie, since_s in self._gone_s.items()
            if now_s - since_s >= LAST_WORD_SECONDS
        ]:
            self._end(cookie)  # its last word was lost

    def _is_ours(self, connection: Connection, own: set[int]) -> bool:
        reads_admin_page = connection.loopback and connection.local_port == self.admin_port
        return connection.inode in own and not reads_admin_page

    def _end(self, cookie: int) -> None:
        self._past += self._figures.pop(cookie)
        self._gone_s.pop(cookie, None)

    def _give_up(self, reason: str) -> None:
        self.__exit__()
        self.reason = reason
        _log.info("overhead is not counted reason=%s", reason)


class ProcessTree:
    """This process and its descendants. Who was one stays one when its parent is gone."""

    def __init__(self) -> None:
        self._ours = {os.getpid(): True}  # every process that was seen

    def sockets(self) -> set[int]:
        """Inodes of all sockets that they hold; `OSError` where there is no /proc."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._ours = {pid: ours for pid, ours in self._ours.items() if pid in pids}
        for pid in pids:
            self._is_ours(pid)
        return {inode for pid, ours in self._ours.items() if ours for inode in _sockets(pid)}

    def _is_ours(self, pid: int) -> bool:
        if pid not in self._ours:
            parent = _parent(pid)
            self._ours[pid] = parent > 0 and self._is_ours(parent)
        return self._ours[pid]


def _parent(pid: int) -> int:
    """0 for none, and for a process that has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _sockets(pid: int) -> set[int]:
    """None of a process that has ended, or that belongs to another user."""
    names = set[str]()
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                names.add(os.readlink(descriptor.path))
    return {int(name[8:-1]) for name in names if name.startswith("socket:[")}

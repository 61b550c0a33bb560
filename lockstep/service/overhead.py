"""Measures transport overhead: traffic of this process that is no payload, catch-up or control.

    overhead = frames of its TCP connections (`lockstep.service.tcp_counters`)
               - payload - catch-up - control

Transports and the operating system add it: TLS, HTTP/2 and gRPC, headers, acknowledgements,
retransmissions, and transfers that were begun and not ended. A process counts the other three by
itself and takes the fourth from here.

Counted are the connections that this process or one of its descendants (such as libp2p's daemon)
holds or held: the kernel goes on sending, and counting, after a close. If the process resets a
connection, as libp2p's daemon does when it closes first, the kernel's last figures are zeros, and
the last ones seen count. Not counted are

    connections that begin and end between two looks: failed attempts, mostly, of some hundred bytes
    UDP: now and then a question to a name server
    readers of the admin page on this machine
    connections among the ranks of one node, who exchange a model in each pass: those of which both
    ends are ours, and those with other machines that have ranks of it

Bytes lie in buffers between the kernel's count and the counts of their owners, so the difference
wavers by the bytes on their way. An exported counter has to be kept from falling.
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

LOOK_S = 1.0
"""Time from one question to the kernel to the next; each takes a millisecond or two."""

COSTLY_S = 0.01
"""Processor time of a look that is costly: at some hundred connections of the computer, which
strangers may open, and nothing else goes on in this process meanwhile. One such look alone may be
one in which Python collected garbage."""

REST = 100
"""Times its processor time that a second costly look is followed by none, so that looks take a
hundredth of a processor at most. Figures may not be old: a connection that its process resets, as
libp2p's daemon does, leaves none newer than the last look's."""

LAST_FIGURES_S = 10.0
"""Longest wait for the last figures of a connection that is gone: the kernel tells them a moment
after its end."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpDown:
    """Bytes of both directions."""

    up: int = 0
    down: int = 0

    def __add__(self, other: "UpDown") -> "UpDown":
        return UpDown(self.up + other.up, self.down + other.down)

    def at_least(self, other: "UpDown") -> "UpDown":
        """The larger value of each direction."""
        return UpDown(max(self.up, other.up), max(self.down, other.down))


class ConnectionSource(Protocol):
    """The kernel's connections, as `TcpCounters` reads them."""

    def read_open(self) -> list[Connection]:
        """Reads the figures of all connections."""

    def take_destroyed(self) -> list[Connection]:
        """Takes the last figures of connections that were destroyed since the last call."""

    def close(self) -> None:
        """Closes the sockets to the kernel."""


class OverheadMeter:
    """Measures the connections of this process and its descendants, within a `with` block.

    Where the kernel does not tell there are no figures, and `reason` says why.
    """

    def __init__(
        self,
        kernel: Callable[[], ConnectionSource] = TcpCounters,
        own_sockets: Callable[[], set[int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
        *,
        inside: "InsideConnections | None" = None,
    ) -> None:
        """`own_sockets()` returns the inodes of the sockets of this process and its descendants,
        `clock()` monotonic seconds, `processor()` the processor time of this thread; `inside`
        tells what leaves the node.
        """
        self.reason = "not measured yet"
        """The reason why there are no figures; empty while there are."""
        self.admin_port = 0
        """Port whose connections from this machine are not counted; 0: none."""
        self.page_port = 0
        """Port of the public page, which is no traffic of the run; 0: none."""
        self._make_kernel = kernel
        self._own_sockets = own_sockets or ProcessTree().sockets
        self._clock, self._processor = clock, processor
        self._took_s = 0.0
        self._rests_until_s = 0.0
        self._figures: dict[int, UpDown] = {}  # of our connections, by cookie
        self._gone_s: dict[int, float] = {}  # of those that are gone: when that was first seen
        self._past = UpDown()
        self._inside = inside or InsideConnections()
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

    def measure_overhead(self, up: int, down: int) -> tuple[int, int] | None:
        """Asks the kernel for the bytes up and down beyond the `up` and `down` that have an owner;
        None where it does not tell.
        """
        total = self.measure()
        return (max(0, total.up - up), max(0, total.down - down)) if total else None

    def measure(self) -> UpDown | None:
        """Asks the kernel for the bytes of all frames so far; None where it does not tell."""
        self.look()
        return sum(self._figures.values(), self._past) if self._kernel else None

    @property
    def connections(self) -> int:
        """Number of connections whose figures may still change."""
        return len(self._figures)

    async def watch(self) -> None:
        """Looks every `LOOK_S`, until cancelled or the kernel does not tell."""
        while self._kernel:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Takes the figures as they are now, unless this process rests from a costly look."""
        if self._kernel is None or self._clock() < self._rests_until_s:
            return
        began_s = self._processor()
        self._take(self._kernel)
        before_s, self._took_s = self._took_s, self._processor() - began_s
        if (least_s := min(before_s, self._took_s)) >= COSTLY_S:
            self._rests_until_s = self._clock() + REST * least_s

    def _take(self, kernel: ConnectionSource) -> None:
        try:
            own = self._own_sockets()
            found = [
                each
                for each in self._inside.others(kernel.read_open(), own)
                if each.cookie in self._figures or self._is_ours(each, own)
            ]
            destroyed = kernel.take_destroyed()
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
            cookie for cookie, since_s in self._gone_s.items() if now_s - since_s >= LAST_FIGURES_S
        ]:
            self._end(cookie)  # its last figures were lost

    def _is_ours(self, connection: Connection, own: set[int]) -> bool:
        port = connection.local_port
        reads_page = port == self.page_port or (connection.loopback and port == self.admin_port)
        return connection.inode in own and not reads_page

    def _end(self, cookie: int) -> None:
        self._past += self._figures.pop(cookie)
        self._gone_s.pop(cookie, None)

    def _give_up(self, reason: str) -> None:
        self.__exit__()
        self.reason = reason
        log.info("overhead not counted", extra={"reason": reason})


class InsideConnections:
    """The connections that have both ends in one node: among its processes, which may be children
    of the program that started this one, and with the other machines that have ranks of it, which
    are those that call at the port where ranks meet.
    """

    def __init__(self, ranks_port: int = 0, started_sockets: Callable[[], set[int]] = set) -> None:
        """`ranks_port` is that port of this machine, and `started_sockets()` returns the inodes of
        the sockets of all that this process's parent has started; none where this process is a node
        alone, or starts the other ranks.
        """
        self._ranks_port, self._started_sockets = ranks_port, started_sockets
        self._rank_hosts, self._cookies = set[bytes](), set[int]()

    def others(self, found: list[Connection], own: set[int]) -> list[Connection]:
        """Those that lead out of the node, whose sockets on this machine have the inodes `own`. One
        inside stays that when its other end has gone.
        """
        ours = own | self._started_sockets()
        here = {each.ends[0] for each in found if each.inode in ours}
        if self._ranks_port:
            self._rank_hosts |= {
                each.far_host
                for each in found
                if each.local_port == self._ranks_port and not each.loopback
            }
        self._cookies = {
            each.cookie
            for each in found
            if each.ends[1] in here
            or each.far_host in self._rank_hosts
            or each.cookie in self._cookies
        }
        return [each for each in found if each.cookie not in self._cookies]


class ProcessTree:
    """A process, this one as a rule, and its descendants, which stay that when a parent is gone."""

    def __init__(self, root: int = 0) -> None:
        """`root` is the number of another process, in the place of this one."""
        self._ours = {root or os.getpid(): True}  # every process that was seen

    def pids(self) -> set[int]:
        """Numbers of these processes; `OSError` where there is no /proc."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._ours = {pid: ours for pid, ours in self._ours.items() if pid in pids}
        for pid in pids:
            self.learn(pid)
        return {pid for pid, ours in self._ours.items() if ours}

    def sockets(self) -> set[int]:
        """Inodes of all sockets of these processes; `OSError` where there is no /proc."""
        return {inode for pid in self.pids() for inode in _sockets(pid)}

    def learn(self, pid: int) -> bool:
        """Learns whether a process belongs to the tree, and remembers it."""
        if pid not in self._ours:
            parent = _parent(pid)
            self._ours[pid] = parent > 0 and self.learn(parent)
        return self._ours[pid]


def _parent(pid: int) -> int:
    """ID of the parent; 0 for none, and for a process that has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _sockets(pid: int) -> set[int]:
    """Inodes of a process's sockets; empty for a process that has ended or is another user's."""
    names = set[str]()
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                names.add(os.readlink(descriptor.path))
    return {int(name[8:-1]) for name in names if name.startswith("socket:[")}

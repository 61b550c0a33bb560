"""The doorman of libp2p's daemon: ends strangers' connections from outside where they crowd it.

The daemon bounds nothing by itself: hivemind builds it with limits that are infinite. A host may
open as many connections, and streams in one, as descriptors and memory last.

    few descriptors, little memory    nobody is looked at
    more than `CROWDED` descriptors   connections are weighed by network, as at a gate
                                      (`border.crowd`): the most crowded network's oldest ones go
    more memory than it should have   of the strangers that have sent more than a newcomer does, the
                                      half that has sent most goes, at every look
    more than `REPLACED_BYTES`        the daemon is replaced

A stranger is an address over which no peer has proven a key of the run. No gate stands in front:
all connections would seem to come from this machine, and no node behind a router would hear from
outside which address it has, which punches its holes. So the daemon's sockets are shut down through
copies of its descriptors (pidfd_getfd: Linux 5.6). A parent may, without any capability, unless a
sandbox forbids it: Docker's filter of system calls does where the container has no SYS_PTRACE.
"""

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from border.crowd import Crowd
from protocol.border.networks import ip_of

LOOK_S = 0.25
"""Pause between two looks."""

LOOK_SHARE = 4
"""Pause after a look, at least, over the time that it took."""

CROWDED = 512
"""Descriptors of a daemon that is not crowded: each connection has one, each pipe another."""

PLACES = 1024
"""Connections of a crowded daemon; half of them for strangers."""

NEWCOMER_BYTES = 8 * 1024
"""Bytes that come over a connection before a key is proven: handshakes, names and a hello."""

REPLACED_BYTES = 1_000_000_000
"""Memory of a daemon that is beyond help."""

REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS)
"""Codes with which a system or a sandbox refuses a copy of a descriptor."""

Endpoint = tuple[str, int]
"""An IP address and a port."""

_GET_DESCRIPTOR = 438  # pidfd_getfd, on all architectures
_libc = ctypes.CDLL(None, use_errno=True)
_RECEIVED = struct.Struct("=128xQ")  # of a tcp_info
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Connection:
    descriptor: int
    inode: int
    remote: Endpoint


class Doorman:
    """Guards the daemon with a process id, which listens at a port. `known()` are the remote ends
    of connections over which a key was proven; strangers may have filled the memory of a daemon
    that has more than `large_bytes`.
    """

    def __init__(
        self,
        pid: int,
        port: int,
        known: Callable[[], Collection[Endpoint]],
        large_bytes: int,
    ) -> None:
        self._pid, self._port, self._known, self._large_bytes = pid, port, known, large_bytes
        self._crowd = Crowd(PLACES)
        self._seen: dict[int, _Connection | None] = {}
        """The daemon's sockets by inode; None: no connection of its port, or an ended
        one."""
        self._is_refused = False

    async def watch(self) -> str:
        """Guard the daemon until it has to be replaced; returns why."""
        while True:
            began_s = time.monotonic()
            with contextlib.suppress(OSError):  # it has just ended, or there is no such system
                now_ms = int(began_s * 1000)
                if trouble := await asyncio.to_thread(self.look, self._known(), now_ms):
                    return trouble
            await asyncio.sleep(max(LOOK_S, LOOK_SHARE * (time.monotonic() - began_s)))

    def look(self, known: Collection[Endpoint], now_ms: int) -> str:
        """End the connections that crowd the daemon; returns why it has to be replaced, empty where
        it need not. Raises `OSError`. Blocks.
        """
        held_bytes = _resident(self._pid)
        descriptors = os.listdir(f"/proc/{self._pid}/fd")
        if held_bytes > REPLACED_BYTES:
            return f"expected at most {REPLACED_BYTES} bytes of memory, got {held_bytes}"
        is_large = held_bytes > self._large_bytes
        if len(descriptors) <= CROWDED and not is_large:
            self._crowd, self._seen = Crowd(PLACES), {}
            return ""
        try:
            with _handle(self._pid) as handle:
                self._weigh(handle, self._inodes(descriptors), known, now_ms)
                if is_large:
                    self._lighten(handle, known)
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            if not self._is_refused:
                _log.warning(
                    "strangers crowd the libp2p daemon, and this system lets nobody end their "
                    "connections; a container may with --cap-add SYS_PTRACE",
                    extra={"reason": str(error)},
                )
            self._is_refused = True
        return ""

    def _weigh(
        self, handle: int, inodes: dict[int, int], known: Collection[Endpoint], now_ms: int
    ) -> None:
        for inode in self._seen.keys() - inodes.keys():
            del self._seen[inode]
            self._crowd.leave(inode, now_ms)
        for inode in sorted(inodes.keys() - self._seen.keys(), key=inodes.__getitem__):
            each = self._seen[inode] = self._connection(handle, inodes[inode], inode)
            if each and each.remote not in known:
                for cut in self._crowd.come(inode, each.remote[0], now_ms):
                    self._end(handle, self._seen[cut])
        for inode, each in self._seen.items():
            if each and each.remote in known:
                self._crowd.prove(inode, now_ms)

    def _lighten(self, handle: int, known: Collection[Endpoint]) -> None:
        """End the heavier half of the strangers that have sent more than a newcomer."""
        strangers = [each for each in self._seen.values() if each and each.remote not in known]
        received = {each: _received(handle, each) for each in strangers}
        heavy = [each for each in strangers if received[each] > NEWCOMER_BYTES]
        heavy.sort(key=lambda each: received[each])
        for each in heavy[len(heavy) // 2 :]:
            self._end(handle, each)

    def _end(self, handle: int, each: _Connection | None) -> None:
        if each:
            self._seen[each.inode] = None
            with (
                _copy(handle, each.descriptor, each.inode) as copy,
                contextlib.suppress(OSError),  # it has ended by itself
            ):
                if copy:
                    copy.shutdown(socket.SHUT_RDWR)

    def _inodes(self, descriptors: list[str]) -> dict[int, int]:
        """The descriptor of each socket, by its inode."""
        found = dict[int, int]()
        for name in descriptors:
            with contextlib.suppress(OSError):  # closed meanwhile
                kind, _, inode = os.readlink(f"/proc/{self._pid}/fd/{name}").partition(":")
                if kind == "socket":
                    found[int(inode.strip("[]"))] = int(name)
        return found

    def _connection(self, handle: int, descriptor: int, inode: int) -> _Connection | None:
        with _copy(handle, descriptor, inode) as copy:
            if copy is None or copy.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if copy.getsockname()[1] != self._port:
                return None
            try:
                host, port = copy.getpeername()[:2]
            except OSError:  # it listens, or has ended
                return None
            return _Connection(descriptor, inode, (str(ip_of(host)), port))


def _resident(pid: int) -> int:
    """Bytes of a process in memory."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as figures:
        return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def _handle(pid: int) -> Iterator[int]:
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _copy(handle: int, descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """A socket of another process for the block; None where it is gone. `OSError`, one of
    `REFUSALS`.
    """
    number = _libc.syscall(_GET_DESCRIPTOR, handle, descriptor, 0)
    if number < 0:
        if (code := ctypes.get_errno()) in REFUSALS:
            raise OSError(code, os.strerror(code))
        yield None
    elif os.fstat(number).st_ino != inode:  # another one has its number now
        os.close(number)
        yield None
    else:
        with socket.socket(fileno=number) as copy:
            yield copy


def _received(handle: int, each: _Connection) -> int:
    """Bytes that have come over a connection."""
    with _copy(handle, each.descriptor, each.inode) as copy:
        if copy is None:
            return 0
        told = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        return int(_RECEIVED.unpack(told)[0])

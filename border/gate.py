"""The gate of a process: its public port, in front of gRPC.

    the world --TCP--> gate: counted by network (`border.crowd`), bytes untouched, TLS too
                         |
                         '--a local socket for each connection--> gRPC: TLS, HTTP/2, messages

gRPC calls nobody before a call has begun, and then keeps what it was sent for as long as its sender
likes. So connections are counted here, when they come. One gets to gRPC with its first byte, and
until a key was proven on it with no more bytes, and for no longer, than the crowd allows. gRPC
names the local socket as its peer; the gate knows whose it is. A proven connection costs the copies
of two sockets and nothing else.
"""

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Mapping
from typing import Any, cast

from border.crowd import Crowd
from border.farewell import ALERT, goaway
from border.lane import Lane
from border.listening import listening
from border.memory import Memory
from protocol.border.networks import ip_of
from protocol.limits import CONNECTIONS_MAX

LOOK_MS = 1_000
"""Pause between two looks for connections whose time is up."""

LAST_BYTES_S = 5.0
"""Time in which the last bytes of a connection that gRPC has closed are taken; before that it keeps
its descriptor."""

BACKLOG = 1024
"""Connections that wait to be taken."""

TURNS = 10
"""Turns of the loop in which a connection that was taken before the port closed gets its end."""


class Gate:
    """The public port at `listen`, HOST:PORT; port 0 takes any. `credentials` are those of the TLS
    of the server behind it; None: plain text. `attach` it to the server before that starts, then
    `open` it. Fulfils `border.visitors.Visitors`.
    """

    def __init__(
        self, listen: str, credentials: Any = None, *, farewell: bytes | None = None
    ) -> None:
        self._listen, self._credentials = listen, credentials
        usual = ALERT if credentials else goaway()
        self._farewell = usual if farewell is None else farewell
        self._memory = Memory()
        self.crowd = Crowd(CONNECTIONS_MAX)
        self._lane: Lane | None = None
        self._servers: list[asyncio.Server] = []
        self._numbers = itertools.count()
        self._visitors: dict[int, _Outside] = {}
        self._by_peer: dict[str, _Outside] = {}
        self._ends: set[_End] = set()
        self._joining: set[asyncio.Task[None]] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._sockets: list[socket.socket] = []
        self._is_closed = False

    # ---- for the owner of the server

    @property
    def secure(self) -> bool:
        """Whether there is TLS behind it."""
        return self._credentials is not None

    def attach(self, server: Any, places: int) -> int:
        """Lets a gRPC server listen behind the gate, with room for `places` connections; returns
        the port.

        Raises `AddressInUseError`, `SettingsError`, `ShortageError`, `StorageError` where it cannot
        be had.
        """
        lane = Lane()
        try:
            self._sockets, self._is_closed = listening(self._listen), False
        except BaseException:
            lane.close()
            raise
        self.crowd, self._lane = Crowd(places), lane
        if self._credentials:
            self._lane.bound(server.add_secure_port(self._lane.address, self._credentials))
        else:
            self._lane.bound(server.add_insecure_port(self._lane.address))
        return int(self._sockets[0].getsockname()[1])

    async def open(self) -> None:
        """Lets connections in."""
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            made = loop.create_server(lambda: _Outside(self), sock=each, backlog=BACKLOG)
            self._servers.append(await made)
        self._sockets = []
        self._look()

    async def close(self) -> None:
        """Closes the port and all connections. Safe to call twice."""
        if self._looking:
            self._looking.cancel()
        await self._take_no_more()
        for server in self._servers:
            server.close()
        for each in self._sockets:
            each.close()
        for task in self._joining:
            task.cancel()
        await asyncio.gather(*self._joining, return_exceptions=True)
        self._servers, self._sockets, self._is_closed = [], [], True
        for end in self._ends:
            end.abort()
        while self._ends:  # noqa: ASYNC110 - each is lost in one of the next turns of the loop
            await asyncio.sleep(0)
        if self._lane:
            self._lane.close()
            self._lane = None

    async def _take_no_more(self) -> None:
        """Let connections that were taken have their ends: asyncio loses those that a server took
        in the turn of the loop in which it is closed.
        """
        loop = asyncio.get_running_loop()
        for each in (each for server in self._servers for each in server.sockets):
            with contextlib.suppress(NotImplementedError):  # Windows
                loop.remove_reader(each.fileno())
        for _ in range(TURNS):
            await asyncio.sleep(0)

    # ---- for those that gRPC calls

    def document(self) -> dict[str, Any]:
        """For a status page: the connections of now, and those that were cut."""
        open_now = {"open": len(self.crowd), "unproven": self.crowd.unproven}
        return open_now | {"cut": dict(self.crowd.cuts)}

    @property
    def cuts(self) -> Mapping[str, int]:
        return self.crowd.cuts

    def remote(self, peer: str) -> str:
        """Empty when the peer is gone."""
        visitor = self._by_peer.get(peer)
        return visitor.remote if visitor else ""

    def hear(self, peer: str) -> None:
        if visitor := self._by_peer.get(peer):
            self.crowd.hear(visitor.number, _now_ms())
            self._weighed(visitor)

    def prove(self, peer: str) -> None:
        if visitor := self._by_peer.get(peer):
            self.crowd.prove(visitor.number, _now_ms())
            visitor.prove()

    # ---- for connections

    def opened(self, end: "_End") -> None:
        """An end of a connection is open."""
        self._ends.add(end)
        if self._is_closed:
            end.abort()

    def closed(self, end: "_End") -> None:
        """It is no more."""
        self._ends.discard(end)

    def came(self, visitor: "_Outside", host: str) -> None:
        """A connection has come from a host."""
        visitor.number = next(self._numbers)
        self._visitors[visitor.number] = visitor
        self.cut(self.crowd.come(visitor.number, host, _now_ms()))

    def took(self, visitor: "_Outside", count: int) -> None:
        """An unproven connection has sent bytes."""
        self.cut(self.crowd.take(visitor.number, count, _now_ms()))
        self._weighed(visitor)

    def answered(self, visitor: "_Outside", count: int) -> None:
        """An unproven connection was sent bytes."""
        self.crowd.answer(visitor.number, count, _now_ms())
        self._weighed(visitor)

    def _weighed(self, visitor: "_Outside") -> None:
        visitor.hold("it has sent enough", not self.crowd.room(visitor.number))

    def gone(self, visitor: "_Outside") -> None:
        """A connection has ended."""
        self._visitors.pop(visitor.number, None)
        self._by_peer.pop(visitor.peer, None)
        self.crowd.leave(visitor.number, _now_ms())

    def cut(self, numbers: list[int]) -> None:
        """Ends connections at once, with a word where gRPC has said none."""
        for number in numbers:
            if visitor := self._visitors.get(number):
                visitor.cut(self._farewell)

    def join(self, visitor: "_Outside") -> None:
        """Leads a connection to gRPC."""
        task = asyncio.create_task(self._join(visitor))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, visitor: "_Outside") -> None:
        try:
            assert self._lane
            visitor.peer, inside = await self._lane.connect(lambda: _Inside(self, visitor))
        except OSError:  # no descriptor, or gRPC takes no more just now
            visitor.cut(self._farewell)
            return
        self._by_peer[visitor.peer] = visitor
        visitor.joined(inside)

    def _look(self) -> None:
        self.cut(self.crowd.late(_now_ms()))
        self._memory.look(self.crowd.unproven)
        self._looking = asyncio.get_running_loop().call_later(LOOK_MS / 1000, self._look)


class _End:
    """One end of a connection; what comes here goes out at the other."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self._held = set[str]()
        """Reasons why no bytes are taken here now."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._gate.opened(self)

    @property
    def is_open(self) -> bool:
        """Whether bytes can come and go."""
        return self.transport is not None and not self.transport.is_closing()

    def hold(self, reason: str, on: bool = True) -> None:
        """Take no bytes for a reason, or no longer for this one."""
        self._held = self._held | {reason} if on else self._held - {reason}
        if self.transport and self.is_open and self.transport.is_reading() is bool(self._held):
            self.transport.pause_reading() if self._held else self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send bytes, unless it is closed."""
        if self.transport and self.is_open:
            self.transport.write(data)

    def pause_writing(self) -> None:
        if self.other:
            self.other.hold("the other end is slow")

    def resume_writing(self) -> None:
        if self.other:
            self.other.hold("the other end is slow", False)

    def eof_received(self) -> None:
        pass  # closes it

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._gate.closed(self)
        if self.other:
            self.other.finish()

    def finish(self) -> None:
        """Close when the last bytes are out, or soon."""
        if self.transport:
            self.transport.close()
            asyncio.get_running_loop().call_later(LAST_BYTES_S, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self.transport:
            self.transport.abort()


class _Outside(_End, asyncio.BufferedProtocol):
    """The public end of a connection, read in pieces that it has room for; once it is proven
    `_Through` reads it.
    """

    remote, peer, number, proven, answered = "", "", -1, False, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # A connection that is reset at once has no name any more.
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        ip = ip_of(host)
        is_v6 = ip is not None and ip.version == 6
        self.remote = f"ipv6:[{ip}]:{port}" if is_v6 else f"ipv4:{ip or host}:{port}"
        self._piece, self._first = bytearray(), b""
        self._gate.came(self, host)

    def get_buffer(self, sizehint: int) -> bytearray:
        self._piece = bytearray(max(1, self._gate.crowd.room(self.number)))
        return self._piece

    def buffer_updated(self, count: int) -> None:
        data = bytes(memoryview(self._piece)[:count])
        self._piece = bytearray()
        self._gate.took(self, count)
        if self.other:
            self.other.write(data)
        elif self.is_open:
            self._first = data
            self.hold("gRPC does not have it yet")
            self._gate.join(self)

    def joined(self, inside: _End) -> None:
        """GRPC has the other end."""
        self.other = inside
        if not self.is_open:
            inside.abort()
        inside.write(self._first)
        self._first = b""
        self.hold("gRPC does not have it yet", False)

    def prove(self) -> None:
        """It is counted no more."""
        self.proven = True
        if self.transport and self.is_open:
            self.transport.set_protocol(_Through(self))
        self.hold("it has sent enough", False)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._gate.gone(self)

    def cut(self, farewell: bytes) -> None:
        """End both ends at once; the farewell is for who was not answered yet."""
        if self.answered or self.transport is None:
            self.abort()
        else:
            self.write(farewell)
            self.transport.close()  # nothing else waits to go out
        if self.other:
            self.other.abort()


class _Through(asyncio.Protocol):
    """Reads a proven connection as fast as the system can."""

    def __init__(self, outside: _Outside) -> None:
        self._outside = outside

    def data_received(self, data: bytes) -> None:
        if inside := self._outside.other:
            inside.write(data)

    def pause_writing(self) -> None:
        self._outside.pause_writing()

    def resume_writing(self) -> None:
        self._outside.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._outside.connection_lost(error)


class _Inside(_End, asyncio.Protocol):
    """The end at gRPC."""

    def __init__(self, gate: Gate, outside: _Outside) -> None:
        super().__init__(gate)
        self._outside = self.other = outside

    def data_received(self, data: bytes) -> None:
        if not self._outside.proven:
            self._outside.answered = True
            self._gate.answered(self._outside, len(data))
        self._outside.write(data)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000

"""A longer way between two TCP ends on this machine: a relay that holds every byte for half a round
trip.

    with delayed([port], round_trip_ms=50) as (far,):
        ...  # what connects to `far` talks to `port`, and each byte takes 25 ms there and 25 ms back

The relay runs in a process of its own. It holds bytes, it does not shape them: no rate, no loss, no
jitter, no congestion window, and TCP's own handshake stays short. So it shows what a protocol's own
windows and round trips cost at a distance, and flatters everything alike. Bytes that the receiver
does not take are held up to `HELD_BYTES_MAX`.
"""

import asyncio
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import cast

HELD_BYTES_MAX = 64 * 1024 * 1024
"""In one direction of one connection, beyond which the sender is not read: 75 ms at 850 MB/s are
under way at most."""


class Way(asyncio.Protocol):
    """One end of a connection at the relay: what it receives leaves at the other end after the
    delay."""

    def __init__(self, delay: float, on_open: Callable[["Way"], None] | None = None) -> None:
        """`delay` in seconds; `on_open` is told when there is a connection."""
        self.other: Way | None = None
        self.lost = asyncio.Event()
        self._cut = False
        self._delay, self._on_open = delay, on_open
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False  # whether the other end takes no more
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        if self._on_open:
            self._transport.pause_reading()  # until there is an other end
            self._on_open(self)

    def join(self, other: "Way") -> None:
        """Lead to `other` from now on."""
        self.other = other
        if self._transport and not self._transport.is_closing():
            self._transport.resume_reading()

    def cut(self) -> None:
        """End the connection at once; what is held is lost."""
        self._cut = True
        if self._timer:
            self._timer.cancel()
        if (
            self._transport and not self.lost.is_set()
        ):  # CPython 3.11 fails to abort what closed by itself
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        self._hold(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX and self._transport:
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's. The end travels as far as the bytes before it."""
        self.lost.set()
        if not self._cut:
            self._hold(b"")

    def pause_writing(self) -> None:
        """asyncio's: this end takes no more, so the other one holds on."""
        if self.other:
            self.other._paused = True

    def resume_writing(self) -> None:
        """asyncio's."""
        if self.other:
            self.other._paused = False
            self.other._deliver()

    def _hold(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._held.append((loop.time() + self._delay, data))
        if self._timer is None:
            self._timer = loop.call_later(self._delay, self._deliver)

    def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        target = self.other._transport if self.other else None
        while self._held and not self._paused and self._held[0][0] <= loop.time():
            _, data = self._held.popleft()
            if target and data:
                target.write(data)
            elif target:
                target.close()
            self._held_bytes -= len(data)
        if self._held and not self._paused:
            self._timer = loop.call_at(self._held[0][0], self._deliver)
        if (
            self._held_bytes <= HELD_BYTES_MAX // 2
            and self._transport
            and not self._transport.is_closing()
        ):
            self._transport.resume_reading()


class Relay:
    """Listens on loopback and leads every connection to one port, the long way."""

    def __init__(self, port: int, delay: float) -> None:
        self._port, self._delay = port, delay
        self._connecting: set[asyncio.Task[None]] = set()
        self._ways: list[Way] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Way(self._delay, self._opened), "127.0.0.1", 0
        )
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Cut every connection and listen no more."""
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for way in self._ways:
            way.cut()
            await way.lost.wait()
        if self._server:
            self._server.close()
            await self._server.wait_closed()

    def _opened(self, near: Way) -> None:
        self._ways.append(near)
        task = asyncio.create_task(self._connect(near))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, near: Way) -> None:
        far = Way(self._delay)
        far.other = near
        try:
            await asyncio.get_running_loop().create_connection(lambda: far, "127.0.0.1", self._port)
        except OSError:
            near.cut()
            return
        self._ways.append(far)
        near.join(far)


@contextmanager
def delayed(ports: list[int], round_trip_ms: float) -> Iterator[list[int]]:
    """The ports behind which the given ones lie so far away, in their order. 0 ms: the ports
    themselves."""
    if not round_trip_ms:
        yield ports
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_relays, args=(ports, round_trip_ms / 2000, theirs), daemon=True
    )
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def _relays(ports: list[int], delay: float, connection: Connection) -> None:
    import uvloop

    async def serve() -> None:
        relays = [Relay(port, delay) for port in ports]
        connection.send([await relay.start() for relay in relays])
        await asyncio.Event().wait()

    uvloop.run(serve())

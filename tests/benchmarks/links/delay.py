"""A relay that holds every byte between two TCP ends on this machine for half a round trip.

    with delayed([port], round_trip_ms=50) as (far,):
        ...  # a client of `far` talks to `port`; each byte takes 25 ms there and 25 ms back

The relay runs in a process of its own. It delays bytes, it does not shape them: no rate, no loss,
no jitter, no congestion window, and TCP's own handshake stays short. So it shows what a protocol's
own windows and round trips cost at a distance, and is equally kind to all. Bytes that the receiver
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
"""Bytes held in one direction of one connection, beyond which the sender is not read: 75 ms at 850
MB/s are on the way at most."""


class Way(asyncio.Protocol):
    """One end of a connection at the relay: bytes that it receives leave at the other end after the
    delay.
    """

    def __init__(self, delay: float, on_open: Callable[["Way"], None] | None = None) -> None:
        """`delay` in seconds; `on_open` is called when there is a connection."""
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
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        if self._on_open:
            self._transport.pause_reading()  # until there is an other end
            self._on_open(self)

    def join(self, other: "Way") -> None:
        """Send to `other` from now on."""
        self.other = other
        if self._transport and not self._transport.is_closing():
            self._transport.resume_reading()

    def cut(self) -> None:
        """Close the connection at once; held bytes are lost."""
        self._cut = True
        if self._timer:
            self._timer.cancel()
        if (
            self._transport and not self.lost.is_set()
        ):  # CPython 3.11 fails to abort what closed by itself
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._hold(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX and self._transport:
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The end of the stream travels as far as the bytes before it."""
        self.lost.set()
        if not self._cut:
            self._hold(b"")

    def pause_writing(self) -> None:
        """This end takes no more, so the other one pauses."""
        if self.other:
            self.other._paused = True

    def resume_writing(self) -> None:
        """Asyncio calls this in the middle of a write, where a transport cannot be closed."""
        if self.other:
            self.other._paused = False
            asyncio.get_running_loop().call_soon(self.other._deliver)

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
    """Listens on loopback and leads every connection to one port, with the delay."""

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
        """Close every connection and stop listening."""
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
    """Ports that lead to the given ones with a delay, in their order. 0 ms: the ports
    themselves.
    """
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

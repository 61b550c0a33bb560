"""What one connection of an attacker does, until it is cut; then it comes again."""

import asyncio
import itertools
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.processes.siege import frames
from tests.processes.siege.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    FRAME_BYTES,
    HEADERS,
    OPENING,
    PING,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    begun,
    frame,
)
from tests.processes.siege.wire import Wire, client_hello, http2, streams

COORDINATOR = tuple(
    f"/lockstep.v1.Coordinator/{name}"
    for name in ("Session", "GetRun", "GetCommits", "GetStatus", "GetMembers", "PutCheckpoint")
)
PEER = ("/lockstep.v1.Peer/Pipe",)

MESSAGE_BYTES = 4 * 1024 * 1024
SESSIONS = 32
"""Sessions that are opened at once over one connection."""

PAUSE_S = 0.2
BATCH = 100
"""Frames that are sent between two pauses."""

SLOW_S = 1.0
"""Pause between two bytes of a slow handshake."""

GARBAGE = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    OPENING + b"\xff\xff\xff\0\0\0\0\0\1" + bytes(70_000),
    OPENING + b"\0\0\1\1\4\0\0\0\1\xff" * 1000,
    secrets.token_bytes(100_000),
)
"""HTTP/1, a frame of 16 MB, headers that are none, noise."""


@dataclass(slots=True)
class Spot:
    """A connection's place: the port that it goes to, its own address, its number."""

    address: tuple[str, int]
    paths: tuple[str, ...]
    """The calls that there are at the port."""
    source: str
    number: int
    did: Counter[str] = field(default_factory=Counter)

    def path(self, number: int) -> str:
        """The calls of the port in turn."""
        return self.paths[number % len(self.paths)]


Work = Callable[[Spot], Awaitable[None]]


async def told(spot: Spot, data: bytes = b"", *, tls: bool = False) -> None:
    """Say something, and listen until the other end closes."""
    async with streams(spot.address, spot.source, tls=tls) as (reader, writer):
        spot.did["played"] += 1
        writer.write(data)
        while await reader.read(FRAME_BYTES):
            pass


async def idle(spot: Spot) -> None:
    """A connection, and nothing."""
    await told(spot)


async def half_handshake(spot: Spot) -> None:
    """A TLS hello, and nothing."""
    await told(spot, client_hello())


async def slow_handshake(spot: Spot) -> None:
    """A TLS hello, a byte a second."""
    async with streams(spot.address, spot.source, tls=False) as (_, writer):
        for byte in client_hello():
            writer.write(bytes([byte]))
            await writer.drain()
            spot.did["played"] += 1
            await asyncio.sleep(SLOW_S)


async def handshakes(spot: Spot) -> None:
    """TLS handshakes, one after the other."""
    async with streams(spot.address, spot.source, tls=True):
        spot.did["played"] += 1


async def garbage(spot: Spot) -> None:
    """What is no HTTP/2, in TLS and without."""
    for tls, said in itertools.product((False, True), GARBAGE):
        try:
            async with asyncio.timeout(PAUSE_S):
                await told(spot, said, tls=tls)
        except (OSError, TimeoutError):
            spot.did["turned away"] += 1


async def preface(spot: Spot) -> None:
    """What opens HTTP/2, and nothing."""
    await told(spot, OPENING, tls=True)


async def header_blocks(spot: Spot) -> None:
    """Header blocks that are small on the line and large in a table, on ever new streams."""
    await _blocks(spot, frames.bomb)


async def half_messages(spot: Spot) -> None:
    """Requests of 4 MiB that lack their last byte, of every call."""
    async with http2(spot.address, spot.source) as wire:
        for stream in itertools.count(1, 2):
            said = b"\0" + MESSAGE_BYTES.to_bytes(4, "big")
            await wire.send(begun(spot.path(stream // 2), stream) + frame(DATA, 0, stream, said))
            spot.did["played"] += 1
            await wire.fill(stream, MESSAGE_BYTES - 1)


async def half_calls(spot: Spot) -> None:
    """A call without its message."""
    async with http2(spot.address, spot.source) as wire:
        await wire.send(begun(spot.path(spot.number), 1))
        spot.did["played"] += 1
        await wire.closed.wait()


async def silent_sessions(spot: Spot) -> None:
    """Streams that say nothing, which are opened again as they end."""
    async with http2(spot.address, spot.source) as wire:
        numbers, opened = itertools.count(1, 2), set[int]()
        while not wire.closed.is_set():
            while len(opened - wire.ended) < SESSIONS:
                opened.add(stream := next(numbers))
                await wire.send(begun(spot.path(0), stream))
                spot.did["played"] += 1
            await asyncio.sleep(PAUSE_S)


async def rapid_reset(spot: Spot) -> None:
    """Calls that are reset as soon as they have begun."""

    def one(number: int) -> bytes:
        stream = 2 * number + 1
        reset = frame(RESET, 0, stream, (8).to_bytes(4, "big"))
        return begun(spot.path(number), stream) + reset

    await _flood(spot, one)


async def continuations(spot: Spot) -> None:
    """A header block that never ends."""
    piece = b"\0\1z\1" + b"v"

    def one(number: int) -> bytes:
        if number == 0:
            return frame(HEADERS, 0, 1, frames.call(spot.path(0)))
        return frame(CONTINUATION, 0, 1, piece * (1 if number % 2 else 100))

    await _flood(spot, one)


async def settings(spot: Spot) -> None:
    """Settings that must be acknowledged, by the thousand."""
    await _flood(spot, lambda number: frame(SETTINGS, 0, 0))


async def tables(spot: Spot) -> None:
    """Settings that change the size of the table and of windows, by the thousand."""

    def one(number: int) -> bytes:
        size = (number % 2 * 4096).to_bytes(4, "big")
        return frame(SETTINGS, 0, 0, b"\0\1" + size + b"\0\4" + size)

    await _flood(spot, one)


async def pings(spot: Spot) -> None:
    """Pings that must be answered, by the thousand."""
    await _flood(spot, lambda number: frame(PING, 0, 0, number.to_bytes(8, "big")))


async def window_updates(spot: Spot) -> None:
    """Windows that widen by one byte, by the thousand."""
    await _flood(spot, lambda number: frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big")))


async def empty_data(spot: Spot) -> None:
    """Data without a byte in calls that never end, by the thousand."""

    def one(number: int) -> bytes:
        return frame(DATA, 0, 1) if number else begun(spot.path(spot.number), 1)

    await _flood(spot, one)


async def large_metadata(spot: Spot) -> None:
    """Calls with headers of 16 kB, on ever new streams."""
    await _blocks(spot, frames.long_headers)


async def _blocks(spot: Spot, made: Callable[[str], bytes]) -> None:
    """A header block for each path, made of it, on ever new streams."""
    async with http2(spot.address, spot.source) as wire:
        for stream in itertools.count(1, 2):
            block = made(spot.path(stream // 2))
            await wire.send(frame(HEADERS, END_HEADERS, stream, block))
            spot.did["played"] += 1
            await asyncio.sleep(PAUSE_S)


async def _flood(spot: Spot, one: Callable[[int], bytes]) -> None:
    """Frames without end, in batches. Every second connection reads no answer."""
    async with http2(spot.address, spot.source, deaf=bool(spot.number % 2)) as wire:
        await _pour(wire, spot, one)


async def _pour(wire: Wire, spot: Spot, one: Callable[[int], bytes]) -> None:
    for first in itertools.count(0, BATCH):
        await wire.send(b"".join(map(one, range(first, first + BATCH))))
        spot.did["played"] += BATCH
        await asyncio.sleep(PAUSE_S / 10)

"""Attacks beneath a call: HTTP/2 by hand, of which the coordinator's own code hears nothing."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from protocol.wire_pb2 import Leave
from tests.processes.strangers.client import FAILURES, Stranger, Target
from tests.processes.strangers.door import OPENING

SERVICE = "lockstep.v1.Coordinator"
ENTRY_BYTES = 3900
REFERENCES = 12_000
"""Names of the entry in one block, a byte each: 47 MB to whoever writes them out."""

HEADER_CONNECTIONS = 64
MESSAGE_CONNECTIONS = 8
MESSAGE_BYTES = 4 * 1024 * 1024
HALF_CALLS = 16_390
"""More connections than a coordinator takes from everybody."""

CROWD_HOSTS, CROWD_SESSIONS = 16, 32
CROWD_STEP, CROWD_PAUSE_S = 200, 5.0
"""Connections that are opened at once, and the pause of one that was cut: one process plays what
many do."""

BLOCKED_S = 5.0
"""Time after which a connection that takes no more bytes is opened anew."""

PAUSE_S = 0.2
NEWCOMER_S = 10.0
"""Time in which a newcomer must be let in."""

WINDOW_BYTES = 65_535
FRAME_BYTES = 16_384
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_HEADERS, END_STREAM = 1, 4, 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def call(method: str) -> bytes:
    """The header block of a call that is no more than one."""
    path = f"/{SERVICE}/{method}".encode()
    kind = b"application/grpc"
    return (
        b"\x83\x86\x04" + bytes([len(path)]) + path  # POST, http, :path
        + b"\x01\x01x\x0f\x10" + bytes([len(kind)]) + kind  # :authority, content-type
        + b"\x00\x02te\x08trailers"
    )  # fmt: skip


def bomb() -> bytes:
    """A header block for a session: a long entry for the table, then its name again and again."""
    length = b"\x7f" + bytes([(ENTRY_BYTES - 127) & 127 | 128, (ENTRY_BYTES - 127) >> 7])
    block = call("Session") + b"\x40\x01y" + length + b"v" * ENTRY_BYTES + b"\xbe" * REFERENCES
    return block[:FRAME_BYTES]


class Wire:
    """One connection of HTTP/2 that answers what it must, and sends what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._windows = {0: WINDOW_BYTES}
        self._initial = WINDOW_BYTES
        self._wider = asyncio.Event()
        self.ended: set[int] = set()
        """Streams that the other end has ended."""
        self.closed = asyncio.Event()

    async def send(self, data: bytes) -> None:
        """Send bytes, within `BLOCKED_S`."""
        self._writer.write(data)
        async with asyncio.timeout(BLOCKED_S):
            await self._writer.drain()

    async def fill(self, stream: int, count: int) -> None:
        """Send this many bytes of data, as the windows allow."""
        self._windows.setdefault(stream, self._initial)
        while count:
            room = min(self._windows[0], self._windows[stream], FRAME_BYTES, count)
            if room <= 0:
                self._wider.clear()
                async with asyncio.timeout(BLOCKED_S):
                    await self._wider.wait()
                continue
            await self.send(frame(DATA, 0, stream, bytes(room)))
            self._windows[0] -= room
            self._windows[stream] -= room
            count -= room

    async def read(self) -> None:
        """Answer pings and widen windows until the other end closes."""
        try:
            while True:
                await self._answer()
        finally:
            self.closed.set()
            self._wider.set()

    def _begin_with(self, window: int) -> None:
        """Streams have another window at first; those that are open too."""
        wider, self._initial = window - self._initial, window
        self._windows |= {stream: each + wider for stream, each in self._windows.items() if stream}
        self._wider.set()

    async def _answer(self) -> None:
        head = await self._reader.readexactly(9)
        payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        if kind == PING and not flags & ACK:
            self._writer.write(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            self._writer.write(frame(SETTINGS, ACK, 0))
            for at in range(0, len(payload), 6):
                if payload[at : at + 2] == b"\0\4":
                    self._begin_with(int.from_bytes(payload[at + 2 : at + 6], "big"))
        elif kind == WINDOW_UPDATE:
            wider = int.from_bytes(payload, "big")
            self._windows[stream] = self._windows.get(stream, self._initial) + wider
            self._wider.set()
        elif kind == 3 or (kind == HEADERS and flags & END_STREAM):
            self.ended.add(stream)


@contextlib.asynccontextmanager
async def wire(target: Target, host: str = "") -> AsyncIterator[Wire]:
    """A connection to the coordinator itself, from a host of the strangers."""
    at, _, port = target.behind.rpartition(":")
    local = (host or target.host, 0)
    reader, writer = await asyncio.open_connection(at, int(port), local_addr=local)
    target.did["connected"] += 1
    made = Wire(reader, writer)
    reading = asyncio.create_task(made.read())
    try:
        await made.send(OPENING)
        yield made
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def again(work: Callable[[], Awaitable[object]]) -> None:
    """Repeat it, also after it was cut."""
    while True:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            await work()
        await asyncio.sleep(PAUSE_S)


async def header_blocks(target: Target) -> None:
    """S2: header blocks that are small on the line and large in a table, on ever new streams."""

    async def pour() -> None:
        async with wire(target) as line:
            for stream in itertools.count(1, 2):
                await line.send(frame(HEADERS, END_HEADERS, stream, bomb()))
                target.did["blocks"] += 1
                await asyncio.sleep(PAUSE_S)

    await asyncio.gather(knocking(target), *(again(pour) for _ in range(HEADER_CONNECTIONS)))


async def half_messages(target: Target) -> None:
    """S2b: requests of 4 MiB that lack their last byte, one beside the other."""

    async def withhold() -> None:
        async with wire(target) as line:
            for stream in itertools.count(1, 2):
                await line.send(frame(HEADERS, END_HEADERS, stream, call("GetRun")))
                said = b"\0" + MESSAGE_BYTES.to_bytes(4, "big")
                await line.send(frame(DATA, 0, stream, said))
                target.did["begun"] += 1
                await line.fill(stream, MESSAGE_BYTES - 1)
                target.did["withheld"] += 1

    await asyncio.gather(knocking(target), *(again(withhold) for _ in range(MESSAGE_CONNECTIONS)))


async def half_calls(target: Target, count: int = HALF_CALLS) -> None:
    """S3: calls without their message, over more connections than anybody may have."""

    async def begin() -> None:
        async with wire(target) as line:
            await line.send(frame(HEADERS, END_HEADERS, 1, call("GetRun")))
            target.did["begun"] += 1
            await line.closed.wait()
        await asyncio.sleep(CROWD_PAUSE_S)

    async with asyncio.TaskGroup() as crowd:
        crowd.create_task(knocking(target))
        for number in range(count):
            crowd.create_task(again(begin))
            if number % CROWD_STEP == 0:
                await asyncio.sleep(PAUSE_S / 2)


async def silent_crowd(target: Target) -> None:
    """S4: from 16 hosts of 16 networks one connection each with 32 sessions that say nothing, which
    are opened again as they end.
    """

    async def sit(host: str) -> None:
        async with wire(target, host) as line:
            streams = itertools.count(1, 2)
            opened = set[int]()
            while not line.closed.is_set():
                while len(opened - line.ended) < CROWD_SESSIONS:
                    opened.add(stream := next(streams))
                    await line.send(frame(HEADERS, END_HEADERS, stream, call("Session")))
                    target.did["opened"] += 1
                await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as crowd:
        crowd.create_task(knocking(target))
        for number in range(CROWD_HOSTS):
            crowd.create_task(again(partial(sit, f"127.9.{number}.1")))


async def knocking(target: Target) -> None:
    """Newcomers who mean well, one after the other, each of whom must be let in."""
    while True:
        newcomer = Stranger(target.behind, target.run_id)
        try:
            async with asyncio.timeout(NEWCOMER_S):
                await newcomer.hello()
                await newcomer.hear("welcome")
                await newcomer.say(leave=Leave())
            target.did["newcomers let in"] += 1
        except FAILURES:
            target.did["newcomers kept out"] += 1
        finally:
            await newcomer.close()
        await asyncio.sleep(1)

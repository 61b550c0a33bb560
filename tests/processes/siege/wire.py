"""A connection of an attacker: from an address of its choice, with TLS or without, and HTTP/2."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

from tests.processes.siege.frames import (
    ACK,
    DATA,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
    OPENING,
    PING,
    RESET,
    SETTINGS,
    WINDOW_BYTES,
    WINDOW_UPDATE,
    frame,
)

BLOCKED_S = 5.0
"""Time after which a connection that takes no more bytes is given up."""

CONNECT_S = 10.0

FREE_BIND = 15
"""Linux's option for an address that no interface has: IP_FREEBIND."""


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
        if self._writer.is_closing():
            raise ConnectionResetError
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
        except (OSError, asyncio.IncompleteReadError):
            pass
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
        elif kind == RESET or (kind == HEADERS and flags & END_STREAM):
            self.ended.add(stream)


async def connected(address: tuple[str, int], source: str) -> socket.socket:
    """A TCP connection from an address of this machine, or of a network that leads to it."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    made = socket.socket(family)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_IP, FREE_BIND, 1)
        made.bind((source, 0))
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(made, address)
    except BaseException:
        made.close()
        raise
    return made


@contextlib.asynccontextmanager
async def streams(
    address: tuple[str, int], source: str, *, tls: bool
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection for the block, at whose end it is reset."""
    made = await connected(address, source)
    about = {"ssl": TLS, "server_hostname": ""} if tls else {}
    async with asyncio.timeout(CONNECT_S):  # closes what it was given
        reader, writer = await asyncio.open_connection(sock=made, **about)  # type: ignore[arg-type]
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def http2(
    address: tuple[str, int], source: str, *, deaf: bool = False
) -> AsyncIterator[Wire]:
    """A connection of HTTP/2 over TLS; a deaf one reads nothing."""
    async with streams(address, source, tls=True) as (reader, writer):
        wire = Wire(reader, writer)
        reading = None if deaf else asyncio.create_task(wire.read())
        try:
            await wire.send(OPENING)
            yield wire
        finally:
            if reading:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


def _unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


TLS = _unchecked()
"""Takes any certificate."""


def client_hello() -> bytes:
    """What a client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        TLS.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()

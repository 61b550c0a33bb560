"""What one connection of an attacker does at the port of libp2p's daemon: multistream, Noise, TLS
with a key of its own, and yamux by hand.
"""

import asyncio
import contextlib
import itertools
import secrets
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from node.transports.libp2p.dialler import PROTOCOL
from tests.processes.siege.attacks import PAUSE_S, Spot, told
from tests.processes.siege.wire import BLOCKED_S, CONNECT_S, streams

TELLS_KEY = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
"""The part of a certificate in which libp2p has a peer's key."""

KEYS = 64
"""Keys of one process of attackers; making one takes a millisecond."""

STREAMS = 60
"""Streams of one connection at once, or between two pauses."""

WINDOW_BYTES = 256 * 1024
"""Bytes that a new stream of yamux takes."""

_DATA, _WINDOW, _PING, _OPEN, _ANSWER = 0, 1, 2, 1, 2


def _lines(*words: str) -> bytes:
    """Words of multistream, each behind its length."""
    return b"".join(bytes([len(each) + 1]) + each.encode() + b"\n" for each in words)


GREETING = "/multistream/1.0.0"
HALF_NOISE = _lines(GREETING, "/noise") + b"\0\x20" + secrets.token_bytes(32)
"""The first message of a handshake, whose third never comes."""


async def half_greeting(spot: Spot) -> None:
    """Half a word of multistream, and nothing."""
    await told(spot, _lines(GREETING)[:7])


async def half_noise(spot: Spot) -> None:
    """Half a handshake of Noise."""
    await told(spot, HALF_NOISE)


async def noise(spot: Spot) -> None:
    """Bytes without a meaning."""
    await told(spot, secrets.token_bytes(100_000))


async def keys(spot: Spot) -> None:
    """A whole connection with a key of its own, and nothing."""
    async with _connected(spot) as yamux:
        await yamux.read()


async def unknown_streams(spot: Spot) -> None:
    """Streams of a protocol that there is not, without end."""
    await _flood(spot, _lines(GREETING, "/nobody/1"))


async def silent_streams(spot: Spot) -> None:
    """Streams that say nothing, without end."""
    await _flood(spot, b"")


async def pipes(spot: Spot) -> None:
    """Pipes of a node that say nothing, without end."""
    await _flood(spot, _lines(GREETING, PROTOCOL))


async def unread_pings(spot: Spot) -> None:
    """Pings, as many as a stream takes, whose answers nobody reads."""
    opening = _lines(GREETING, "/ipfs/ping/1.0.0")
    await _flood(spot, opening + bytes(WINDOW_BYTES - len(opening)), count=2)


class Yamux:
    """Streams over a connection that is secure."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1, 2)

    async def open(self, count: int, data: bytes) -> None:
        """Open streams that all say the same."""
        if self._writer.is_closing():
            raise ConnectionResetError
        for _ in range(count):
            number = next(self._numbers)
            self._say(_WINDOW, _OPEN, number, 0)
            if data:
                self._say(_DATA, 0, number, len(data), data)
        async with asyncio.timeout(BLOCKED_S):
            await self._writer.drain()

    async def read(self) -> None:
        """Answer pings, and widen no window, until the other end closes."""
        while True:
            head = await self._reader.readexactly(12)
            _, kind, flags, _, value = struct.unpack(">BBHII", head)
            if kind == _DATA:
                await self._reader.readexactly(value)
            elif kind == _PING and flags == _OPEN:
                self._say(_PING, _ANSWER, 0, value)

    def _say(self, kind: int, flags: int, stream: int, value: int, data: bytes = b"") -> None:
        self._writer.write(struct.pack(">BBHII", 0, kind, flags, stream, value) + data)


async def _flood(spot: Spot, data: bytes, count: int = STREAMS) -> None:
    async with _connected(spot) as yamux:
        reading = asyncio.create_task(yamux.read())
        try:
            while not reading.done():
                await yamux.open(count, data)
                spot.did["played"] += count
                await asyncio.sleep(PAUSE_S)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@contextlib.asynccontextmanager
async def _connected(spot: Spot) -> AsyncIterator[Yamux]:
    """A whole connection for the block."""
    async with streams(spot.address, spot.source, tls=False) as (reader, writer):
        async with asyncio.timeout(CONNECT_S):
            await _agree(reader, writer, "/tls/1.0.0")
            await writer.start_tls(_own_key(spot.number % KEYS), server_hostname="")
            await _agree(reader, writer, "/yamux/1.0.0")
        spot.did["played"] += 1
        yield Yamux(reader, writer)


async def _agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, word: str) -> None:
    said = _lines(GREETING, word)
    writer.write(said)
    if (heard := await reader.readexactly(len(said))) != said:
        raise ConnectionError(f"expected {said!r}, got {heard!r}")


@cache
def _own_key(number: int) -> ssl.SSLContext:
    """TLS as libp2p speaks it, with a key that nobody knows."""
    key, own = ec.generate_private_key(ec.SECP256R1()), Ed25519PrivateKey.generate()
    shown = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    public = b"\x08\1\x12\x20" + own.public_key().public_bytes_raw()
    about = _octets(4, public) + _octets(4, own.sign(b"libp2p-tls-handshake:" + shown))
    name, now = x509.Name([]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), number + 1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.UnrecognizedExtension(TELLS_KEY, _octets(0x30, about)), critical=True)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["libp2p"])
    with tempfile.NamedTemporaryFile() as both:
        both.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        both.write(certificate.public_bytes(Encoding.PEM))
        both.flush()
        context.load_cert_chain(both.name)
    return context


def _octets(kind: int, data: bytes) -> bytes:
    """Bytes of a kind of DER, fewer than 256."""
    length = bytes([len(data)]) if len(data) < 128 else bytes([0x81, len(data)])
    return bytes([kind]) + length + data

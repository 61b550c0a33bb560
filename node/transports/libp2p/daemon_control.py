"""What libp2p's daemon is asked over its control socket, and how it hands streams over.

    ask     connect to the control socket, one sized request, one sized response, close
    open    the same, and then the connection is the stream
    inquire open, one sized message there, one back: how libp2p's own services are asked
    accept  the daemon connects to a socket of ours, says who calls, and then the connection is the stream

Every question is bounded in time, here and in the daemon: one that is stuck fails its caller and
hangs nobody. The client that hivemind ships imports torch, bounds nothing, and copies every byte
through asyncio's streams. Source: the messages of go-libp2p-daemon (pb/p2pd.proto in
learning-at-home's fork)."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node.transports.libp2p.multiaddr import decode, encode, id_bytes, id_text
from node.transports.libp2p.protobuf import field, fields, read_varint, sized
from protocol.errors import RemoteProtocolError, UnavailableError

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""A response of the daemon: a list of some ten thousand connections."""

ASK_TIMEOUT_S = 10
"""Longest wait for an answer that needs no network, on a machine where everything is slow."""

_IDENTIFY, _CONNECT, _STREAM_OPEN, _STREAM_HANDLER, _LIST_PEERS, _DISCONNECT, _PERSISTENT = (
    0,
    1,
    2,
    3,
    5,
    7,
    9,
)
_ERROR, _STREAM_INFO, _IDENTITY, _PEERS = 2, 3, 4, 6  # fields of a response


@dataclass(frozen=True, slots=True)
class Contact:
    """A libp2p peer and one connection to it."""

    peer: str
    """Its libp2p peer id, which the connection has proven."""

    address: str
    """Where the other end of the connection is, as our daemon sees it."""

    @property
    def relayed(self) -> bool:
        """Whether a relay carries the connection."""
        return "/p2p-circuit" in self.address


class DaemonClient:
    """Questions to the daemon whose control socket is at `control`. Every one may raise
    `UnavailableError`."""

    def __init__(self, control: Path) -> None:
        self._control = control

    async def identify(self) -> tuple[str, tuple[str, ...]]:
        """(the daemon's peer id, addresses at which it believes to be reachable, without the peer
        id)."""
        answer = await self._ask(_request(_IDENTIFY))
        with _understood():
            identity = fields(_only(answer, _IDENTITY))
            return id_text(_only(identity, 1)), tuple(map(_address, identity.get(2, [])))

    async def contacts(self) -> list[Contact]:
        """The open connections; a peer may have several."""
        answer = await self._ask(_request(_LIST_PEERS))
        with _understood():
            return [_contact(info) for info in answer.get(_PEERS, [])]

    async def connect(self, peer: str, addresses: tuple[str, ...], timeout_s: int) -> None:
        """Connect to a peer at one of the addresses; nothing to do when there is a connection."""
        where = b"".join(field(2, encode(address)) for address in addresses)
        await self._ask(
            _request(_CONNECT, 2, field(1, id_bytes(peer)) + where + field(3, timeout_s)), timeout_s
        )

    async def disconnect(self, peer: str) -> None:
        """Close every connection to a peer, and with them every stream."""
        await self._ask(_request(_DISCONNECT, 7, field(1, id_bytes(peer))))

    async def handle(self, protocol: str, listener: Path) -> None:
        """Let the daemon hand each stream of a protocol to the socket that listens at a path."""
        handler = field(1, encode(f"/unix{listener}")) + field(2, protocol.encode()) + field(3, 0)
        await self._ask(_request(_STREAM_HANDLER, 4, handler))

    async def open(self, peer: str, protocol: str, timeout_s: int) -> tuple[socket.socket, Contact]:
        """A stream to a connected peer: its socket, the caller's to close, and where it leads."""
        target = field(1, id_bytes(peer)) + field(2, protocol.encode()) + field(3, timeout_s)
        stream, answer = await self._converse(_request(_STREAM_OPEN, 3, target), timeout_s)
        try:
            with _understood():
                return stream, _contact(_only(answer, _STREAM_INFO))
        except UnavailableError:
            stream.close()
            raise

    async def inquire(self, peer: str, protocol: str, message: bytes, timeout_s: int) -> bytes:
        """What a connected peer answers to one message, or to a stream alone when the message is
        empty."""
        stream, _ = await self.open(peer, protocol, timeout_s)
        with stream:
            try:
                async with asyncio.timeout(timeout_s):
                    if message:
                        await asyncio.get_running_loop().sock_sendall(stream, sized(message))
                    return await receive_sized(stream)
            except (OSError, TimeoutError, RemoteProtocolError) as error:
                reason = str(error) or f"not within {timeout_s} s"
                raise UnavailableError(f"{peer} did not answer over {protocol}: {reason}") from None

    async def hold(self) -> socket.socket:
        """A lifeline, the caller's to close: the daemon ends with it, however its owner died."""
        lifeline, _ = await self._converse(_request(_PERSISTENT))
        return lifeline

    async def _ask(self, request: bytes, timeout_s: int = 0) -> dict[int, list[bytes]]:
        connection, answer = await self._converse(request, timeout_s)
        connection.close()
        return answer

    async def _converse(
        self, request: bytes, timeout_s: int = 0
    ) -> tuple[socket.socket, dict[int, list[bytes]]]:
        """(the connection to the daemon, the fields of its response)."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            async with asyncio.timeout(timeout_s + ASK_TIMEOUT_S):
                answer = await self._exchange(connection, request)
            with _understood():
                if _ERROR in answer:
                    raise UnavailableError(
                        _only(fields(_only(answer, _ERROR)), 1).decode(errors="replace")
                    )
        except TimeoutError:
            connection.close()
            raise UnavailableError(
                f"the libp2p daemon did not answer within {timeout_s + ASK_TIMEOUT_S} s"
            ) from None
        except BaseException:
            connection.close()
            raise
        return connection, answer

    async def _exchange(self, connection: socket.socket, request: bytes) -> dict[int, list[bytes]]:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, str(self._control))
            await loop.sock_sendall(connection, sized(request))
            with _understood():
                return fields(await receive_sized(connection))
        except OSError as error:
            raise UnavailableError(
                f"the libp2p daemon is gone: {error.strerror or error}"
            ) from None


async def receive_caller(stream: socket.socket) -> Contact:
    """Who opened a stream that the daemon handed over. `UnavailableError` when it does not say in
    time."""
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            return _contact(await receive_sized(stream))
    except (OSError, TimeoutError, RemoteProtocolError) as error:
        raise UnavailableError(
            f"the libp2p daemon did not say who opened a stream: {error}"
        ) from None


async def receive_sized(connection: socket.socket) -> bytes:
    """One message, and not a byte behind it: what follows may be a stream's. `OSError` or
    `RemoteProtocolError`."""
    prefix = b""
    while not prefix or prefix[-1] > 0x7F:
        prefix += await receive(connection, 1)
        if len(prefix) > 5:
            break
    size, _ = read_varint(prefix, 0)
    if size > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(
            f"expected a message of at most {MESSAGE_BYTES_MAX} bytes, got one of {size}"
        )
    return await receive(connection, size)


async def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes; `OSError` when the connection ends before."""
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < size:
        piece = await loop.sock_recv(connection, size - len(data))
        if not piece:
            raise ConnectionResetError(f"it ended after {len(data)} of {size} bytes")
        data += piece
    return data


@contextmanager
def _understood() -> Iterator[None]:
    """Translates what comes of an answer in another protocol: a daemon that is not ours is like
    none."""
    try:
        yield
    except RemoteProtocolError as error:
        raise UnavailableError(f"the libp2p daemon speaks another protocol: {error}") from None


def _request(kind: int, number: int = 0, body: bytes = b"") -> bytes:
    return field(1, kind) + (field(number, body) if number else b"")


def _only(message: dict[int, list[bytes]], number: int) -> bytes:
    values = message.get(number, [])
    if len(values) != 1:
        raise RemoteProtocolError(f"expected one field {number}, got {len(values)}")
    return values[0]


def _contact(info: bytes) -> Contact:
    message = fields(info)
    return Contact(id_text(_only(message, 1)), "".join(map(_address, message.get(2, []))))


def _address(binary: bytes) -> str:
    """An address for people: one over a transport that is not known here is no reason to fail."""
    try:
        return decode(binary)
    except RemoteProtocolError:
        return f"/unknown/{binary[:64].hex()}"

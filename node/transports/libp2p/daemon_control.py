"""Client of the control socket of libp2p's daemon.

    ask      connect to the control socket, send one request, read one response, close
    open     the same, and then the connection is the stream
    inquire  open, send one message, read one: how libp2p's own services are asked
    accept   the daemon connects to a socket of ours and names the caller, then as for open

Messages are those of p2pd.proto, each behind its length. Every question has a time limit, here and
in the daemon: a stuck one fails its caller and blocks nobody else. The client that hivemind ships
imports torch, has no time limits, and copies every byte through asyncio's streams.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from node.transports.libp2p.contact import Contact
from node.transports.libp2p.multiaddr import decode, encode, id_bytes, id_text
from node.transports.libp2p.p2pd_pb2 import (
    ConnectRequest,
    DisconnectRequest,
    PeerInfo,
    Request,
    Response,
    StreamHandlerRequest,
    StreamInfo,
    StreamOpenRequest,
)
from node.transports.libp2p.varint import read_varint, sized
from protocol.errors import RemoteProtocolError, UnavailableError

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of a response: a list of some ten thousand connections."""

ASK_TIMEOUT_S = 10
"""Longest wait for an answer that needs no network, on a slow machine."""

M = TypeVar("M", bound=Message)


class DaemonClient:
    """Asks the daemon whose control socket is at `control`. Every method may raise
    `UnavailableError`.
    """

    def __init__(self, control: Path) -> None:
        self._control = control

    async def identify(self) -> tuple[str, tuple[str, ...]]:
        """(the daemon's peer id, the addresses at which it believes to be reachable, without the
        peer id).
        """
        answer = await self._ask(Request(type=Request.IDENTIFY))
        if not answer.HasField("identity"):
            raise UnavailableError(
                "the libp2p daemon speaks another protocol: expected its identity, got none"
            )
        return id_text(answer.identity.id), tuple(map(_address, answer.identity.addresses))

    async def contacts(self) -> list[Contact]:
        """The open connections; a peer may have several."""
        answer = await self._ask(Request(type=Request.LIST_PEERS))
        return [_contact_of(peer) for peer in answer.peers]

    async def connect(self, peer: str, addresses: tuple[str, ...], timeout_s: int) -> None:
        """Connect to a peer at one of the addresses, unless it is connected."""
        await self._ask(connect_request(peer, addresses, timeout_s), timeout_s)

    async def disconnect(self, peer: str) -> None:
        """Close every connection to a peer, and with them every stream."""
        await self._ask(disconnect_request(peer))

    async def handle(self, protocol: str, listener: Path) -> None:
        """Make the daemon hand each stream of a protocol to the socket that listens at a path."""
        await self._ask(handler_request(protocol, listener))

    async def open(self, peer: str, protocol: str, timeout_s: int) -> tuple[socket.socket, Contact]:
        """Open a stream to a connected peer: (its socket, which the caller closes, its contact)."""
        stream, answer = await self._converse(open_request(peer, protocol, timeout_s), timeout_s)
        if not answer.HasField("stream"):
            stream.close()
            raise UnavailableError(
                "the libp2p daemon speaks another protocol: expected a stream, got none"
            )
        return stream, _contact(answer.stream)

    async def inquire(self, peer: str, protocol: str, message: bytes, timeout_s: int) -> bytes:
        """The answer of a connected peer to one message, or to the opening of the stream when the
        message is empty.
        """
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
        """A lifeline, which the caller closes: the daemon ends with it, however its owner died."""
        lifeline, _ = await self._converse(Request(type=Request.PERSISTENT_CONN_UPGRADE))
        return lifeline

    async def _ask(self, request: Request, timeout_s: int = 0) -> Response:
        connection, answer = await self._converse(request, timeout_s)
        connection.close()
        return answer

    async def _converse(
        self, request: Request, timeout_s: int = 0
    ) -> tuple[socket.socket, Response]:
        """(the connection to the daemon, its response)."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            async with asyncio.timeout(timeout_s + ASK_TIMEOUT_S):
                answer = await self._exchange(connection, request)
            if answer.HasField("error"):
                raise UnavailableError(answer.error.message.decode(errors="replace"))
        except TimeoutError:
            connection.close()
            raise UnavailableError(
                f"the libp2p daemon did not answer within {timeout_s + ASK_TIMEOUT_S} s"
            ) from None
        except BaseException:
            connection.close()
            raise
        return connection, answer

    async def _exchange(self, connection: socket.socket, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, str(self._control))
            await loop.sock_sendall(connection, sized(request.SerializeToString()))
            with _understood():
                return parsed(Response, await receive_sized(connection))
        except OSError as error:
            raise UnavailableError(
                f"the libp2p daemon is gone: {error.strerror or error}"
            ) from None


def connect_request(peer: str, addresses: tuple[str, ...], timeout_s: int) -> Request:
    """Asks for a connection to a peer at one of the addresses."""
    where = [encode(address) for address in addresses]
    connect = ConnectRequest(peer=id_bytes(peer), addresses=where, timeout_s=timeout_s)
    return Request(type=Request.CONNECT, connect=connect)


def disconnect_request(peer: str) -> Request:
    """Asks to close every connection to a peer."""
    return Request(type=Request.DISCONNECT, disconnect=DisconnectRequest(peer=id_bytes(peer)))


def handler_request(protocol: str, listener: Path) -> Request:
    """Asks for the streams of a protocol, at a unix socket."""
    handler = StreamHandlerRequest(
        listener=encode(f"/unix{listener}"), protocols=[protocol], balanced=False
    )
    return Request(type=Request.STREAM_HANDLER, stream_handler=handler)


def open_request(peer: str, protocol: str, timeout_s: int) -> Request:
    """Asks for a stream to a connected peer."""
    target = StreamOpenRequest(peer=id_bytes(peer), protocols=[protocol], timeout_s=timeout_s)
    return Request(type=Request.STREAM_OPEN, stream_open=target)


async def receive_caller(stream: socket.socket) -> Contact:
    """The peer that opened a stream which the daemon handed over. `UnavailableError` when the
    daemon does not name it in time.
    """
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            return _contact(parsed(StreamInfo, await receive_sized(stream)))
    except (OSError, TimeoutError, RemoteProtocolError) as error:
        raise UnavailableError(
            f"the libp2p daemon did not say who opened a stream: {error}"
        ) from None


async def receive_sized(connection: socket.socket) -> bytes:
    """One message, and no byte behind it, which may be a stream's. `OSError` or
    `RemoteProtocolError`.
    """
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
    """Exactly `size` bytes; `OSError` when the connection ends before."""
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < size:
        piece = await loop.sock_recv(connection, size - len(data))
        if not piece:
            raise ConnectionResetError(f"it ended after {len(data)} of {size} bytes")
        data += piece
    return data


def parsed(kind: type[M], data: bytes) -> M:
    """The message of a kind that bytes are; `RemoteProtocolError` when they are none."""
    try:
        message = kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise RemoteProtocolError(
            f"expected a {name}, got {len(data)} bytes that do not decode: {data[:40].hex()}"
        ) from None
    if not message.IsInitialized():
        raise RemoteProtocolError(
            f"expected a {kind.DESCRIPTOR.name} with every required field, got {data[:40].hex()}"
        )
    return message


@contextmanager
def _understood() -> Iterator[None]:
    """Translates the errors of an answer in another protocol: a foreign daemon is like none."""
    try:
        yield
    except RemoteProtocolError as error:
        raise UnavailableError(f"the libp2p daemon speaks another protocol: {error}") from None


def _contact(stream: StreamInfo) -> Contact:
    return Contact(id_text(stream.peer), _address(stream.address) if stream.address else "")


def _contact_of(peer: PeerInfo) -> Contact:
    return Contact(id_text(peer.id), "".join(map(_address, peer.addresses)))


def _address(binary: bytes) -> str:
    """An address for people; one over a transport that is not known here is no reason to fail."""
    try:
        return decode(binary)
    except RemoteProtocolError:
        return f"/unknown/{binary[:64].hex()}"

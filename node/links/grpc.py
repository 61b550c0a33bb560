"""Peers over gRPC: a server of the service Peer, and one channel kept open per address.

Parts arrive as messages of a server stream, so HTTP/2 flow control holds a fast sender back. Time limits are on
progress, never on a whole transfer: a thin uplink may take as long as it needs while parts keep coming. Keepalive
pings notice a peer that vanished without a word; the server allows them at twice the rate at which clients send them.
The caller of an insecure channel is known only by its connection, and that is what the serving limits count.
"""

import asyncio
import errno
import re
import socket
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc

from node.links.base import LinkServer, NotHeldError, Remote, Traffic
from protocol.errors import (
    AddressInUseError,
    LocalProtocolError,
    LockstepError,
    RemoteProtocolError,
    SettingsError,
    StorageError,
    UnavailableError,
)
from protocol.ids import Digest, short
from protocol.limits import ADDRESSES_MAX, MESSAGE_BYTES_MAX, TEXT_BYTES_MAX
from protocol.wire_pb2 import FetchRequest, OfferReply, Offers, Part
from protocol.wire_pb2_grpc import PeerServicer, PeerStub, add_PeerServicer_to_server

CHANNELS_MAX = 512
"""Open channels; the least recently used idle one is closed first. More than the peers of a busy round."""

FETCHES_SERVED_MAX = 64
"""Transfers served at once: each holds one part in memory."""

FETCHES_SERVED_PER_CONNECTION_MAX = 4
"""Transfers served at once over one connection: twice what an honest peer asks for."""

KEEPALIVE_MS = 20_000
"""A client pings a silent connection this often; also keeps the mapping of a home router alive."""

CONNECT_TIMEOUT_MS = 5_000
"""Longest wait for a connection: a few round trips around the world."""

STOP_GRACE_S = 0.2
"""Time that transfers get to end when the server stops."""

_FRAME_BYTES = 5  # gRPC's prefix of each message: a flag and a length
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_CLIENT_OPTIONS = [
    *_OPTIONS,
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 2),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.enable_http_proxy", 0),  # peers are reached directly or not at all
]
_SERVER_OPTIONS = [
    *_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.so_reuseport", 0),  # else two nodes share a port and each misses half of its calls
]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a peer may be silent, in seconds."""

    offer: float = 10.0
    """From an offer to its reply."""

    progress: float = 20.0
    """From one part to the next, on both sides: 13 KB/s at least, a poor DSL uplink shared by four."""


@dataclass(slots=True)
class _Channel:
    channel: grpc.aio.Channel
    stub: Any
    calls: int = 0


class GrpcLink:
    """A `node.links.base.Link` over gRPC.

    `listen` is "host:port", port 0 for any free one. `advertise` is what peers are told instead, where port 0 stands
    for the port that was bound."""

    def __init__(self, listen: str, advertise: tuple[str, ...] = (), timeouts: Timeouts | None = None) -> None:
        for address in (listen, *advertise):
            if not _ADDRESS.fullmatch(address):
                raise SettingsError(f"expected an address like 192.0.2.7:50701 or [::1]:50701, got {address!r}")
        if len(advertise) > ADDRESSES_MAX:
            raise SettingsError(f"expected at most {ADDRESSES_MAX} addresses to advertise, got {len(advertise)}")
        self._listen = listen
        self._advertise = advertise
        self._timeouts = timeouts or Timeouts()
        self._traffic = Traffic()
        self._channels: OrderedDict[str, _Channel] = OrderedDict()
        self._server: grpc.aio.Server | None = None

    async def start(self, server: LinkServer) -> tuple[str, ...]:
        """Listen; returns the addresses to announce. Raises `AddressInUseError` or `SettingsError`."""
        if self._server is not None:
            raise LocalProtocolError(f"expected a link that is not started, got one listening on {self._listen}")
        _check_free(self._listen)
        grpc_server = grpc.aio.server(options=_SERVER_OPTIONS)
        add_PeerServicer_to_server(_Servicer(server, self._traffic, self._timeouts), grpc_server)
        try:
            port = grpc_server.add_insecure_port(self._listen)
        except RuntimeError:  # taken since the check; gRPC does not say why
            raise AddressInUseError(f"cannot listen on {self._listen}: another process took it") from None
        await grpc_server.start()
        self._server = grpc_server
        return tuple(_with_port(address, port) for address in self._advertise or (self._listen,))

    async def stop(self) -> None:
        """End every transfer and stop listening."""
        channels, self._channels = list(self._channels.values()), OrderedDict()
        for known in channels:
            await known.channel.close(None)
        server, self._server = self._server, None
        if server is not None:
            await server.stop(STOP_GRACE_S)

    async def offer(self, to: Remote, offers: Offers) -> None:
        """Hand over offers, at the first address that answers."""
        failed = UnavailableError(f"peer {short(to.peer_id)} announced no address")
        for address in self._connected_first(to.addresses):
            try:
                async with self._stub(address) as stub, asyncio.timeout(self._timeouts.offer):
                    self._traffic.other_up += offers.ByteSize() + _FRAME_BYTES
                    await stub.Offer(offers)
                self._traffic.other_down += _FRAME_BYTES
                return
            except UnavailableError as error:
                failed = error
        raise failed

    async def fetch(self, source: Remote, digest: Digest, offset: int) -> AsyncGenerator[Part, None]:
        """The parts of a blob from `offset` on, from the first address that sends one."""
        failed = UnavailableError(f"peer {short(source.peer_id)} announced no address")
        for address in self._connected_first(source.addresses):
            answered = False
            try:
                async with self._stub(address) as stub:
                    call = stub.Fetch(FetchRequest(digest=digest, offset=offset))
                    try:
                        while (part := await self._next_part(call)) is not None:
                            answered = True
                            yield part
                    finally:
                        call.cancel()  # without effect on a call that ended by itself
                return
            except NotHeldError:
                raise
            except UnavailableError as error:
                if answered:
                    raise
                failed = error
        raise failed

    @property
    def traffic(self) -> Traffic:
        """Bytes carried so far; a copy."""
        return replace(self._traffic)

    async def _next_part(self, call: Any) -> Part | None:
        async with asyncio.timeout(self._timeouts.progress):
            part = await call.read()
        if part is grpc.aio.EOF:
            return None
        if not isinstance(part, Part):  # grpc.aio gives None for bytes that do not decode
            raise RemoteProtocolError("expected a Part of protocol/wire.proto, got bytes that do not decode")
        self._traffic.payload_down += len(part.data)
        self._traffic.other_down += part.ByteSize() + _FRAME_BYTES - len(part.data)
        return part

    def _connected_first(self, addresses: tuple[str, ...]) -> list[str]:
        return sorted(addresses[:ADDRESSES_MAX], key=lambda address: not self._is_connected(address))

    def _is_connected(self, address: str) -> bool:
        known = self._channels.get(address)
        return known is not None and known.channel.get_state() is grpc.ChannelConnectivity.READY

    @asynccontextmanager
    async def _stub(self, address: str) -> AsyncIterator[Any]:
        """The stub of the channel to an address; foreign errors of calls on it are translated here."""
        if not _ADDRESS.fullmatch(address):
            raise UnavailableError(f"expected an address like 192.0.2.7:50701, a peer announced {address[:80]!r}")
        known = self._channels.get(address)
        if known is None:
            # The scheme is spelled out so that no announced "unix:7" opens a socket file here.
            channel = grpc.aio.insecure_channel(f"dns:///{address}", options=_CLIENT_OPTIONS)
            known = self._channels[address] = _Channel(channel, PeerStub(channel))
        self._channels.move_to_end(address)
        known.calls += 1
        try:
            with _translated(address):
                yield known.stub
        finally:
            known.calls -= 1
            await self._close_idle()

    async def _close_idle(self) -> None:
        while len(self._channels) > CHANNELS_MAX:
            idle = next((address for address, known in self._channels.items() if known.calls == 0), None)
            if idle is None:
                return
            await self._channels.pop(idle).channel.close(None)


class _Servicer(PeerServicer):
    """The service Peer: counts, limits and translates, and leaves every answer to the `LinkServer`."""

    def __init__(self, server: LinkServer, traffic: Traffic, timeouts: Timeouts) -> None:
        self._server = server
        self._traffic = traffic
        self._timeouts = timeouts
        self._serving: Counter[str] = Counter()

    async def Offer(self, request: Offers, context: Any) -> OfferReply:
        """One message of offers; FAILED_PRECONDITION with the reason when they are refused."""
        self._traffic.other_down += request.ByteSize() + _FRAME_BYTES
        try:
            self._server.on_offer(request)
        except RemoteProtocolError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error)[:TEXT_BYTES_MAX])
        self._traffic.other_up += _FRAME_BYTES
        return OfferReply()

    async def Fetch(self, request: FetchRequest, context: Any) -> None:
        """The parts of a blob; RESOURCE_EXHAUSTED when too many transfers are being served."""
        self._traffic.other_down += request.ByteSize() + _FRAME_BYTES
        connection = context.peer()
        if self._serving.total() >= FETCHES_SERVED_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"busy with {FETCHES_SERVED_MAX} transfers")
        if self._serving[connection] >= FETCHES_SERVED_PER_CONNECTION_MAX:
            text = f"expected at most {FETCHES_SERVED_PER_CONNECTION_MAX} transfers at once over one connection"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._serving[connection] += 1
        try:
            await self._send_parts(request, context)
        except RemoteProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:TEXT_BYTES_MAX])
        except StorageError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error)[:TEXT_BYTES_MAX])
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the caller stopped reading")
        finally:
            self._serving[connection] -= 1
            self._serving += Counter()  # drops the zeros

    async def _send_parts(self, request: FetchRequest, context: Any) -> None:
        offset, total = request.offset, request.offset + 1
        while offset < total:
            answer = await self._server.read(request.digest, offset)
            if answer is None:
                await context.abort(grpc.StatusCode.NOT_FOUND, "not held here")
                return
            total, data = answer
            part = Part(offset=offset, total_bytes=total, data=data)
            async with asyncio.timeout(self._timeouts.progress):
                await context.write(part)
            self._traffic.payload_up += len(data)
            self._traffic.other_up += part.ByteSize() + _FRAME_BYTES - len(data)
            offset += len(data)


@contextmanager
def _translated(address: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _in_our_words(address, error) from None
    except TimeoutError:
        raise UnavailableError(f"{address} was silent for too long") from None
    except grpc.aio.UsageError as error:  # the link is being stopped
        raise UnavailableError(f"the channel to {address} is closed: {error}") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # grpc.aio raises this in the caller for a status CANCELLED, which any server may send.
        raise UnavailableError(f"{address} cancelled the call") from None


def _in_our_words(address: str, error: grpc.aio.AioRpcError) -> LockstepError:
    details = (error.details() or "no details")[:TEXT_BYTES_MAX]
    match error.code():
        case grpc.StatusCode.NOT_FOUND:
            return NotHeldError(f"{address} does not hold it")
        case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.INVALID_ARGUMENT:
            return RemoteProtocolError(f"{address} refused: {details}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            return RemoteProtocolError(f"{address}: expected messages up to {MESSAGE_BYTES_MAX} bytes: {details}")
        case code:
            return UnavailableError(f"{address}: {code.name.lower().replace('_', ' ')}: {details}")


def _check_free(listen: str) -> None:
    """Raise what keeps us from listening there: gRPC itself says only that it failed."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(f"cannot listen on {listen}: another process does; choose another port") from None
        raise SettingsError(f"cannot listen on {listen}: {error.strerror or error}") from None


def _with_port(address: str, port: int) -> str:
    host, _, announced = address.rpartition(":")
    return f"{host}:{port}" if int(announced) == 0 else address

"""Pipes over gRPC: one connection and one bidirectional call for each.

    dialler                                     acceptor
    connect, call lockstep.v1.Peer/Pipe   ->    room for one more?
                                         <-     a header: this is a pipe now, and `accept` runs
    messages                             <->    messages: plain bytes, no protobuf (`grpc_pipe`)
    goodbye, half-close                   ->
                                         <-     goodbye, status OK

HTTP/2 flow control slows a fast writer down. Either end may dial, and the call carries both ways,
so a node behind a router needs no open port. Where the run has TLS the dialler asks for the
acceptor's certificate first, over a connection of its own, and the pipe trusts this one alone; it
then proves whose key vouches for it. Keepalive pings notice a machine that vanished silently, and
keep the router's mapping alive; the listener allows them at twice the rate at which diallers send
them. A connection carries one pipe. gRPC takes connections before it calls anybody here: it counts
them by itself, closes those beyond `connections_max` and those that make no call in time.

gRPC chooses windows and buffers itself, by a probe of each connection: behind a delay of 50 and of
150 ms, 8 MB took one round trip and 10 ms. Fixed windows, longer frames and larger reads were no
faster, and without the probe it took three round trips.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from border.gate import Gate
from node.system.tls import CHANNEL_OPTIONS, Shown, fetch_certificate, server_credentials
from node.transports.base import DIAL_S, PIPE_BYTES_MAX, Accept
from node.transports.dial_guard import DialGuard
from node.transports.grpc_pipe import CLOSE_S, AcceptedPipe, DialledPipe, GrpcPipe, in_words
from protocol.addresses import split_address, with_port
from protocol.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    SettingsError,
    UnavailableError,
)
from protocol.limits import ADDRESSES_MAX, CONNECTIONS_MAX, TEXT_BYTES_MAX

_log = logging.getLogger(__name__)

PIPES_MAX = 512
"""Pipes that peers hold open to this node: more than the peers of a busy round. Each may hold some
6 MB while it is not read."""

PIPES_PER_HOST_MAX = 128
"""Pipes of these from one address: a stranger cannot take every place, and a house or a laboratory
has enough."""

KEEPALIVE_MS = 20_000
"""Pause between pings of a silent connection; home routers forget one after a minute or more."""

CERTIFICATE_S = DIAL_S / 2
"""Longest wait for a peer's certificate; the pipe takes as many round trips."""

UNUSED_MS = 10_000
"""Time after which a connection without a pipe is closed: it holds memory for nothing."""

_SERVICE, _METHOD = "lockstep.v1.Peer", "Pipe"
_TAKEN = "lockstep-pipe"  # the header by which a dialler recognises a pipe
# gRPC's bit for "not compressed": a stranger's few bytes must not become many here.
_IDENTITY_ONLY = 1
_OPTIONS = [
    ("grpc.max_send_message_length", PIPE_BYTES_MAX),
    ("grpc.max_receive_message_length", PIPE_BYTES_MAX),
    ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_CLIENT_OPTIONS = [
    *_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # else two pipes to one address share a connection
    ("grpc.enable_retries", 0),  # a broken pipe must not silently become another one
    ("grpc.enable_http_proxy", 0),  # peers are reached directly or not at all
    # A peer's name server gives addresses and no other settings.
    ("grpc.service_config_disable_resolution", 1),
]
_SERVER_OPTIONS = [
    *_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.max_concurrent_streams", 1),
    ("grpc.max_connection_idle_ms", UNUSED_MS),
    ("grpc.server_handshake_timeout_ms", UNUSED_MS),
]


class GrpcTransport:
    """A `node.transports.base.Transport` over gRPC.

    `listen` is "host:port", port 0 for any free one; "[::]:port" is every address of the machine,
    of both families. `advertise` are the addresses that peers are told instead, where port 0 stands
    for the port that was bound. `key`: the node's, which vouches for its TLS; None: plain text, as
    all nodes of such a run speak it.
    """

    kind = "grpc"

    def __init__(
        self,
        listen: str,
        advertise: tuple[str, ...] = (),
        key: Ed25519PrivateKey | None = None,
        guard: DialGuard | None = None,
        *,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`guard` says which addresses may be dialled; None: all. Peers may open `connections_max`
        connections, if that is fewer than two for each of `PIPES_MAX`.
        """
        for address in (listen, *advertise):
            if not self.dials(address):
                raise SettingsError(
                    f"expected an address like 192.0.2.7:50701 or [::1]:50701, got {address!r}"
                )
        if len(advertise) > ADDRESSES_MAX:
            raise SettingsError(
                f"expected at most {ADDRESSES_MAX} addresses to advertise, got {len(advertise)}"
            )
        self.listen = listen
        """HOST:PORT of its settings."""
        self._advertise, self._key, self._guard = advertise, key, guard
        # Half of them are connections that are being refused.
        self._connections_max = min(2 * PIPES_MAX, connections_max)
        self._gate = Gate(listen, server_credentials(key) if key else None)
        self._server: Any = None
        self._accept: Accept | None = None
        self._accepting: set[asyncio.Task[None]] = set()
        self._places: Counter[str] = Counter()  # taken by pipes that others opened, by host
        self._pipes: set[GrpcPipe] = set()
        self._channels: set[Any] = set()

    @property
    def cuts(self) -> Mapping[str, int]:
        return self._gate.cuts

    async def start(self, accept: Accept) -> tuple[str, ...]:
        if self._server:
            raise LocalProtocolError(
                f"expected a transport that is not started, got one listening on {self.listen}"
            )
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),)
        )
        port = self._gate.attach(server, self._connections_max)
        self._server, self._accept = server, accept
        await server.start()
        await self._gate.open()
        return tuple(with_port(address, port) for address in self._advertise or (self.listen,))

    async def stop(self) -> None:
        server, self._server, self._accept = self._server, None, None
        await asyncio.gather(*(pipe.close() for pipe in self._pipes))
        for channel in set(self._channels):  # of dials under way
            await self._hang_up(channel)
        for task in self._accepting:
            task.cancel()
        if self._accepting:
            await asyncio.wait(self._accepting)
        if server:
            await server.stop(CLOSE_S)
            await self._gate.close()

    def dials(self, address: str) -> bool:
        """Whether an address is HOST:PORT. A zone (`%eth0`) is refused: gRPC takes it for part of a
        URI.
        """
        try:
            split_address(address)
        except SettingsError:
            return False
        return "%" not in address

    async def dial(self, address: str) -> DialledPipe:
        if not self.dials(address):
            raise UnavailableError(
                f"expected an address like 192.0.2.7:50701, got {address[:TEXT_BYTES_MAX]!r}"
            )
        if not self._server:
            raise UnavailableError(f"cannot dial {address}: this node's links are stopped")
        began_s = asyncio.get_running_loop().time()
        if self._guard:
            address = await self._guard.checked(address)
        shown = await self._certificate(address) if self._key else None
        # The scheme is spelled out so that no announced "unix:7" opens a socket file here.
        channel = (
            grpc.aio.secure_channel(
                f"dns:///{address}",
                shown.credentials,
                options=[*_CLIENT_OPTIONS, *CHANNEL_OPTIONS],
            )
            if shown
            else grpc.aio.insecure_channel(f"dns:///{address}", options=_CLIENT_OPTIONS)
        )
        self._channels.add(channel)
        try:
            spent_s = asyncio.get_running_loop().time() - began_s
            call = await _called(channel, address, max(DIAL_S - spent_s, 1.0))
        except BaseException:
            await self._hang_up(channel)
            raise
        pipe = DialledPipe(
            call, address, lambda: self._hang_up(channel, pipe), shown.key if shown else None
        )
        self._pipes.add(pipe)
        return pipe

    async def _certificate(self, address: str) -> Shown:
        """The certificate of the peer at an address; `UnavailableError` when it has none."""
        try:
            shown = await fetch_certificate(address, CERTIFICATE_S)
        except RemoteProtocolError as error:
            raise UnavailableError(f"{address}: {error}") from None
        if shown is None:
            raise UnavailableError(
                f"{address}: expected TLS, as this run's links have it, found a server without"
            )
        return shown

    async def _hang_up(self, channel: Any, pipe: GrpcPipe | None = None) -> None:
        self._channels.discard(channel)
        if pipe:
            self._pipes.discard(pipe)
        await channel.close(None)

    async def _serve(self, _: Any, context: Any) -> None:
        """GRPC's handler of a call; it lasts as long as the pipe."""
        pipe = AcceptedPipe(context, self._gate)
        if refusal := self._refusal(pipe.host):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        self._places[pipe.host] += 1
        context.add_done_callback(lambda _: self._leave(pipe.host))
        self._pipes.add(pipe)
        try:
            await context.send_initial_metadata(((_TAKEN, ""),))
            task = asyncio.create_task(self._run(pipe))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)
            await pipe.released.wait()
        finally:
            pipe.cut("the connection was lost, or the other end died")
            self._pipes.discard(pipe)

    def _refusal(self, host: str) -> str:
        """Why there is no room for another pipe from a host; empty when there is."""
        if self._accept is None:
            return "this node is stopping"
        if self._places.total() >= PIPES_MAX:
            return f"busy with {PIPES_MAX} pipes"
        if self._places[host] >= PIPES_PER_HOST_MAX:
            return f"expected at most {PIPES_PER_HOST_MAX} pipes at once from one address"
        return ""

    def _leave(self, host: str) -> None:
        self._places[host] -= 1
        self._places += Counter()  # drops the zeros

    async def _run(self, pipe: AcceptedPipe) -> None:
        try:
            if self._accept:
                await self._accept(pipe)
        except Exception:
            _log.exception("pipe dropped", extra={"remote": pipe.remote})
        finally:
            await pipe.close()


async def _called(channel: Any, address: str, limit_s: float) -> Any:
    """A call that the other end has taken; `UnavailableError` with the reason when it does not."""
    call = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")()
    try:
        async with asyncio.timeout(limit_s):
            if _TAKEN in await call.initial_metadata():  # comes empty when the call ends without
                return call
            raise UnavailableError(
                f"{address}: {in_words(await call.code(), await call.details())}"
            )
    except TimeoutError:
        raise UnavailableError(f"{address} did not answer within {DIAL_S:g} s") from None

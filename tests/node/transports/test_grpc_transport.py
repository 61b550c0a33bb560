"""Promises of the gRPC transport: those of every transport, and what is its own."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports import grpc_transport
from node.transports.base import PIPE_BYTES_MAX, Accept, Transport
from node.transports.grpc_transport import GrpcTransport
from protocol.errors import LocalProtocolError, SettingsError, UnavailableError
from protocol.handshake import public_bytes
from protocol.limits import ADDRESSES_MAX
from tests.node.transports.conformance import (
    Close,
    Door,
    ProcessConformance,
    TransportConformance,
    echo,
)
from tests.support.waiting import until


class TestGrpcPipes(TransportConformance, ProcessConformance):
    """The common promises."""

    async def make(self, at: str | None = None) -> tuple[Transport, Close]:
        transport = GrpcTransport(at or "127.0.0.1:0")
        return transport, transport.stop


class TestSecureGrpcPipes(TransportConformance, ProcessConformance):
    """The common promises with TLS."""

    async def make(self, at: str | None = None) -> tuple[Transport, Close]:
        transport = GrpcTransport(at or "127.0.0.1:0", key=Ed25519PrivateKey.generate())
        return transport, transport.stop


async def test_with_tls_the_dialler_knows_whose_key_vouches_for_the_acceptor() -> None:
    own, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    door = Door()
    acceptor, dialler = (GrpcTransport("127.0.0.1:0", key=key) for key in (other, own))
    try:
        (address,) = await acceptor.start(door)
        await dialler.start(Door())
        pipe = await dialler.dial(address)
        assert pipe.proves(public_bytes(other)) is True
        assert pipe.proves(public_bytes(own)) is False
        accepted = await door.pipes.get()
        assert accepted.proves(public_bytes(own)) is None, "it proves itself by its words alone"
        await pipe.close()
    finally:
        await dialler.stop()
        await acceptor.stop()


async def test_a_run_with_tls_takes_no_peer_without() -> None:
    secure = GrpcTransport("127.0.0.1:0", key=Ed25519PrivateKey.generate())
    door = Door()
    async with listening(door) as (plain, plain_address):
        try:
            (secure_address,) = await secure.start(door)
            with pytest.raises(UnavailableError, match="expected TLS"):
                await secure.dial(plain_address)
            with pytest.raises(UnavailableError):
                await plain.dial(secure_address)
        finally:
            await secure.stop()
        assert door.pipes.empty()


@pytest.mark.parametrize(
    "case",
    [
        name
        for name, case in vars(TransportConformance).items()
        if name[:5] == "test_" and not vars(case)
    ],
)
def test_the_same_on_the_loop_that_nodes_run_on(case: str) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(getattr(TestGrpcPipes(), case)())


@asynccontextmanager
async def listening(
    accept: Accept, listen: str = "127.0.0.1:0"
) -> AsyncIterator[tuple[GrpcTransport, str]]:
    """(a transport that listens, its address)."""
    transport = GrpcTransport(listen)
    try:
        yield transport, (await transport.start(accept))[0]
    finally:
        await transport.stop()


@asynccontextmanager
async def stranger(address: str, **options: Any) -> AsyncIterator[Any]:
    """What makes calls as a program that is not ours would, over one connection."""
    async with grpc.aio.insecure_channel(address, **options) as channel:
        yield channel.stream_stream("/lockstep.v1.Peer/Pipe")


def taken(transport: GrpcTransport, places: int) -> bool:
    return transport._places.total() == places


async def test_a_pipe_that_ends_without_a_goodbye_is_broken_not_closed() -> None:
    door = Door()
    async with listening(door) as (_, address), stranger(address) as call:
        for end in ("cancel", "half-close"):
            stream = call()
            await stream.write(b"x")
            pipe = await door.pipes.get()
            assert await pipe.read() == b"x"
            if end == "cancel":
                stream.cancel()
            else:
                await stream.done_writing()
            with pytest.raises(UnavailableError, match="lost"):
                await pipe.read()
            with pytest.raises(UnavailableError):
                await pipe.write(b"x")
            await pipe.close()


async def test_a_message_that_is_too_long_breaks_the_pipe() -> None:
    door = Door()
    async with listening(door) as (_, address), stranger(address) as call:
        stream = call()
        writing = asyncio.create_task(stream.write(bytes(PIPE_BYTES_MAX + 1)))
        with pytest.raises(UnavailableError):
            await (await door.pipes.get()).read()
        stream.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def test_compression_is_refused() -> None:
    door = Door()
    async with (
        listening(door) as (_, address),
        stranger(address, compression=grpc.Compression.Gzip) as call,
    ):
        assert await call().code() is grpc.StatusCode.UNIMPLEMENTED
        assert door.pipes.empty()


async def test_one_connection_carries_one_pipe_at_a_time() -> None:
    door = Door()
    async with listening(door) as (_, address), stranger(address) as call:
        first = call()
        await first.initial_metadata()
        second = call()
        await first.write(b"x")
        assert await (await door.pipes.get()).read() == b"x"
        assert door.pipes.empty()
        first.cancel()
        await second.initial_metadata()
        assert not second.done()


async def test_pipes_are_bounded_in_all_and_by_address_and_places_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, reason in (
        ("PIPES_MAX", "busy with 2 pipes"),
        ("PIPES_PER_HOST_MAX", "at most 2 pipes at once"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(grpc_transport, name, 2)
            async with listening(Door()) as (listener, address), listening(Door()) as (dialler, _):
                pipes = [await dialler.dial(address) for _ in range(2)]
                with pytest.raises(UnavailableError, match=f"resource exhausted: .*{reason}"):
                    await dialler.dial(address)
                await pipes[0].close()
                await until(partial(taken, listener, 1))
                await dialler.dial(address)
                for pipe in pipes[1:]:
                    await pipe.write(b"still here")


async def test_a_listener_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_transport, "DIAL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with listening(Door()) as (dialler, _):
            with pytest.raises(UnavailableError, match=r"did not answer within 0\.2 s"):
                await dialler.dial(f"127.0.0.1:{silent.getsockname()[1]}")


async def test_connections_are_bounded_before_any_call_and_a_peer_finds_a_place() -> None:
    """Strangers only open HTTP/2, and gRPC calls nobody here."""
    transport = GrpcTransport("127.0.0.1:0", connections_max=4)
    (address,) = await transport.start(echo)
    idle = [await _opens_http2(address) for _ in range(12)]
    async with asyncio.timeout(20):
        ends = [asyncio.create_task(_ended(reader)) for reader, _ in idle]
        await until(lambda: sum(end.done() for end in ends) >= 10)
        pipe = await transport.dial(address)
        await pipe.write(b"x")
        assert await pipe.read() == b"x"
    await transport.stop()
    for _, writer in idle:
        writer.close()


async def _opens_http2(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
    return reader, writer


async def _ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1024):
            pass


async def test_a_stop_ends_a_dial_under_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with listening(Door()) as (dialler, _):
            dialling = asyncio.create_task(dialler.dial(f"127.0.0.1:{silent.getsockname()[1]}"))
            await until(lambda: dialler._channels)
            await dialler.stop()
            with pytest.raises(UnavailableError):
                await dialling
            with pytest.raises(UnavailableError, match="stopped"):
                await dialler.dial("127.0.0.1:1")


async def test_a_server_that_is_no_peer_is_unavailable() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with listening(Door()) as (dialler, _):
        with pytest.raises(UnavailableError, match="unimplemented"):
            await dialler.dial(f"127.0.0.1:{port}")
    await server.stop(None)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_one_listener_serves_both_families() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    async with (
        listening(echo, "[::]:0") as (_, address),
        listening(Door(), "[::1]:0") as (dialler, own),
    ):
        port = address.rpartition(":")[2]
        for target in (f"127.0.0.1:{port}", f"[::1]:{port}", f"localhost:{port}"):
            pipe = await dialler.dial(target)
            await pipe.write(b"x")
            assert await pipe.read() == b"x"
        assert own.startswith("[::1]:")


async def test_advertised_addresses_are_announced_with_the_bound_port() -> None:
    transport = GrpcTransport("127.0.0.1:0", ("203.0.113.7:0", "example.org:443"))
    first, second = await transport.start(Door())
    assert first.startswith("203.0.113.7:")
    assert not first.endswith(":0")
    assert second == "example.org:443"
    await transport.stop()


def test_addresses_of_another_form_are_refused_as_settings() -> None:
    for address in ("127.0.0.1", "127.0.0.1:65536", "unix:///x", "/ip4/127.0.0.1/tcp/1", ""):
        with pytest.raises(SettingsError, match="expected an address like"):
            GrpcTransport(address)
        with pytest.raises(SettingsError, match="expected an address like"):
            GrpcTransport("127.0.0.1:0", (address,))
    with pytest.raises(SettingsError, match=f"at most {ADDRESSES_MAX} addresses"):
        GrpcTransport("127.0.0.1:0", ("127.0.0.1:1",) * (ADDRESSES_MAX + 1))


async def test_misuse_is_named() -> None:
    async with listening(Door()) as (one, address):
        with pytest.raises(LocalProtocolError, match="not started"):
            await one.start(Door())
        pipe = await one.dial(address)
        with pytest.raises(LocalProtocolError, match=f"at most {PIPE_BYTES_MAX} bytes"):
            await pipe.write(bytes(PIPE_BYTES_MAX + 1))
    with pytest.raises(SettingsError, match="cannot listen"):
        await GrpcTransport("192.0.2.1:0").start(Door())

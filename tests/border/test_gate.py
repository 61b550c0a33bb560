"""The gate with real sockets, in front of a gRPC server and of one that only listens."""

import asyncio
import contextlib
import errno
import gc
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from border import farewell, memory
from border import gate as gate_module
from border import lane as lane_module
from border.crowd import UNPROVEN_MS, UNUSED_BYTES_MAX, Crowd
from border.farewell import ALERT
from border.gate import Gate
from border.memory import CROWDED, LOOKS, Memory
from node.system.tls import ask_certificate, fetch_certificate, server_credentials
from protocol.channel import SERVER_OPTIONS
from protocol.errors import AddressInUseError, SettingsError, StorageError, UnavailableError
from tests.coordinator.client import COORDINATOR_KEY
from tests.processes.siege.frames import OPENING, begun
from tests.support.waiting import until

PLACES = 100
MIB = 1024 * 1024


class Behind:
    """What gRPC calls behind a gate."""

    def __init__(self, credentials: Any) -> None:
        self.gate = Gate("127.0.0.1:0", credentials)
        self.port = 0
        self.hosts: list[str] = []
        self.proves = True

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.hosts.append(self.gate.remote(context.peer()))
        self.gate.hear(context.peer())
        if self.proves:
            self.gate.prove(context.peer())
        return request

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def serving(credentials: Any = None) -> AsyncIterator[Behind]:
    behind = Behind(credentials)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(behind.echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a", {"b": handler}),))
    behind.port = behind.gate.attach(server, PLACES)
    await server.start()
    await behind.gate.open()
    try:
        yield behind
    finally:
        await server.stop(0)
        await behind.gate.close()


@asynccontextmanager
async def caller(address: str) -> AsyncIterator[Any]:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield channel.unary_unary("/a/b")


async def stranger(behind: Behind, told: bytes) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", behind.port)
    writer.write(told)
    return writer


async def closed(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(1024):
            pass
    except ConnectionError:
        pass


async def test_a_service_learns_who_is_behind_a_call() -> None:
    async with serving() as behind, caller(behind.address) as ask:
        assert await ask(b"x") == b"x"
        assert [host.rpartition(":")[0] for host in behind.hosts] == ["ipv4:127.0.0.1"]
        assert behind.gate.remote("unix:/no/such/peer") == ""


@pytest.mark.parametrize("local", ["unix", "loopback"])
async def test_long_messages_of_a_proven_connection_pass_both_ways(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if local == "loopback":  # as on Windows
        monkeypatch.setattr(lane_module, "UNIX_SOCKETS", False)
    async with serving() as behind, caller(behind.address) as ask:
        await ask(b"")
        assert await ask(b"x" * (4 * MIB - 64)) == b"x" * (4 * MIB - 64)
        assert behind.gate.crowd.unproven == 0


async def test_an_unproven_connection_makes_many_small_calls_and_sends_no_long_message() -> None:
    async with serving() as behind, caller(behind.address) as ask:
        behind.proves = False
        for _ in range(200):
            await ask(b"x" * 64)
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE"):
            await ask(b"x" * MIB, timeout=0.3)
        behind.proves = True
        assert len(behind.gate.crowd) == 1, "expected it to wait, and not to be cut"


async def test_half_a_message_takes_no_more_than_its_room() -> None:
    async with serving() as behind:
        half = OPENING + begun("/lockstep.v1.Coordinator/GetRun", 1)
        writer = await stranger(behind, half + bytes(MIB))
        await until(lambda: behind.gate.crowd.bytes >= UNUSED_BYTES_MAX)
        assert behind.gate.crowd.bytes < UNUSED_BYTES_MAX + 2048
        writer.transport.abort()


async def test_the_oldest_makes_room_and_a_caller_is_let_in() -> None:
    async with serving() as behind:
        idle = [await stranger(behind, OPENING) for _ in range(2 * PLACES)]
        async with caller(behind.address) as ask:
            assert await ask(b"x") == b"x"
        assert behind.gate.crowd.cuts["place"] >= PLACES
        for writer in idle:
            writer.transport.abort()


async def test_a_silent_connection_is_cut_when_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed_ms = 0
    monkeypatch.setattr(gate_module, "_now_ms", lambda: passed_ms)
    monkeypatch.setattr(gate_module, "LOOK_MS", 10)
    async with serving() as behind:
        reader, writer = await asyncio.open_connection("127.0.0.1", behind.port)
        await until(lambda: len(behind.gate.crowd) == 1)
        passed_ms = UNPROVEN_MS
        await closed(reader)
        assert behind.gate.cuts["time"] == 1
        writer.close()


async def test_a_caller_that_is_not_let_in_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crowd, "come", lambda crowd, number, host, now_ms: [number])
    async with serving() as behind:
        reader, writer = await asyncio.open_connection("127.0.0.1", behind.port)
        assert farewell.CROWDED.encode() in await reader.read()
        writer.close()
        heard = list[str]()
        while not any(farewell.CROWDED in each for each in heard):
            async with caller(behind.address) as ask:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await ask(b"x")  # may not read it, where it still writes when it is closed
            heard.append(str(refused.value))
    async with serving(server_credentials(COORDINATOR_KEY)) as behind:
        for _ in range(20):
            with pytest.raises(UnavailableError, match="crowded"):
                await fetch_certificate(behind.address, 5)
        with pytest.raises(UnavailableError, match="crowded"):
            await asyncio.to_thread(ask_certificate, behind.address, 5)


async def test_who_makes_room_before_it_was_answered_is_told_so() -> None:
    async with serving(server_credentials(COORDINATOR_KEY)) as behind:
        reader, writer = await asyncio.open_connection("127.0.0.1", behind.port)
        await until(lambda: behind.gate.crowd.unproven == 1)
        behind.gate.cut(behind.gate.crowd.late(2**60))
        assert await reader.read() == ALERT
        writer.close()


async def test_memory_is_given_back_when_a_crowd_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[int]()
    monkeypatch.setattr(memory, "give_back_freed_memory", lambda: given.append(1))
    kept = Memory()
    for unproven in (0, CROWDED - 1, CROWDED, CROWDED, *[0] * 20):
        kept.look(unproven)
    assert len(given) == LOOKS


async def test_a_gate_at_a_port_that_is_taken_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressInUseError, match="belongs to another process"):
            Gate(address).attach(None, PLACES)
    with pytest.raises(SettingsError, match="cannot listen"):
        Gate("192.0.2.1:0").attach(None, PLACES)


@pytest.mark.parametrize(("place", "words"), [("no", "set TMPDIR to"), ("x" * 90, "shorter path")])
async def test_a_place_where_no_local_socket_can_be_is_named(
    place: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"/{place}")
    gate = Gate("127.0.0.1:0")
    with pytest.raises(StorageError, match=words):
        gate.attach(None, PLACES)
    await gate.close()


async def test_nothing_is_left_of_a_gate() -> None:
    async with serving() as behind, caller(behind.address) as ask:
        await ask(b"x")
        lane = behind.gate._lane
        assert lane
        assert lane._directory
        assert list(lane._directory.iterdir()) != []
    await behind.gate.close()
    assert not lane._directory.exists()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", behind.port)


async def test_connections_that_come_while_it_closes_leave_nothing_open() -> None:
    """Asyncio loses what a server took in the turn of the loop in which it is closed."""
    for turns in range(5):
        gate, server = Gate("127.0.0.1:0"), grpc.aio.server()
        port = gate.attach(server, 100)
        await server.start()
        await gate.open()
        with contextlib.ExitStack() as callers:
            for _ in range(20):
                caller = callers.enter_context(socket.socket())
                caller.setblocking(False)
                assert caller.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS)
            for _ in range(turns):
                await asyncio.sleep(0)
            await gate.close()
        await server.stop(0)
        gc.collect()  # what is open warns, and warnings are errors

"""The benchmark of links measures what it says: bytes that all arrive, over a way as long as it was
asked to be.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.benchmarks.links import measure
from tests.benchmarks.links.carriers import port_of, through
from tests.benchmarks.links.delay import HELD_BYTES_MAX, Relay, Way, delayed

ROUND_TRIP_MS = 80


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def far(serve: Serve, round_trip_ms: float) -> AsyncIterator[Streams]:
    """A connection to a server at that distance."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        writer.close()
        await writer.wait_closed()
        over.set()

    over = asyncio.Event()
    async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
        relay = Relay(server.sockets[0].getsockname()[1], round_trip_ms / 2000)
        reader, writer = await asyncio.open_connection("127.0.0.1", await relay.start())
        yield reader, writer
        writer.close()
        await writer.wait_closed()
        await over.wait()
        await relay.stop()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def test_a_longer_way_keeps_every_byte_in_order_takes_its_time_and_ends() -> None:
    async with far(echo, ROUND_TRIP_MS) as (reader, writer):
        for _ in range(2):
            started = time.monotonic()
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            assert time.monotonic() - started >= ROUND_TRIP_MS / 1000
        data = bytes(range(256)) * 16384
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.write_eof()
        assert await reader.read() == b""


async def test_a_reader_that_stops_holds_up_the_sender_and_loses_nothing() -> None:
    size, go = HELD_BYTES_MAX + 32 * 1024 * 1024, asyncio.Event()
    arrived = asyncio.get_running_loop().create_future()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        arrived.set_result(len(await reader.read(-1)))

    async with far(slow, 2) as (_, writer):
        writer.write(bytes(size))
        draining = asyncio.create_task(writer.drain())
        done, _ = await asyncio.wait({draining}, timeout=1.0)
        assert not done
        go.set()
        await draining
        writer.write_eof()
        assert await arrived == size


async def test_an_end_that_takes_bytes_again_is_closed_only_after_its_own_write() -> None:
    closed = asyncio.Event()
    near, far = Way(0), Way(0)
    near.join(far)
    far.join(near)
    far.connection_made(Closing(closed))
    far.pause_writing()
    near.connection_lost(None)
    await asyncio.sleep(0.01)
    assert not closed.is_set()  # what is held waits for the pause
    far.resume_writing()
    assert not closed.is_set()
    await closed.wait()


class Closing(asyncio.Transport):
    """Tells that it is closed."""

    def __init__(self, closed: asyncio.Event) -> None:
        super().__init__()
        self._closed = closed

    def is_closing(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()


async def test_a_relay_to_a_closed_port_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    relay = Relay(port, 0.001)
    reader, writer = await asyncio.open_connection("127.0.0.1", await relay.start())
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    await relay.stop()


async def test_an_end_that_closed_by_itself_may_be_cut() -> None:
    loop, accepted, size = asyncio.get_running_loop(), asyncio.Queue[Streams](), 32 * 1024 * 1024
    async with await asyncio.start_server(
        lambda *streams: accepted.put(streams), "127.0.0.1", 0
    ) as server:
        address = server.sockets[0].getsockname()
        transport, way = await loop.create_connection(lambda: Way(0), *address)
        reader, writer = await accepted.get()
        transport.write(bytes(size))
        transport.close()  # with bytes still to go
        assert len(await reader.read(-1)) == size
        await way.lost.wait()
        way.cut()
        writer.close()


def test_no_distance_is_no_relay() -> None:
    with delayed([1, 2], 0) as ports:
        assert ports == [1, 2]


def test_an_address_of_either_form_leads_through_another_port() -> None:
    for address, far in (
        ("127.0.0.1:50701", "127.0.0.1:9"),
        ("/ip4/127.0.0.1/tcp/50701/p2p/12D3Koo", "/ip4/127.0.0.1/tcp/9/p2p/12D3Koo"),
        ("ab12@127.0.0.1:50701", "ab12@127.0.0.1:9"),
    ):
        assert port_of(address) == 50701
        assert through(address, 9) == far


def test_a_kind_is_measured_at_a_distance() -> None:
    row = measure.measure("grpc", ROUND_TRIP_MS, repeats=2, nodes=3)
    assert row["small_call_ms"]["least"] >= 0.95 * ROUND_TRIP_MS  # clocks round
    assert row["all_gather_ms"]["least"] >= 0.95 * ROUND_TRIP_MS  # clocks round
    for size, rate in row["stream_mb_per_s"].items():
        assert 0 < rate["median"] <= int(size) / (0.95 * ROUND_TRIP_MS) * 1000
    assert row["cpu_ms_per_mb"] > 0


def test_ratios_are_above_one_where_the_baseline_is_worse() -> None:
    def row(kind: str, milliseconds: float, rate: float) -> dict[str, object]:
        times = {"median": milliseconds}
        return {
            "kind": kind,
            "round_trip_ms": 0,
            "small_call_ms": times,
            "all_gather_ms": times,
            "stream_mb_per_s": {"8": {"median": rate}},
            "cpu_ms_per_mb": milliseconds,
        }

    (ratio,) = measure.ratios([row("grpc", 1, 300), row("hivemind", 4, 100)])
    assert ratio == {
        "kind": "grpc",
        "round_trip_ms": 0,
        "small_call_ms": 4,
        "all_gather_ms": 4,
        "stream_mb_per_s": {"8": 3},
        "cpu_ms_per_mb": 4,
    }

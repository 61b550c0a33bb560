"""Promises of the gRPC link, on loopback: what it carries, what it refuses, and what its errors are called."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import pytest

from node.links import grpc as grpc_link
from node.links.base import LinkServer, NotHeldError, Remote
from node.links.grpc import GrpcLink, Timeouts
from protocol.errors import AddressInUseError, RemoteProtocolError, SettingsError, StorageError, UnavailableError
from protocol.ids import Digest, PeerId, sha256
from protocol.limits import MESSAGE_BYTES_MAX, PART_BYTES
from protocol.wire_pb2 import OfferedPayload, Offers, Part

PEER = PeerId("0" * 32)
SHORT = Timeouts(offer=0.3, progress=0.3)
BLOB = bytes(range(256)) * (PART_BYTES // 256) * 3 + b"rest"
DIGEST = sha256(BLOB)


class Shelf:
    """A server with one blob; the rest of what a test needs is set on it."""

    def __init__(self) -> None:
        self.offers: list[Offers] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.reads: asyncio.Queue[int] = asyncio.Queue()

    def on_offer(self, offers: Offers) -> None:
        if self.error:
            raise self.error
        self.offers.append(offers)

    async def read(self, digest: bytes, offset: int) -> tuple[int, bytes] | None:
        self.reads.put_nowait(offset)
        if self.error:
            raise self.error
        if self.gate:
            await self.gate.wait()
        return (len(BLOB), BLOB[offset : offset + PART_BYTES]) if digest == DIGEST else None


@asynccontextmanager
async def pair(server: LinkServer, timeouts: Timeouts = SHORT) -> AsyncIterator[tuple[GrpcLink, GrpcLink, Remote]]:
    """(calling link, serving link, the server as the caller sees it)."""
    caller, serving = GrpcLink("127.0.0.1:0", timeouts=timeouts), GrpcLink("127.0.0.1:0", timeouts=timeouts)
    addresses = await serving.start(server)
    try:
        yield caller, serving, Remote(PEER, addresses)
    finally:
        await caller.stop()
        await serving.stop()


async def fetched(link: GrpcLink, source: Remote, digest: Digest = DIGEST, offset: int = 0) -> list[Part]:
    async with aclosing(link.fetch(source, digest, offset)) as parts:
        return [part async for part in parts]


async def test_a_blob_arrives_in_parts_from_any_offset_and_every_byte_is_counted() -> None:
    async with pair(Shelf()) as (caller, serving, remote):
        parts = await fetched(caller, remote)
        assert b"".join(part.data for part in parts) == BLOB
        assert [part.offset for part in parts] == [0, PART_BYTES, 2 * PART_BYTES, 3 * PART_BYTES]
        assert {part.total_bytes for part in parts} == {len(BLOB)}
        rest = await fetched(caller, remote, offset=3 * PART_BYTES)
        assert b"".join(part.data for part in rest) == b"rest"
        down, up = caller.traffic, serving.traffic
        assert down.payload_down == up.payload_up == len(BLOB) + len(b"rest")
        assert 0 < down.other_down == up.other_up < 200
        assert (down.payload_up, down.other_up) == (0, 0)


async def test_offers_arrive_and_a_refusal_says_why() -> None:
    shelf, offers = Shelf(), Offers(run_id="r", sender=PEER, offers=[OfferedPayload(round=3, payload_bytes=7)])
    async with pair(shelf) as (caller, serving, remote):
        await caller.offer(remote, offers)
        assert shelf.offers == [offers]
        assert caller.traffic.other_up == serving.traffic.other_down > offers.ByteSize()
        shelf.error = RemoteProtocolError("expected round 3, got 99")
        with pytest.raises(RemoteProtocolError, match="refused: expected round 3, got 99"):
            await caller.offer(remote, offers)


async def test_a_blob_that_is_not_held_has_its_own_error() -> None:
    async with pair(Shelf()) as (caller, _, remote):
        with pytest.raises(NotHeldError):
            await fetched(caller, remote, sha256(b"other"))


async def test_a_fetch_that_makes_no_sense_or_meets_a_broken_disk_says_so() -> None:
    shelf = Shelf()
    async with pair(shelf) as (caller, _, remote):
        shelf.error = RemoteProtocolError("expected an offset below 5")
        with pytest.raises(RemoteProtocolError, match="expected an offset below 5"):
            await fetched(caller, remote)
        shelf.error = StorageError("cannot read")
        with pytest.raises(UnavailableError, match="cannot read"):
            await fetched(caller, remote)


async def test_a_peer_that_is_not_there_or_announced_nothing_is_unavailable() -> None:
    link = GrpcLink("127.0.0.1:0", timeouts=SHORT)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
        for addresses in ((dead,), (), ("unix:7",), ("unix:///run/x.sock",), ("nonsense",)):
            with pytest.raises(UnavailableError):
                await link.offer(Remote(PEER, addresses), Offers())
            with pytest.raises(UnavailableError):
                await fetched(link, Remote(PEER, addresses))
    await link.stop()


async def test_the_next_address_is_tried_when_the_first_does_not_answer() -> None:
    shelf = Shelf()
    async with pair(shelf) as (caller, _, remote):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            both = Remote(PEER, (f"127.0.0.1:{unused.getsockname()[1]}", *remote.addresses))
            await caller.offer(both, Offers())
            assert b"".join(part.data for part in await fetched(caller, both)) == BLOB
        assert caller._connected_first(both.addresses)[0] == remote.addresses[0]


async def test_a_silent_server_is_unavailable_after_the_progress_timeout() -> None:
    shelf = Shelf()
    shelf.gate = asyncio.Event()
    async with pair(shelf) as (caller, _, remote):
        with pytest.raises(UnavailableError, match="silent for too long"):
            await fetched(caller, remote)
        shelf.gate.set()
        assert len(await fetched(caller, remote)) == 4


async def test_transfers_over_one_connection_are_bounded_and_places_come_back() -> None:
    shelf = Shelf()
    shelf.gate = asyncio.Event()
    async with pair(shelf, Timeouts()) as (caller, _, remote):
        places = grpc_link.FETCHES_SERVED_PER_CONNECTION_MAX
        served = [asyncio.create_task(fetched(caller, remote)) for _ in range(places)]
        for _ in served:
            await shelf.reads.get()
        with pytest.raises(UnavailableError, match=f"at most {places} transfers"):
            await fetched(caller, remote)
        shelf.gate.set()
        assert [len(parts) for parts in await asyncio.gather(*served)] == [4] * places
        assert len(await fetched(caller, remote)) == 4


async def test_all_transfers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_link, "FETCHES_SERVED_MAX", 0)
    async with pair(Shelf()) as (caller, _, remote):
        with pytest.raises(UnavailableError, match="busy"):
            await fetched(caller, remote)


async def test_idle_channels_beyond_the_bound_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_link, "CHANNELS_MAX", 1)
    async with pair(Shelf()) as (caller, _, one), pair(Shelf()) as (_, _, two):
        for remote in (one, two, one):
            assert len(await fetched(caller, remote)) == 4
            assert list(caller._channels) == list(remote.addresses)


async def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressInUseError, match=address):
            await GrpcLink(address).start(Shelf())


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", "unix:/tmp/x", ":80", "a b:1"])
def test_an_address_that_is_none_is_a_settings_error(address: str) -> None:
    with pytest.raises(SettingsError, match="expected an address"):
        GrpcLink(address)


async def test_an_address_of_another_machine_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match=r"cannot listen on 192\.0\.2\.1:0"):
        await GrpcLink("192.0.2.1:0").start(Shelf())


async def test_advertised_addresses_are_announced_instead_with_the_bound_port_for_zero() -> None:
    link = GrpcLink("127.0.0.1:0", advertise=("node.example:0", "203.0.113.9:7000"))
    first, second = await link.start(Shelf())
    assert first.startswith("node.example:")
    assert int(first.rpartition(":")[2]) > 0
    assert second == "203.0.113.9:7000"
    await link.stop()


async def test_stopping_ends_transfers_and_may_be_done_twice() -> None:
    shelf = Shelf()
    shelf.gate = asyncio.Event()
    async with pair(shelf, Timeouts()) as (caller, serving, remote):
        transfer = asyncio.create_task(fetched(caller, remote))
        await shelf.reads.get()
        await serving.stop()
        await serving.stop()
        with pytest.raises(UnavailableError):
            await transfer


# ---- servers that do not follow the protocol

Handler = Callable[[Any, Any], Awaitable[None]]


@asynccontextmanager
async def hostile(handler: Handler) -> AsyncIterator[tuple[GrpcLink, Remote]]:
    """A link and a server whose Fetch sends raw bytes by `handler`."""
    method = grpc.unary_stream_rpc_method_handler(handler)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lockstep.v1.Peer", {"Fetch": method}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    link = GrpcLink("127.0.0.1:0", timeouts=SHORT)
    try:
        yield link, Remote(PEER, (address,))
    finally:
        await link.stop()
        await server.stop(None)


async def test_a_message_above_the_cap_is_the_peers_fault() -> None:
    async def oversize(_: Any, context: Any) -> None:
        await context.write(bytes(MESSAGE_BYTES_MAX + 1))

    async with hostile(oversize) as (link, remote):
        with pytest.raises(RemoteProtocolError, match="larger than max"):
            await fetched(link, remote)


async def test_bytes_that_are_no_message_are_the_peers_fault() -> None:
    async def garbage(_: Any, context: Any) -> None:
        await context.write(b"\xff" * 100)

    async with hostile(garbage) as (link, remote):
        with pytest.raises(RemoteProtocolError, match="do not decode"):
            await fetched(link, remote)


async def test_a_status_cancelled_from_a_server_does_not_look_like_our_own_cancellation() -> None:
    async def cancels(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.CANCELLED, "just so")

    async with hostile(cancels) as (link, remote):
        with pytest.raises(UnavailableError, match="cancel"):
            await fetched(link, remote)


async def test_our_own_cancellation_stays_one() -> None:
    called = asyncio.Event()

    async def silent(_: Any, context: Any) -> None:
        called.set()
        await asyncio.Event().wait()

    async with hostile(silent) as (link, remote):
        transfer = asyncio.create_task(fetched(link, remote))
        await called.wait()
        transfer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await transfer

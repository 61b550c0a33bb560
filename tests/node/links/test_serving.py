"""The uploads of one link, in virtual time: turns, acknowledgements, limits, and refusals."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from node.links.frames import PART_BYTES_MAX
from node.links.network import NotHeldError, Purpose
from node.links.protocol import LinkProtocol
from node.links.protocol_events import Cancelled, Event, FetchRequested, Refused
from node.links.serving import ACKNOWLEDGE_S, SERVED_BYTES_MIN, Serving
from node.links.uplink import Uplink
from node.links.window import WINDOW_BYTES_MAX
from node.system.rate_limit import rate_bucket
from protocol.errors import RemoteProtocolError, StorageError, UnavailableError
from protocol.ids import Digest, PeerId, sha256
from protocol.wire_pb2 import Refusal
from tests.node.links.test_protocol import PEERS, exchange, linked
from tests.support.virtual_time import loop_ms, virtually

BLOB = bytes(range(256)) * 2048
DIGEST = sha256(BLOB)


class Owner:
    """The node that serves; it holds one blob. `reads` are (offset, count), in order."""

    def __init__(self, peer_limit: int | None = None) -> None:
        self.server: Any = self
        self.uplink = Uplink(None, loop_ms)
        self.clock_ms: Callable[[], int] = loop_ms
        self.peer_limit = peer_limit
        self.blob: bytes | None = BLOB
        self.fails: Exception | None = None
        self.reads: list[tuple[int, int]] = []
        self.served: list[tuple[PeerId, Digest]] = []
        self.left = 0

    async def read(self, digest: Digest, offset: int, count: int) -> tuple[int, bytes] | None:
        assert digest == DIGEST
        self.reads.append((offset, count))
        if self.fails:
            raise self.fails
        return self.blob and (len(self.blob), self.blob[offset : offset + count])

    def purpose(self, digest: Digest) -> Purpose:
        return Purpose.CATCH_UP

    def on_part(self, peer: PeerId, digest: Digest, count: int, size: int) -> None:
        self.left += count

    def on_served(self, peer: PeerId, digest: Digest) -> None:
        self.served.append((peer, digest))


class Bench:
    """A serving end, the end that fetches, and what that end has heard."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.fetcher, self.protocol = linked()
        self.ends = 0
        self.wakes = 0
        self.serving = Serving(self.protocol, owner, self._wake, self._end)
        self.heard: list[Event] = []

    def _wake(self) -> None:
        self.wakes += 1

    def _end(self) -> None:
        self.ends += 1

    def ask(self, tasks: asyncio.TaskGroup, offset: int = 0, count: int = 0) -> int:
        """The other end fetches; returns the number of its fetch."""
        request = self.fetcher.fetch(DIGEST, offset, count)
        self.carry(tasks)
        return request

    def carry(self, tasks: asyncio.TaskGroup) -> None:
        """Bring what both ends have to say across; what was received is taken at once."""
        at_fetcher, at_server = exchange(self.fetcher, self.protocol, loop_ms())
        for event in at_fetcher:
            if data := getattr(event, "data", b""):
                self.fetcher.taken(len(data), loop_ms())
        self.heard += at_fetcher
        for event in at_server:
            if isinstance(event, FetchRequested):
                self.serving.start(event, tasks)
            elif isinstance(event, Cancelled):
                self.serving.cancel(event)
        self.serving.on_received()

    async def until_ended(self, tasks: asyncio.TaskGroup, count: int = 1) -> None:
        while self.ends < count:
            await asyncio.sleep(0.01)
            self.carry(tasks)
        self.carry(tasks)

    @property
    def received(self) -> bytes:
        return b"".join(getattr(event, "data", b"") for event in self.heard)

    @property
    def refusals(self) -> list[tuple[int, str]]:
        return [(event.code, event.reason) for event in self.heard if isinstance(event, Refused)]


def serves(
    use: Callable[[Bench, asyncio.TaskGroup], Coroutine[Any, Any, None]], owner: Owner | None = None
) -> Bench:
    async def main() -> Bench:
        bench = Bench(owner or Owner())
        async with asyncio.TaskGroup() as tasks:
            await use(bench, tasks)
        return bench

    return virtually(main())


async def whole(bench: Bench, tasks: asyncio.TaskGroup) -> None:
    bench.ask(tasks)
    await bench.until_ended(tasks)


def test_a_blob_arrives_whole_and_the_node_hears_that_it_was_taken() -> None:
    bench = serves(whole)
    assert bench.received == BLOB
    assert bench.owner.served == [(PEERS[0], DIGEST)]
    assert bench.owner.left == len(BLOB)
    assert not bench.serving.busy
    assert max(count for _, count in bench.owner.reads) <= PART_BYTES_MAX


def test_a_range_that_ends_before_the_blob_does_is_no_taken_blob() -> None:
    async def part(bench: Bench, tasks: asyncio.TaskGroup) -> None:
        bench.ask(tasks, 1000, 5000)
        await bench.until_ended(tasks)

    bench = serves(part)
    assert bench.received == BLOB[1000:6000]
    assert bench.owner.served == []
    assert bench.owner.left == 5000


@pytest.mark.parametrize(
    ("fails", "code"),
    [
        (RemoteProtocolError("beyond the end"), Refusal.BAD_REQUEST),
        (StorageError("the disk is broken"), Refusal.BUSY),
        (NotHeldError("evicted"), Refusal.BUSY),
    ],
)
def test_a_blob_that_cannot_be_read_is_refused_with_the_reason(fails: Exception, code: int) -> None:
    owner = Owner()
    owner.fails = fails
    assert serves(whole, owner).refusals == [(code, str(fails))]


def test_a_blob_that_is_not_held_is_refused_as_such() -> None:
    owner = Owner()
    owner.blob = None
    assert serves(whole, owner).refusals == [(Refusal.NOT_HELD, "not held here")]


def test_a_blob_that_goes_in_the_middle_ends_its_fetch_with_words() -> None:
    async def vanishes(bench: Bench, tasks: asyncio.TaskGroup) -> None:
        bench.ask(tasks)
        while not bench.received:
            await asyncio.sleep(0.01)
            bench.carry(tasks)
        bench.owner.blob = None
        await bench.until_ended(tasks)

    bench = serves(vanishes)
    assert 0 < len(bench.received) < len(BLOB)
    assert bench.refusals == [(Refusal.BUSY, "gone in the meantime")]


def test_a_peer_that_acknowledges_nothing_loses_its_place() -> None:
    waited_ms = list[int]()

    async def silent(bench: Bench, tasks: asyncio.TaskGroup) -> None:
        bench.ask(tasks)
        while bench.serving.busy:
            waited_ms.append(loop_ms())
            await asyncio.sleep(1)

    with pytest.raises(ExceptionGroup) as error:
        serves(silent)
    assert error.group_contains(UnavailableError, match=f"nothing for {ACKNOWLEDGE_S} s")
    assert waited_ms[-1] >= 1000 * (ACKNOWLEDGE_S - 1)


def test_no_more_leaves_than_the_window_holds_until_something_is_acknowledged() -> None:
    async def mute(bench: Bench, tasks: asyncio.TaskGroup) -> None:
        owner = bench.owner
        owner.blob = bytes(4 * WINDOW_BYTES_MAX)
        bench.ask(tasks)
        await asyncio.sleep(ACKNOWLEDGE_S / 2)
        held = bench.protocol.window.sent - bench.protocol.window.acknowledged
        assert 0 < held <= WINDOW_BYTES_MAX + PART_BYTES_MAX
        await bench.until_ended(tasks)

    assert len(serves(mute).received) == 4 * WINDOW_BYTES_MAX


def test_a_withdrawn_fetch_stops_and_the_peer_is_told() -> None:
    async def withdraws(bench: Bench, tasks: asyncio.TaskGroup) -> None:
        request = bench.ask(tasks)
        bench.fetcher.withdraw(request)
        bench.carry(tasks)
        await bench.until_ended(tasks)

    bench = serves(withdraws)
    assert bench.refusals == [(Refusal.WITHDRAWN, "withdrawn as requested")]
    assert bench.owner.served == []


@pytest.mark.parametrize("shared", [False, True])
def test_a_peers_limit_holds_over_all_of_its_fetches(shared: bool) -> None:
    """Whether it is its own, or one that it shares with others."""
    limit = 100_000

    async def thirsty(bench: Bench, tasks: asyncio.TaskGroup) -> None:
        if shared:
            bench.serving.shared_quota = rate_bucket(limit, loop_ms())
        bench.ask(tasks)
        bench.ask(tasks)
        await bench.until_ended(tasks, 2)
        seconds = loop_ms() / 1000
        assert 2 * len(BLOB) / limit - 3 < seconds < 2 * len(BLOB) / limit + 3

    bench = serves(thirsty, Owner(None if shared else limit))
    assert len(bench.received) == 2 * len(BLOB)


def test_tiny_fetches_cost_a_limited_peer_as_much_as_reading_them_does() -> None:
    count = 40

    async def sips(bench: Bench, tasks: asyncio.TaskGroup) -> None:
        for number in range(count):
            request = bench.ask(tasks, number, 1)
            await bench.until_ended(tasks, number + 1)
            bench.fetcher.end_fetch(request, complete=True)
        assert loop_ms() >= 1000 * (count - 1) * SERVED_BYTES_MIN / 20_000 - 3000

    assert len(serves(sips, Owner(20_000)).received) == count


def test_the_purpose_of_a_fetch_is_known_after_it_has_ended() -> None:
    async def asked(bench: Bench, tasks: asyncio.TaskGroup) -> None:
        request = bench.ask(tasks)
        await bench.until_ended(tasks)
        assert bench.serving.purpose(request) is Purpose.CATCH_UP
        assert bench.serving.purpose(request + 1) is Purpose.PAYLOAD

    assert isinstance(serves(asked).protocol, LinkProtocol)

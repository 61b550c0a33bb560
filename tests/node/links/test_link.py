"""Promises of one open link, between two meshes in virtual time; and against an end that the test
plays itself.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from node.links.fetching import PROGRESS_S
from node.links.frames import Part, encode
from node.links.link import ANSWER_S, WRITE_S, Link
from node.links.network import BlobRange, NotHeldError, Purpose, WithdrawnError
from node.links.protocol import Identity, LinkProtocol
from node.links.protocol_events import Event, PeerLeft
from node.links.serving import ACKNOWLEDGE_S
from node.links.upload_queue import AHEAD_BYTES_MIN, RATE_ASSUMED, SOON_MS, Upload
from node.transports.base import Accept, Pipe
from protocol.errors import RemoteProtocolError, StorageError, UnavailableError
from protocol.ids import Digest, PeerId
from protocol.limits import OFFERS_MAX
from protocol.wire_pb2 import Beat, LinkMessage
from tests.node.links.net import RUN, Member, key_of, peer_of
from tests.node.transports.memory_pipes import MemoryNetwork, MemoryTransport
from tests.support.virtual_time import loop_ms, virtually

BLOB = bytes(range(256)) * 8_000
PEER_OF_SCRIPTED = peer_of(5)


def link_of(member: Member, peer: PeerId) -> Link:
    """A member's link to a peer."""
    link = member.mesh.link_with(peer)
    assert link is not None
    return link


class Counting:
    """A memory transport that counts the bytes of its pipes."""

    kind = "memory"

    def __init__(self, inner: MemoryTransport) -> None:
        self._inner = inner
        self.written = self.read = 0

    async def start(self, accept: Accept) -> tuple[str, ...]:
        return await self._inner.start(lambda pipe: accept(CountingPipe(pipe, self)))

    async def stop(self) -> None:
        await self._inner.stop()

    def dials(self, address: str) -> bool:
        return self._inner.dials(address)

    async def dial(self, address: str) -> Pipe:
        return CountingPipe(await self._inner.dial(address), self)


class CountingPipe:
    relayed = False

    def __init__(self, inner: Pipe, transport: Counting) -> None:
        self._inner, self._transport = inner, transport
        self.remote = inner.remote

    def proves(self, public_key: bytes) -> bool | None:
        return self._inner.proves(public_key)

    async def read(self) -> bytes:
        data = await self._inner.read()
        self._transport.read += len(data)
        return data

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.write(data)
        self._transport.written += len(data)

    async def close(self) -> None:
        await self._inner.close()


class Pair:
    """Two linked members, `one` dialled by `two`, and what lies between them."""

    def __init__(self, **settings: Any) -> None:
        self.network = MemoryNetwork()
        self.transports = [Counting(self.network.transport(name)) for name in ("one", "two")]
        self.one, self.two = (
            Member(key_of(number), [transport], None, number, clock=loop_ms, **settings)
            for number, transport in enumerate(self.transports)
        )

    @property
    def links(self) -> tuple[Link, Link]:
        """Each one's link to the other."""
        return link_of(self.one, self.two.peer), link_of(self.two, self.one.peer)


@asynccontextmanager
async def linked(**settings: Any) -> AsyncIterator[Pair]:
    pair = Pair(**settings)
    one, two = pair.one, pair.two
    addresses = await one.mesh.start(one)
    await two.mesh.start(two)
    one.remote = type(one.remote)(one.peer, addresses)
    two.mesh.keep([one.remote])
    one.mesh.keep([two.remote])
    try:
        await happens(lambda: one.linked and two.linked)
        yield pair
    finally:
        await two.mesh.stop()
        await one.mesh.stop()


async def happens(condition: Callable[[], object], within: float = 60) -> None:
    """Virtual time passes until the condition holds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - the code under test has no event for it
            await asyncio.sleep(0.01)


async def settled(pair: Pair) -> None:
    """Everything that was sent has arrived and is acknowledged; time leaps only when nothing is
    left to do.
    """
    await happens(
        lambda: all(
            link.protocol.window.sent == link.protocol.window.acknowledged for link in pair.links
        )
    )
    await asyncio.sleep(0.00137)  # a moment at which no timer of a link fires


async def first_part(
    member: Member, pair: Pair, digest: Digest, purpose: Purpose = Purpose.PAYLOAD
) -> Part:
    async with aclosing(member.mesh.fetch(pair.one.remote, BlobRange(digest), purpose)) as parts:
        async for part in parts:
            return part
    raise AssertionError("no part came")


async def each_part(pair: Pair, digest: Digest, arrived: Callable[[Part], None]) -> None:
    async with aclosing(
        pair.two.mesh.fetch(pair.one.remote, BlobRange(digest), Purpose.PAYLOAD)
    ) as parts:
        async for part in parts:
            arrived(part)


class Scripted:
    """The other end of a link, played by the test: an honest session, and whatever else is
    written.
    """

    def __init__(self, pipe: Pipe, member: Member) -> None:
        self.pipe = pipe
        self.member = member
        self.protocol = LinkProtocol(Identity(key_of(5), RUN, 5), b"n" * 32, True, loop_ms())
        self.left = ""

    async def flush(self) -> None:
        for frame in self.protocol.outgoing():
            await self.pipe.write(frame)

    async def step(self) -> list[Event]:
        """Read once and answer as the session does."""
        data = await self.pipe.read()
        if not data:
            raise UnavailableError("the member closed the link")
        events = self.protocol.receive(data, loop_ms())
        self.left = next(
            (event.reason for event in events if isinstance(event, PeerLeft)), self.left
        )
        await self.flush()
        return events

    async def prove(self) -> "Scripted":
        await self.flush()
        while self.protocol.peer is None or self.protocol.peer not in {self.member.peer}:
            await self.step()
        await happens(lambda: self.member.linked)
        return self

    async def swallow(self) -> None:
        """Read to the end of the link, and answer nothing."""
        while await self.pipe.read():
            pass

    async def beat(self, seconds: float) -> None:
        """Show signs of life for so long, without reading."""
        for _ in range(int(seconds)):
            await self.pipe.write(encode(LinkMessage(beat=Beat(sent_ms=loop_ms()))))
            await asyncio.sleep(1)


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Member, Scripted]]:
    """A member, and an end of a link to it that the test plays."""
    network = MemoryNetwork()
    member = Member(key_of(0), [network.transport("member")], None, 0, clock=loop_ms)
    door = network.transport("scripted")

    async def nobody(pipe: Pipe) -> None:
        raise AssertionError(f"nobody dials {pipe.remote}")

    await door.start(nobody)
    try:
        addresses = await member.mesh.start(member)
        yield member, await Scripted(await door.dial(addresses[0]), member).prove()
    finally:
        await member.mesh.stop()
        await door.stop()


# ---- fetches


def test_late_parts_of_a_cancelled_fetch_are_counted_once_and_acknowledged() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest = pair.one.hold(BLOB)
            taken = sum([len((await first_part(pair.two, pair, digest)).data) for _ in range(5)])
            await settled(pair)
            up, down = pair.one.mesh.traffic, pair.two.mesh.traffic
            assert down.payload_down == up.payload_up == taken + down.late_down
            assert down.late_down > 0
            assert up.payload_up < len(BLOB), "most of it was not sent"
            assert pair.links[0].protocol.window.acknowledged == up.payload_up
            assert await pair.two.fetched(pair.one.remote, digest) == BLOB

    virtually(main())


def test_late_parts_keep_the_owner_of_their_fetch() -> None:
    async def main() -> None:
        async with linked() as pair:
            payload, snapshot = pair.one.hold(BLOB), pair.one.hold(BLOB[:-1])
            taken = len((await first_part(pair.two, pair, snapshot, Purpose.CATCH_UP)).data)
            await settled(pair)
            down = pair.two.mesh.traffic
            assert down.catch_up_down == taken + down.late_down > taken
            assert down.payload_down == 0
            late = down.late_down
            taken = len((await first_part(pair.two, pair, payload)).data)
            await settled(pair)
            now = pair.two.mesh.traffic
            assert now.payload_down == taken + now.late_down - late
            assert now.catch_up_down == down.catch_up_down

    virtually(main())


def test_a_range_is_served_to_its_last_byte_and_no_further() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest = pair.one.hold(BLOB)
            assert (
                await pair.two.fetched(pair.one.remote, digest, 100_000, 300_001)
                == BLOB[100_000:400_001]
            )
            await settled(pair)
            assert pair.one.mesh.traffic.payload_up == 300_001
            assert pair.two.mesh.traffic.late_down == 0
            assert pair.one.served == [], "it does not hold the rest"
            assert (
                await pair.two.fetched(pair.one.remote, digest, 2_000_000, 1_000_000)
                == BLOB[2_000_000:]
            )
            await settled(pair)
            assert pair.one.served == [(pair.two.peer, digest)]

    virtually(main())


def test_an_upload_counts_acknowledged_bytes_and_keeps_its_turn_until_the_last() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest, uplink, window = (
                pair.one.hold(BLOB),
                pair.one.mesh.uplink,
                pair.links[0].protocol.window,
            )
            progressed, counted = uplink.progressed, [0]

            def counting(upload: Upload, count: int) -> None:
                assert upload == Upload(pair.two.peer, digest)
                counted.append(counted[-1] + count)
                assert counted[-1] <= window.acknowledged
                progressed(upload, count)

            uplink.progressed = counting  # type: ignore[method-assign]
            assert await pair.two.fetched(pair.one.remote, digest) == BLOB
            assert counted[-1] < len(BLOB), "the last acknowledgement is on its way"
            assert pair.links[0].serving
            await settled(pair)
            assert counted[-1] == len(BLOB)
            assert not pair.links[0].serving

    virtually(main())


def test_a_node_is_idle_unless_a_peer_wants_a_blob_of_it() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest, seen = pair.one.hold(BLOB), set[tuple[bool, bool]]()
            assert (pair.one.mesh.idle, pair.two.mesh.idle) == (True, True)
            await each_part(
                pair, digest, lambda part: seen.add((pair.one.mesh.idle, pair.two.mesh.idle))
            )
            assert seen == {(False, True)}
            await settled(pair)
            assert pair.one.mesh.idle

    virtually(main())


def test_a_withdrawn_fetch_ends_as_such_and_wastes_no_byte() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest, got = pair.one.hold(BLOB), 0

            def arrived(part: Part) -> None:
                nonlocal got
                if not got:
                    pair.two.mesh.withdraw(pair.one.peer, digest)
                got += len(part.data)

            with pytest.raises(WithdrawnError):
                await each_part(pair, digest, arrived)
            await settled(pair)
            assert 0 < got < len(BLOB)
            assert got == pair.one.mesh.traffic.payload_up
            assert pair.two.mesh.traffic.late_down == 0
            assert pair.one.served == []

    virtually(main())


def test_a_fetch_whose_turn_comes_soon_is_not_let_go() -> None:
    first = Upload(PeerId("ab" * 16), Digest(bytes(32)))

    async def behind(others_bytes: int, unless_soon: bool) -> bytes:
        async with linked() as pair:
            digest, uplink = pair.one.hold(b"what is wanted"), pair.one.mesh.uplink
            async with uplink.turn(first, others_bytes):
                fetch = asyncio.create_task(pair.two.fetched(pair.one.remote, digest))
                await asyncio.sleep(1)
                assert uplink.uploads == 2
                pair.two.mesh.withdraw(pair.one.peer, digest, unless_soon)
                await asyncio.sleep(1)
            return await fetch

    short = AHEAD_BYTES_MIN + RATE_ASSUMED * SOON_MS // 2000
    for others_bytes, unless_soon in ((10_000_000, True), (short, False)):
        with pytest.raises(WithdrawnError):
            virtually(behind(others_bytes, unless_soon))
    assert virtually(behind(short, True)) == b"what is wanted"


def test_a_withdrawal_in_the_last_moment_changes_nothing() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest = pair.one.hold(b"all of it in one part")
            assert await pair.two.fetched(pair.one.remote, digest) == b"all of it in one part"
            pair.two.mesh.withdraw(pair.one.peer, digest)
            assert await pair.two.fetched(pair.one.remote, digest) == b"all of it in one part"

    virtually(main())


def test_a_server_that_falls_silent_ends_the_fetch_and_not_the_link() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest, stuck = pair.one.hold(BLOB), asyncio.Event()
            read = pair.one.read

            async def stalling(
                digest: Digest, offset: int, count: int = 1
            ) -> tuple[int, bytes] | None:
                if offset > 100_000 and not stuck.is_set():
                    await stuck.wait()
                return await read(digest, offset, count)

            pair.one.read = stalling  # type: ignore[method-assign]
            began_ms, link = loop_ms(), pair.links[1]
            with pytest.raises(UnavailableError, match=f"sent nothing for {PROGRESS_S} s"):
                await pair.two.fetched(pair.one.remote, digest)
            assert PROGRESS_S * 1000 <= loop_ms() - began_ms < PROGRESS_S * 1000 + 1000
            stuck.set()
            assert await pair.two.fetched(pair.one.remote, digest) == BLOB
            assert pair.links[1] is link

    virtually(main())


def test_many_fetches_at_once_share_the_link_and_all_arrive() -> None:
    async def main() -> None:
        async with linked() as pair:
            digests = [pair.one.hold(bytes([number]) * 400_000) for number in range(12)]
            found = await asyncio.gather(
                *(pair.two.fetched(pair.one.remote, digest) for digest in digests)
            )
            assert [blob[0] for blob in found] == list(range(12))
            await settled(pair)
            assert not any(link.serving for link in pair.links)

    virtually(main())


# ---- serving


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (StorageError("cannot read: disk on fire"), UnavailableError),
        (RemoteProtocolError("expected another offset"), RemoteProtocolError),
        (NotHeldError("gone"), UnavailableError),
    ],
)
@pytest.mark.parametrize("at", [0, 300_000])
def test_a_server_that_cannot_read_refuses_in_words_and_keeps_the_link(
    raised: Exception, expected: type[Exception], at: int
) -> None:
    async def main() -> None:
        async with linked() as pair:
            digest, read, link = pair.one.hold(BLOB), pair.one.read, pair.links[1]

            async def failing(
                digest: Digest, offset: int, count: int = 1
            ) -> tuple[int, bytes] | None:
                if offset >= at:
                    raise raised
                return await read(digest, offset, count)

            pair.one.read = failing  # type: ignore[method-assign]
            with pytest.raises(expected, match=str(raised)):
                await pair.two.fetched(pair.one.remote, digest)
            pair.one.read = read  # type: ignore[method-assign]
            assert await pair.two.fetched(pair.one.remote, digest) == BLOB
            assert pair.links[1] is link
            await settled(pair)
            assert not pair.links[0].serving

    virtually(main())


def test_a_blob_that_goes_while_it_is_served_is_refused_as_unavailable() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest = pair.one.hold(BLOB)
            with pytest.raises(UnavailableError, match="gone in the meantime"):
                await each_part(pair, digest, lambda _: pair.one.blobs.clear())

    virtually(main())


def test_a_bug_in_the_server_is_logged_ends_the_link_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with linked() as pair:
            digest, read = pair.one.hold(BLOB), pair.one.read

            async def broken(
                digest: Digest, offset: int, count: int = 1
            ) -> tuple[int, bytes] | None:
                raise ZeroDivisionError("a bug")

            pair.one.read = broken  # type: ignore[method-assign]
            with pytest.raises(UnavailableError, match="ended"):
                await pair.two.fetched(pair.one.remote, digest)
            pair.one.read = read  # type: ignore[method-assign]
            assert await pair.two.fetched(pair.one.remote, digest) == BLOB

    virtually(main())
    assert "ZeroDivisionError: a bug" in caplog.text


def test_a_peer_that_acknowledges_nothing_is_dropped_and_frees_its_place() -> None:
    """It reads, and shows signs of life, but acknowledges not a byte."""

    async def main() -> None:
        async with scripted() as (member, other):
            digest = member.hold(BLOB)
            other.protocol.fetch(digest, 0, 0)
            await other.flush()
            began_ms = loop_ms()
            beating = asyncio.create_task(other.beat(40))
            await other.swallow()
            assert ACKNOWLEDGE_S * 1000 <= loop_ms() - began_ms < ACKNOWLEDGE_S * 1000 + 2000
            assert not member.linked
            assert member.mesh.idle
            await asyncio.wait({beating})
            assert isinstance(beating.exception(), UnavailableError)

    virtually(main())


def test_a_peer_that_acknowledges_slowly_is_served_to_the_end() -> None:
    async def main() -> None:
        async with scripted() as (member, other):
            size = 400_000
            other.protocol.fetch(member.hold(BLOB[:size]), 0, 0)
            await other.flush()
            got = 0
            while got < size:
                for event in await other.step():
                    if isinstance(event, Part):
                        await asyncio.sleep(PROGRESS_S / 20)
                        got += len(event.data)
                        other.protocol.taken(len(event.data), loop_ms())
                await other.flush()
            assert loop_ms() > 1000

    virtually(main())


def test_a_peer_that_never_reads_is_dropped_after_the_longest_write() -> None:
    async def main() -> None:
        async with scripted() as (member, other):
            # with the signatures that it lacks a full message is larger than twice this one
            digests = [bytes([number % 256]) * 32 for number in range(2 * OFFERS_MAX)]
            message = member.message(*digests)
            began_ms = loop_ms()
            link = link_of(member, PEER_OF_SCRIPTED)
            offers = [asyncio.create_task(link.offer(message)) for _ in range(8)]
            with pytest.raises(UnavailableError):
                await other.beat(2 * WRITE_S)
            assert WRITE_S * 1000 <= loop_ms() - began_ms < WRITE_S * 1000 + 3000
            assert not member.linked
            for offer in offers:
                with pytest.raises(UnavailableError):
                    await offer

    virtually(main())


@pytest.mark.parametrize("limit", [100_000, 1_000_000])
def test_one_peer_takes_no_more_than_its_limit(limit: int) -> None:
    async def main() -> float:
        async with linked(peer_limit=limit) as pair:
            digest, began_ms = pair.one.hold(BLOB), loop_ms()
            await asyncio.gather(*(pair.two.fetched(pair.one.remote, digest) for _ in range(2)))
            return 2 * len(BLOB) / (loop_ms() - began_ms) * 1000

    assert 0.8 * limit < virtually(main()) < 1.02 * limit


# ---- offers


def test_a_peer_that_never_answers_an_offer_fails_it_and_keeps_its_link() -> None:
    async def main() -> None:
        async with scripted() as (member, other):
            link = link_of(member, PEER_OF_SCRIPTED)
            beating = asyncio.create_task(other.beat(ANSWER_S + 5))
            with pytest.raises(UnavailableError, match=f"did not answer an offer in {ANSWER_S} s"):
                await link.offer(member.message(bytes(32)))
            assert member.linked
            beating.cancel()

    virtually(main())


# ---- counting, and the end


def test_the_traffic_counters_agree_with_the_bytes_of_the_pipes() -> None:
    async def main() -> None:
        async with linked() as pair:
            one, two = pair.one, pair.two
            ours, theirs = one.hold(BLOB), two.hold(BLOB[:777_777])
            await asyncio.gather(
                two.fetched(one.remote, ours),
                one.fetched(two.remote, theirs),
                first_part(two, pair, ours),
            )
            async with aclosing(
                two.mesh.fetch(one.remote, BlobRange(ours, 0, 5_000), Purpose.CATCH_UP)
            ) as parts:
                assert sum([len(part.data) async for part in parts]) == 5_000
            await one.mesh.offer(two.remote, one.message(ours))
            two.refuses = "expected something else"
            with pytest.raises(RemoteProtocolError):
                await one.mesh.offer(two.remote, one.message(ours))
            with pytest.raises(NotHeldError):
                await two.fetched(one.remote, Digest(bytes(32)))
            await settled(pair)
            for member, transport in zip((one, two), pair.transports, strict=True):
                traffic = member.mesh.traffic
                assert (
                    traffic.payload_up + traffic.catch_up_up + traffic.control_up
                    == transport.written
                )
                assert (
                    traffic.payload_down + traffic.catch_up_down + traffic.control_down
                    == transport.read
                )
            up, down = one.mesh.traffic, two.mesh.traffic
            assert up.payload_up + up.catch_up_up == down.payload_down + down.catch_up_down
            assert down.catch_up_down == 5_000
            assert up.control_up == down.control_down > 0
            assert two.mesh.traffic.payload_up == one.mesh.traffic.payload_down == 777_777
            # Of a megabyte of parts, heads, fetches, acknowledgements and heartbeats are a
            # hundredth.
            assert up.control_up + up.control_down < 0.01 * (up.payload_up + up.payload_down)
            before = (up, down)
        assert (pair.one.mesh.traffic.payload_up, pair.two.mesh.traffic.payload_down) == (
            before[0].payload_up,
            before[1].payload_down,
        ), "what links carried is not forgotten with them"

    virtually(main())


@pytest.mark.parametrize("who", ["one", "two"])
def test_a_goodbye_says_why_after_all_that_was_said_before(who: str) -> None:
    """From either end; `two` dialled."""

    async def main() -> None:
        async with linked() as pair:
            leaving, staying = (pair.one, pair.two) if who == "one" else (pair.two, pair.one)
            offer = asyncio.create_task(
                leaving.mesh.offer(staying.remote, leaving.message(bytes(32)))
            )
            await asyncio.sleep(0)
            await leaving.mesh.stop()
            await happens(lambda: not staying.linked, within=1)
            assert len(staying.offers) == 1
            assert "this node stops" in staying.trouble(leaving.peer)
            await asyncio.wait({offer})
            if error := offer.exception():  # the answer may have come too late, which is said
                assert isinstance(error, UnavailableError)

    virtually(main())


def test_every_fetch_and_offer_on_a_link_ends_with_it() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest = pair.one.hold(BLOB)
            pair.network.stall("one", "two")
            waiting = [
                asyncio.create_task(pair.two.fetched(pair.one.remote, digest)),
                asyncio.create_task(pair.two.mesh.offer(pair.one.remote, pair.two.message(digest))),
            ]
            await asyncio.sleep(0.1)
            began_ms = loop_ms()
            done, _ = await asyncio.wait(waiting)
            for task in done:
                with pytest.raises(UnavailableError, match="was silent for 4"):
                    await task
            assert loop_ms() - began_ms <= 5_000
            pair.network.resume("one", "two")
            assert await pair.two.fetched(pair.one.remote, digest) == BLOB

    virtually(main())


def test_nothing_is_left_of_a_link_that_ended_in_the_middle() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        async with linked(peer_limit=100_000) as pair:
            digest = pair.one.hold(BLOB)
            fetches = [
                asyncio.create_task(pair.two.fetched(pair.one.remote, digest)) for _ in range(3)
            ]
            await happens(lambda: pair.links[0].serving)
            pair.network.cut("one", "two")
            await asyncio.wait(fetches)
            assert all(isinstance(fetch.exception(), UnavailableError) for fetch in fetches)
            assert pair.one.mesh.idle
        assert asyncio.all_tasks() <= before

    virtually(main())

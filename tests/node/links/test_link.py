"""Promises of one open link, between two meshes in virtual time; and against an end that the test
plays itself.
"""

import asyncio
from contextlib import aclosing

import pytest

from node.links.fetching import PROGRESS_S
from node.links.frames import Part
from node.links.link import ANSWER_S, WRITE_S
from node.links.network import BlobRange, LinkBrokenError, NotHeldError, Purpose
from node.links.serving import ACKNOWLEDGE_S
from protocol.errors import RemoteProtocolError, StorageError, UnavailableError
from protocol.ids import Digest
from protocol.limits import OFFERS_MAX
from tests.node.links.pair import (
    BLOB,
    PEER_OF_SCRIPTED,
    each_part,
    first_part,
    happens,
    link_of,
    linked,
    scripted,
    settled,
)
from tests.support.virtual_time import loop_ms, virtually

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


@pytest.mark.parametrize("who", ["one", "two", "line", "both lines"])
def test_a_fetch_breaks_with_a_link_that_the_other_end_ends_and_no_silent_line_does(
    who: str,
) -> None:
    async def main() -> None:
        async with linked(peer_limit=100_000) as pair:
            digest = pair.one.hold(BLOB)
            fetch = asyncio.create_task(pair.two.fetched(pair.one.remote, digest))
            await happens(lambda: pair.links[0].serving)
            if "line" in who:
                pair.network.stall("one", "two")
            if who == "both lines":
                pair.network.stall("two", "one")
            if "line" not in who:
                pair.links[who == "two"].leave("it wishes so")
            await asyncio.wait({fetch})
            assert isinstance(fetch.exception(), UnavailableError)
            assert isinstance(fetch.exception(), LinkBrokenError) == (who == "one")

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

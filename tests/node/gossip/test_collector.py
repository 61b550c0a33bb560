"""Promises of the collector: how a wait ends, and how it is described meanwhile."""

import asyncio
from pathlib import Path

import pytest

from node.gossip.background import Background
from node.gossip.collector import Collector, NotRetainedError
from node.gossip.machine import events
from node.gossip.machine.exchange import Exchange
from node.gossip.payload_log import PayloadLog
from protocol.codec.commits import Commit, Entry
from protocol.errors import LocalProtocolError, StorageError
from protocol.ids import Digest, PeerId, RunId, sha256
from tests.support.waiting import until

RUN = RunId("ab" * 16)
OWN, ONE, TWO = (PeerId(letter * 32) for letter in "012")
BLOBS = [b"payload of one", b"payload of two"]
ROUND = 5


def commit(round: int = ROUND) -> Commit:
    entries = tuple(
        Entry(author, sha256(blob), len(blob), 1, 1)
        for author, blob in zip((ONE, TWO), BLOBS, strict=True)
    )
    return Commit(RUN, round, 0, entries, 0, 0, Digest(bytes(32)))


class Fixture:
    """A collector over a real exchange and a real log; the test is the network."""

    def __init__(self, directory: Path) -> None:
        self.log = PayloadLog(directory, 100, 10**9)
        self.exchange = Exchange(OWN, events.SwarmLimits(1000, 4))
        self.background = Background(lambda: self.collector.wake())  # noqa: PLW0108 (made below)
        self.collector = Collector(self.exchange, self.log, self.background, self.feed)
        self.fed: list[events.Event] = []
        self.feed(events.MembersChanged(frozenset([OWN, ONE, TWO])))

    def feed(self, event: events.Event) -> None:
        self.fed.append(event)
        self.exchange.handle(event, 0)

    def collect(self, round: int = ROUND) -> "asyncio.Task[list[bytes]]":
        return asyncio.create_task(self.collector.collect(commit(round), [[ONE], [TWO]]))

    def arrive(self, source: PeerId, blob: bytes) -> None:
        """A pull ends well."""
        self.log.put(ROUND, blob)
        self.feed(events.Pulled(sha256(blob), source, len(blob), 1000))
        self.collector.wake()

    async def waits(self) -> None:
        await until(lambda: self.collector.waiting_for)


@pytest.fixture
def at(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


async def test_payloads_of_the_log_are_returned_without_a_wait(at: Fixture) -> None:
    for blob in reversed(BLOBS):
        at.log.put(ROUND, blob)
    assert await at.collect() == BLOBS
    wanted = at.fed[-1]
    assert isinstance(wanted, events.Wanted)
    assert [want.held for want in wanted.wants] == [True, True]


async def test_a_wait_says_what_it_lacks_and_ends_when_all_has_arrived(at: Fixture) -> None:
    collecting = at.collect()
    await at.waits()
    assert at.collector.waiting_for == (
        "round 5 waits for 2 of 2 payloads: "
        "11111111's 14 bytes (pulling from 11111111), 22222222's 14 bytes (pulling from 22222222)"
    )
    at.arrive(TWO, BLOBS[1])
    assert "1 of 2 payloads: 11111111's" in at.collector.waiting_for
    at.arrive(ONE, BLOBS[0])
    assert await collecting == BLOBS
    assert at.collector.waiting_for == ""


async def test_a_payload_that_is_not_being_pulled_is_named_with_its_holders(at: Fixture) -> None:
    collecting = at.collect()
    await at.waits()
    for source in (ONE, TWO):  # both members fail, and pause
        digest = sha256(BLOBS[0])
        unavailable = events.Failure.UNAVAILABLE
        at.feed(events.PullFailed(digest, at.exchange.pulling[digest], unavailable, source))
    assert "11111111's 14 bytes (1 known holders, none free)" in at.collector.waiting_for
    collecting.cancel()
    await asyncio.wait([collecting])
    assert at.collector.waiting_for == ""


async def test_a_payload_that_the_log_lost_meanwhile_is_wanted_again(at: Fixture) -> None:
    collecting = at.collect()
    await at.waits()
    at.feed(events.Pulled(sha256(BLOBS[0]), ONE, 14, 1000))  # held, and yet not in the log
    at.collector.wake()
    await until(lambda: events.Lost(sha256(BLOBS[0])) in at.fed)
    assert not collecting.done()
    for source, blob in zip((ONE, TWO), BLOBS, strict=True):
        at.arrive(source, blob)
    assert await collecting == BLOBS


async def test_a_wait_for_a_payload_that_no_member_keeps_ends_with_an_error(at: Fixture) -> None:
    collecting = at.collect()
    await at.waits()
    at.collector.give_up(ROUND + 1, sha256(BLOBS[0]))
    at.collector.give_up(ROUND, sha256(b"other"))
    at.collector.give_up(ROUND, sha256(BLOBS[1]))
    name = f"payload {sha256(BLOBS[1]).hex()[:8]} of round 5"
    with pytest.raises(NotRetainedError, match=f"no member keeps {name} any more"):
        await collecting
    assert at.collector.waiting_for == ""


async def test_a_payload_that_arrived_after_it_was_given_up_is_returned(at: Fixture) -> None:
    collecting = at.collect()
    await at.waits()
    at.collector.give_up(ROUND, sha256(BLOBS[0]))
    for source, blob in zip((ONE, TWO), BLOBS, strict=True):
        at.arrive(source, blob)
    assert await collecting == BLOBS


async def test_a_task_that_dies_ends_every_wait_with_its_exception(at: Fixture) -> None:
    async def die() -> None:
        raise StorageError("the disk is full")

    waits = [at.collect(5), at.collect(6)]
    await until(lambda: "; round 6" in at.collector.waiting_for)
    at.background.spawn(die())
    for collecting in waits:
        with pytest.raises(StorageError, match="the disk is full"):
            await collecting


async def test_two_waits_for_one_round_or_too_few_holders_are_our_bug(at: Fixture) -> None:
    collecting = at.collect()
    await at.waits()
    with pytest.raises(LocalProtocolError, match="one collect of round 5 at a time"):
        await at.collector.collect(commit(), [[], []])
    with pytest.raises(LocalProtocolError, match="holders of 2 payloads, got 1"):
        await at.collector.collect(commit(6), [[]])
    for source, blob in zip((ONE, TWO), BLOBS, strict=True):
        at.arrive(source, blob)
    assert await collecting == BLOBS, "the first wait goes on"

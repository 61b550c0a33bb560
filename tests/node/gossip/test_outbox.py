"""Promises of the outbox: one message at a time to each peer, in order, with all offers that came
up meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from node.gossip.machine import events
from node.gossip.outbox import Outbox
from node.links.network import PeerAddress
from protocol.errors import LockstepError, RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId
from protocol.limits import OFFERS_MAX
from protocol.wire_pb2 import OfferedPayload, Offers
from tests.node.links.net import RUN, peer_of
from tests.support.waiting import until

OWN, ONE, TWO = map(peer_of, range(3))


class HeldLink:
    """The part of a link that an outbox needs: an offer is on its way until the test says how it
    ended.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[PeerId, Offers]] = []
        self.ends: dict[PeerId, asyncio.Future[None]] = {}

    async def offer(self, to: PeerAddress, offers: Offers) -> None:
        assert to.peer_id not in self.ends, "one at a time"
        self.sent.append((to.peer_id, offers))
        self.ends[to.peer_id] = asyncio.get_running_loop().create_future()
        try:
            await self.ends[to.peer_id]
        finally:
            del self.ends[to.peer_id]

    async def end(self, peer: PeerId, error: LockstepError | None = None) -> None:
        """End the message that is on its way to a peer, and let the next one leave."""
        await until(lambda: peer in self.ends)
        end, before = self.ends[peer], len(self.sent)
        if error:
            end.set_exception(error)
        else:
            end.set_result(None)
        await until(lambda: end is not self.ends.get(peer))
        assert len(self.sent) <= before + 1

    def digests(self, peer: PeerId) -> list[list[int]]:
        """The numbers of the payloads of each message that was sent to a peer."""
        return [
            [offer.digest[0] for offer in offers.offers] for to, offers in self.sent if to == peer
        ]


def announced(round: int, digest: Digest) -> OfferedPayload | None:
    """The offer of a payload whose announcement is known: all but those of round 99."""
    offer = OfferedPayload(round=round, digest=digest, payload_bytes=100 + digest[0])
    return None if round == 99 else offer


class Fixture:
    """An `Outbox` over a held link, with its tasks and the offers that failed."""

    def __init__(self) -> None:
        self.link = HeldLink()
        self.failed: list[tuple[PeerId, int]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.outbox = Outbox(
            OWN,
            RUN,
            self.link,
            self._spawn,
            lambda *what: self.failed.append(what),
            told=lambda offer: [
                each for digest, _ in offer.payloads if (each := announced(offer.round, digest))
            ],
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    def add(self, peer: PeerId, round: int, *numbers: int, idle: bool = False) -> None:
        payloads = tuple((Digest(bytes([number]) * 32), 100 + number) for number in numbers)
        self.outbox.add(events.Offer(peer, round, payloads, idle), PeerAddress(peer, ()))

    async def done(self) -> None:
        await asyncio.gather(*self.tasks)


@asynccontextmanager
async def outbox() -> AsyncIterator[Fixture]:
    """Checks that nothing is left when all is sent."""
    box = Fixture()
    yield box
    await box.done()
    assert box.outbox.waiting == []


async def test_an_offer_says_run_sender_round_digest_and_size() -> None:
    async with outbox() as box:
        box.add(ONE, 7, 3)
        await box.link.end(ONE)
    [(to, offers)] = box.link.sent
    assert (to, offers.run_id, offers.sender) == (ONE, RUN, OWN)
    assert [(each.round, each.digest, each.payload_bytes) for each in offers.offers] == [
        (7, bytes([3]) * 32, 103)
    ]


async def test_offers_that_come_up_while_a_message_is_on_its_way_leave_together_and_in_order() -> (
    None
):
    async with outbox() as box:
        box.add(ONE, 1, 1)
        await until(lambda: box.link.sent)
        for number in (2, 3, 4):
            box.add(ONE, 1, number)
        assert box.link.digests(ONE) == [[1]]
        await box.link.end(ONE)
        await box.link.end(ONE)
    assert box.link.digests(ONE) == [[1], [2, 3, 4]]
    assert box.failed == []


async def test_an_idle_node_says_so_unless_an_offer_came_up_since() -> None:
    async with outbox() as box:
        box.add(ONE, 1, idle=True)
        await until(lambda: box.link.sent)
        box.add(ONE, 1, 1)
        box.add(ONE, 1, idle=True)
        await box.link.end(ONE)
        await until(lambda: len(box.link.sent) == 2)
        box.add(ONE, 1, idle=True)
        box.add(ONE, 1, 2)
        await box.link.end(ONE)
        await box.link.end(ONE)
    assert box.link.digests(ONE) == [[], [1], [2]]
    assert [offers.idle for _, offers in box.link.sent] == [True, True, False]


async def test_peers_do_not_wait_for_each_other() -> None:
    async with outbox() as box:
        box.add(ONE, 1, 1)
        box.add(TWO, 1, 1)
        await until(lambda: len(box.link.sent) == 2)
        box.add(TWO, 1, 2)
        await box.link.end(TWO)
        await box.link.end(TWO)
        assert box.link.digests(TWO) == [[1], [2]]
        await box.link.end(ONE)


@pytest.mark.parametrize("error", [UnavailableError("gone"), RemoteProtocolError("refused")])
async def test_each_offer_of_a_message_that_failed_is_told_and_the_next_message_leaves(
    error: LockstepError,
) -> None:
    async with outbox() as box:
        box.add(ONE, 1, 1)
        await until(lambda: box.link.sent)
        box.add(ONE, 1, 2)
        box.add(ONE, 2, 3)
        await box.link.end(ONE)
        await until(lambda: len(box.link.sent) == 2)
        box.add(ONE, 3, 4)
        await box.link.end(ONE, error)
        assert box.failed == [(ONE, 1), (ONE, 2)]
        await box.link.end(ONE)
    assert box.link.digests(ONE) == [[1], [2, 3], [4]]
    assert len(box.failed) == 2


@pytest.mark.parametrize(
    ("sizes", "messages"),
    [
        ((1, 1, 1), 1),
        ((OFFERS_MAX - 1, 1), 1),
        ((OFFERS_MAX - 1, 1, 1), 2),
        ((OFFERS_MAX, OFFERS_MAX), 2),
    ],
)
async def test_no_message_holds_more_than_the_most_and_no_offer_is_cut(
    sizes: tuple[int, ...], messages: int
) -> None:
    async with outbox() as box:
        box.add(ONE, 0, 0)
        await until(lambda: box.link.sent)
        for round, size in enumerate(sizes):
            box.add(ONE, round, *(number % 256 for number in range(size)))
        for _ in range(1 + messages):
            await box.link.end(ONE)
    assert all(len(offers.offers) <= OFFERS_MAX for _, offers in box.link.sent)
    assert len(box.link.sent) == 1 + messages
    rounds = [{each.round for each in offers.offers} for _, offers in box.link.sent[1:]]
    assert sum(len(each) for each in rounds) == len(sizes), "no round's offer lies in two messages"
    assert sum(len(offers.offers) for _, offers in box.link.sent) == 1 + sum(sizes)


async def test_a_cancelled_outbox_forgets_its_offers() -> None:
    async with outbox() as box:
        box.add(ONE, 1, 1)
        await until(lambda: box.link.sent)
        box.add(ONE, 1, 2)
        box.tasks[0].cancel()
        await asyncio.wait(box.tasks)
        box.tasks.clear()
        assert box.outbox.waiting == []
        box.add(ONE, 1, 3)
        await box.link.end(ONE)
    assert box.link.digests(ONE) == [[1], [3]]


async def test_a_payload_whose_announcement_is_not_known_is_not_offered() -> None:
    async with outbox() as box:
        box.add(ONE, 99, 1)
        box.add(TWO, 99, 1)
        box.add(TWO, 7, 1)
        await box.link.end(TWO)
    assert [(to, len(offers.offers)) for to, offers in box.link.sent] == [(TWO, 1)]

"""Offers of parts on the wire: one for each root, with the list of its parts and the ranges.

    Offer of parts  --made-->  (root, signature, list, ranges)  --take-->  Offered, part by part

Whoever takes one verifies the author's signature under the root and opens the list, so a part is
pulled only where its author has one root in the round and lists it for a range that this node
takes. A round that is not open here has no plan yet: what comes then is refused, and comes again.
"""

from collections.abc import Callable

from node.gossip.address_book import AddressBook
from node.gossip.announcements import Announcements
from node.gossip.machine import events
from node.gossip.machine.exchange import Exchange
from node.gossip.part_book import PartBook, open_offered, parts_of, sizes_of
from protocol.codec.announcement import Announcement
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.sums.asked import bits_of
from protocol.sums.plan import SumPlan
from protocol.wire_pb2 import OfferedPayload

Offering = Callable[[events.Offered], list[str]]
"""Hands an offer on to the exchange; returns why it was refused."""


class PartOffers:
    """Makes and takes the offers of one swarm's parts; each is handed on by `offered`."""

    def __init__(
        self,
        exchange: Exchange,
        announcements: Announcements,
        book: PartBook,
        peers: AddressBook,
        offered: Offering,
    ) -> None:
        self._exchange, self._announcements, self._book = exchange, announcements, book
        self._peers, self._offered = peers, offered

    def made(self, offer: events.Offer, plan: SumPlan) -> list[OfferedPayload]:
        """What to send for an offer in a round with a plan: parts by their roots, and results as
        they are, for they need no signature where a commit names them.
        """
        digests = [digest for digest, _ in offer.payloads]
        everything = (1 << plan.ranges) - 1
        ranges = (
            everything if self._peers.is_relay(offer.peer) else bits_of(plan.ranges_of(offer.peer))
        )
        made = list[OfferedPayload]()
        for root, bits in self._book.offered(offer.round, digests, ranges).items():
            signed = self._announcements.offer(offer.round, root)
            listed = self._book.list_of(offer.round, root)
            if signed and listed:
                signed.part_list, signed.ranges = listed, bits
                made.append(signed)
        made += [
            OfferedPayload(round=offer.round, digest=digest, payload_bytes=size)
            for digest, size in offer.payloads
            if not self._book.claims(offer.round, digest)
        ]
        return made

    def take(self, sender: PeerId, said: Announcement, offered: OfferedPayload) -> list[str]:
        """Take the parts that this node wants; returns why others were refused. Raises
        `RemoteProtocolError` for an offer that does not hold, or that comes too early.
        """
        number, plan = said.round, self._exchange.plan(said.round)
        if self._exchange.is_over(number):
            return []  # late
        if plan is None:
            raise RemoteProtocolError(
                f"expected no parts in round {number}, or none yet, got ranges {offered.ranges:#x}"
            )
        if not 0 < offered.ranges < 1 << plan.ranges:
            raise RemoteProtocolError(
                f"expected parts of {plan.ranges} ranges, got {offered.ranges:#x}"
            )
        if not self._announcements.admit(sender, said):
            return []
        listed = open_offered(said, offered.part_list, plan.ranges)
        ranges = self._exchange.ranges(number)
        refusals = list[str]()
        if taken := offered.ranges & ranges:
            self._announcements.enter(said)
            self._book.enter(said, listed, ranges)
            sizes = sizes_of(listed)
            for part, bits in parts_of(listed, taken).items():
                refusals += self._offered(events.Offered(sender, number, part, sizes[part], bits))
        if offered.ranges & ~ranges:
            refusals.append(f"expected parts of the ranges {ranges:#x}, got {offered.ranges:#x}")
        return refusals

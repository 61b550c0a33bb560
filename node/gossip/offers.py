"""Makes and takes the offers of one swarm: the exchange's, with the signatures of authors.

of payloads    each under its author's announcement
of parts       by the root that their author has signed: `node.gossip.part_offers`
of results     in a round with a plan, by their digest alone, which the commit names
"""

from node.gossip.address_book import AddressBook
from node.gossip.announcements import Announcements
from node.gossip.machine import events
from node.gossip.machine.exchange import Exchange
from node.gossip.part_book import PartBook
from node.gossip.part_offers import Offering, PartOffers
from protocol.codec.announcement import Announcement, announcement_of
from protocol.ids import PeerId
from protocol.wire_pb2 import OfferedPayload


class WireOffers:
    """The offers of one swarm, as messages. `offered` and `part_offered` hand one on to the
    exchange, and return why it was refused.
    """

    def __init__(
        self,
        exchange: Exchange,
        announcements: Announcements,
        book: PartBook,
        peers: AddressBook,
        offered: Offering,
        part_offered: Offering,
    ) -> None:
        self._exchange, self._offered = exchange, offered
        self.announcements = announcements
        """The signatures of authors."""
        self._parts = PartOffers(exchange, announcements, book, peers, part_offered)

    def made(self, offer: events.Offer) -> list[OfferedPayload]:
        """What to send for an offer; nothing of payloads whose announcement is not known."""
        if plan := self._exchange.plan(offer.round):
            return self._parts.made(offer, plan)
        signed = (self.announcements.offer(offer.round, digest) for digest, _ in offer.payloads)
        return [each for each in signed if each]

    def take(self, sender: PeerId, offered: OfferedPayload) -> list[str]:
        """Take one offer; returns why it was refused, nothing if it was taken or came too late.
        Raises `RemoteProtocolError` for one that does not hold, or comes too early.
        """
        said = announcement_of(offered)
        if offered.part_list or offered.ranges:
            return self._parts.take(sender, said, offered)
        if self._exchange.plan(said.round):  # a result that a commit names, or what is refused
            return self._offered(events.Offered(sender, said.round, said.digest, said.size))
        return self._take_whole(sender, said)

    def _take_whole(self, sender: PeerId, said: Announcement) -> list[str]:
        """Take the offer of a payload that is not cut."""
        if not self.announcements.admit(sender, said):
            return []
        if not self._exchange.fetches_of(said.round, said.author):
            return []  # a relay offers all that it has
        refusals = self._offered(events.Offered(sender, said.round, said.digest, said.size))
        if self._exchange.knows(said.digest):
            self.announcements.enter(said)
        return refusals

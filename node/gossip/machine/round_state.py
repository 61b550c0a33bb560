"""One round as the exchange sees it: its payloads, and the peers that they are offered to. Pure.

    without a plan     payloads go to the neighbours, and from these on
    with a plan        parts go to the summers of their range; what the commit names, which are
                       results of ranges, goes to the neighbours

Part of the exchange: nothing here changes except through `Exchange.handle`.
"""

from dataclasses import dataclass, field

from node.gossip.machine import events
from node.gossip.machine.payloads import Payload
from node.gossip.machine.sources import Sources
from protocol.ids import Digest, PeerId
from protocol.limits import OFFERS_MAX
from protocol.neighbours import neighbours
from protocol.sums.asked import places
from protocol.sums.plan import SumPlan

_Item = tuple[Digest, Payload]


@dataclass(frozen=True, slots=True)
class PeerSet:
    """The peers of the run, as far as this node knows."""

    members: tuple[PeerId, ...] = ()
    relays: tuple[PeerId, ...] = ()
    linked: frozenset[PeerId] | None = None
    """Peers to which a link is open; None while nothing is known of links."""

    def neighbours(self, round: int, own: PeerId, count: int) -> list[PeerId]:
        """Peers that a node offers to in a round: a member's neighbours by hash and all relays; all
        members, if it is a relay.
        """
        members = (
            self.members
            if own in self.relays
            else neighbours(round, self.members, own, count, self.linked)
        )
        return [peer for peer in dict.fromkeys((*members, *self.relays)) if peer != own]

    def among(self, near: frozenset[PeerId]) -> list[PeerId]:
        """Peers that a node offers to in a round whose payloads go to these alone: to the relays
        too while one of these has no link.
        """
        known = [peer for peer in self.members if peer in near]
        unlinked = self.linked is not None and not near <= self.linked
        return [*known, *(self.relays if unlinked else ())]

    def takers(self, summers: frozenset[PeerId], own: PeerId) -> frozenset[PeerId]:
        """Peers that a node offers the parts of a range to: its other summers, and the relays while
        one of these has no link.
        """
        others = summers - {own}
        unlinked = self.linked is not None and not others <= self.linked
        return others | (frozenset(self.relays) - {own} if unlinked else frozenset())


@dataclass(slots=True)
class Round:
    """The state of one round."""

    open: bool = False
    committed: bool = False
    payloads_max: int = 0
    """Payloads that peers may offer, one for each member; or its parts that this node takes."""
    plan: SumPlan | None = None
    """The nodes that get the parts of each range; None: payloads are not cut."""
    ranges: int = 0
    """Bits of the ranges whose parts this node takes."""
    takers: tuple[frozenset[PeerId], ...] = ()
    """The peers that the parts of each range are offered to."""
    untold: set[Digest] = field(default_factory=set)
    """Parts of which a taker may have to be told."""
    neighbours: list[PeerId] = field(default_factory=list)
    near: frozenset[PeerId] | None = None
    """The peers whose payloads are fetched; None: all peers."""
    callers: set[PeerId] = field(default_factory=set)
    """Peers that offered to this node."""
    payloads: dict[Digest, Payload] = field(default_factory=dict)
    worthless: set[Digest] = field(default_factory=set)
    """Payloads that were pulled and count for nothing. Each took a place and a whole transfer from
    the peer that offered it, so there are no more than peers can send within the round."""

    def holds(self, digest: Digest) -> bool:
        """Whether this node holds the payload, verified."""
        return digest in self.payloads and self.payloads[digest].held

    def offers(self, number: int, sources: Sources, now_ms: int) -> list[events.Effect]:
        """Offers of held payloads, own first, to every peer that was not offered them and is not a
        known holder; counts them as made.
        """
        if not self.open:
            return []
        offers: list[events.Effect] = []
        for peer, news in self._news(sources, now_ms):
            for first in range(0, len(news), OFFERS_MAX):
                part = news[first : first + OFFERS_MAX]
                listed = tuple((digest, payload.size) for digest, payload in part)
                offers.append(events.Offer(peer, number, listed))
            for _, payload in news:
                payload.told.add(peer)
        return offers

    def takers_of(self, payload: Payload) -> frozenset[PeerId]:
        """The peers that a part is offered to."""
        ranges = (self.takers[number] for number in places(payload.ranges, len(self.takers)))
        return frozenset().union(*ranges)

    def tell_again(self) -> None:
        """The takers, or what they were told, have changed."""
        self.untold = set(self.payloads) if self.has_parts else set()

    @property
    def has_parts(self) -> bool:
        """Whether parts of payloads are exchanged: there is a plan, and no commit yet."""
        return self.plan is not None and not self.committed

    def _news(self, sources: Sources, now_ms: int) -> list[tuple[PeerId, list[_Item]]]:
        """Payloads of which peers are to be told."""
        if self.has_parts:
            return self._news_of_parts(sources, now_ms)
        news = list[tuple[PeerId, list[_Item]]]()
        held = [item for item in sorted(self.payloads.items(), key=_own_first) if item[1].held]
        for peer in self._listeners:
            untold = [
                item for item in held if peer not in item[1].told and peer not in item[1].holders
            ]
            if untold and sources.takes_offers(peer, now_ms):
                news.append((peer, untold))
        return news

    def _news_of_parts(self, sources: Sources, now_ms: int) -> list[tuple[PeerId, list[_Item]]]:
        """The same of parts. One that is wanted for a sum may hold anything, and is not offered."""
        news, linked = dict[PeerId, list[_Item]](), sources.linked
        there = ((digest, self.payloads.get(digest)) for digest in self.untold)
        parts = [(digest, part) for digest, part in there if part and part.held and not part.wanted]
        self.untold.clear()
        for digest, part in sorted(parts, key=_own_first):
            for peer in (self.takers_of(part) - part.told - part.holders) & linked:
                if sources.takes_offers(peer, now_ms):
                    news.setdefault(peer, []).append((digest, part))
                else:
                    self.untold.add(digest)  # a little later
        return sorted(news.items())

    def waiting(self, sources: Sources, now_ms: int) -> list[PeerId]:
        """Peers that may be waiting for a payload that they were offered."""
        if not self.open:
            return []
        held = [payload for payload in self.payloads.values() if payload.held]
        if self.has_parts:
            lacking = {peer for part in held for peer in part.told - part.holders}
            return sorted(peer for peer in lacking if sources.takes_offers(peer, now_ms))
        return [
            peer
            for peer in self._listeners
            if sources.takes_offers(peer, now_ms)
            and any(peer in payload.told and peer not in payload.holders for payload in held)
        ]

    @property
    def _listeners(self) -> list[PeerId]:
        """Peers that this node offers to: its neighbours, and every peer that offers to it."""
        return [*self.neighbours, *sorted(self.callers.difference(self.neighbours))]


def _own_first(item: _Item) -> tuple[bool, Digest]:
    return not item[1].own, item[0]

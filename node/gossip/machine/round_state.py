"""One round as the exchange sees it: its payloads, and the peers that they are offered to. Pure.

Part of the exchange: nothing here changes except through `Exchange.handle`.
"""

from dataclasses import dataclass, field

from node.gossip.machine import events
from node.gossip.machine.payloads import Payload
from node.gossip.machine.sources import Sources
from protocol.ids import Digest, PeerId
from protocol.limits import OFFERS_MAX
from protocol.neighbours import neighbours


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


@dataclass(slots=True)
class Round:
    """The state of one round."""

    open: bool = False
    committed: bool = False
    payloads_max: int = 0
    """Payloads that peers may offer, one for each member."""
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
        held = [item for item in sorted(self.payloads.items(), key=_own_first) if item[1].held]
        for peer in self._takers:
            news = [
                item for item in held if peer not in item[1].told and peer not in item[1].holders
            ]
            if not news or not sources.takes_offers(peer, now_ms):
                continue
            for first in range(0, len(news), OFFERS_MAX):
                part = news[first : first + OFFERS_MAX]
                listed = tuple((digest, payload.size) for digest, payload in part)
                offers.append(events.Offer(peer, number, listed))
            for _, payload in news:
                payload.told.add(peer)
        return offers

    def waiting(self, sources: Sources, now_ms: int) -> list[PeerId]:
        """Peers that may be waiting for a payload that they were offered."""
        if not self.open:
            return []
        held = [payload for payload in self.payloads.values() if payload.held]
        return [
            peer
            for peer in self._takers
            if sources.takes_offers(peer, now_ms)
            and any(peer in payload.told and peer not in payload.holders for payload in held)
        ]

    @property
    def _takers(self) -> list[PeerId]:
        """Peers that this node offers to: its neighbours, and every peer that offers to it."""
        return [*self.neighbours, *sorted(self.callers.difference(self.neighbours))]


def _own_first(item: tuple[Digest, Payload]) -> tuple[bool, Digest]:
    return not item[1].own, item[0]

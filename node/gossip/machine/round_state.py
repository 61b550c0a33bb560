"""One round as the exchange sees it: its payloads, and to whom they are offered. Pure, a part of
the exchange."""

from dataclasses import dataclass, field

from node.gossip.machine.events import Effect, Offer
from node.gossip.machine.sources import Payload, Sources
from protocol.ids import Digest, PeerId
from protocol.limits import OFFERS_MAX
from protocol.neighbours import neighbours


@dataclass(frozen=True, slots=True)
class PeerSet:
    """Who takes part, as far as this node knows."""

    members: tuple[PeerId, ...] = ()
    relays: tuple[PeerId, ...] = ()
    linked: frozenset[PeerId] | None = None
    """To whom a link is open; None while nothing is known of links."""

    def neighbours(self, round: int, own: PeerId, count: int) -> list[PeerId]:
        """To whom a node offers in a round: its neighbours by hash and all relays; a relay to all
        members."""
        members = (
            self.members
            if own in self.relays
            else neighbours(round, self.members, own, count, self.linked)
        )
        return [peer for peer in dict.fromkeys((*members, *self.relays)) if peer != own]


@dataclass(slots=True)
class Round:
    """What is known of one round."""

    open: bool = False
    committed: bool = False
    payloads_max: int = 0
    neighbours: list[PeerId] = field(default_factory=list)
    callers: set[PeerId] = field(default_factory=set)
    """Who offered to this node."""
    payloads: dict[Digest, Payload] = field(default_factory=dict)

    def offers(self, number: int, sources: Sources, now_ms: int) -> list[Effect]:
        """What is held, own first, to everybody whom it was not offered yet and who is not known to
        hold it."""
        if not self.open:
            return []
        offers: list[Effect] = []
        held = [item for item in sorted(self.payloads.items(), key=_own_first) if item[1].held]
        for peer in self._takers:
            news = [
                item for item in held if peer not in item[1].told and peer not in item[1].holders
            ]
            if not news or not sources.takes_offers(peer, now_ms):
                continue
            for first in range(0, len(news), OFFERS_MAX):
                part = news[first : first + OFFERS_MAX]
                offers.append(
                    Offer(peer, number, tuple((digest, payload.size) for digest, payload in part))
                )
            for _, payload in news:
                payload.told.add(peer)
        return offers

    def waiting(self, sources: Sources, now_ms: int) -> list[PeerId]:
        """Who may be waiting for something that it was offered."""
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
        """To whom this node offers: its neighbours, and whoever offers to it."""
        return [*self.neighbours, *sorted(self.callers.difference(self.neighbours))]


def _own_first(item: tuple[Digest, Payload]) -> tuple[bool, Digest]:
    return not item[1].own, item[0]

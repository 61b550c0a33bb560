"""Peers as sources of payloads: their rates, their pauses after failures, and the best one to ask.
Pure.

Sources rank by failures, then by measured rate, then by XOR distance, which differs per node and
spreads the load. Rates down to a quarter of the fastest are equal, as are those down to a
sixteenth, and so on: the load is spread among similar sources, not put on the best one. A peer that
was never measured counts as fast. A pull that waited too long lowers its source's rate: busy is as
bad as slow.

Part of the exchange: nothing here changes except through `Exchange.handle`.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from node.gossip.machine.payloads import Failures, Payload
from protocol.ids import Digest, PeerId

OFFER_RETRY_MS = 1_000
"""Pause before the next offer to a neighbour that was unreachable or refused one."""

BROKEN_FIRST_MS = 50
"""Pause after a source's first failure: a link that broke is open again soon, and the source may be
the only one that holds a payload. It doubles unless links broke, so a peer that is gone is not
asked often."""

RATE_ASSUMED = 64 * 1024
"""Bytes per second expected while no peer's rate is known: a bit more than a poor DSL uplink
has."""


@dataclass(slots=True)
class _Source:
    rate: int = 0  # bytes per second; 0: never measured
    failures: Failures = field(default_factory=lambda: Failures(first_ms=BROKEN_FIRST_MS))
    offer_retry_ms: int = 0
    is_silent: bool = False


class Sources:
    """The members and relays other than this node."""

    def __init__(self, own: PeerId) -> None:
        self._own = int(own, 16)
        self._sources: dict[PeerId, _Source] = {}
        self._linked: frozenset[PeerId] | None = None
        self._fastest = RATE_ASSUMED

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._sources

    @property
    def fastest(self) -> int:
        """Bytes per second of the fastest measured peer, `RATE_ASSUMED` while there is none."""
        return self._fastest

    @property
    def linked(self) -> Set[PeerId]:
        """Sources to which a link is open; all of them while nothing is known of links."""
        return self._sources.keys() if self._linked is None else self._sources.keys() & self._linked

    # ---- what happened

    def set_peers(self, peers: Iterable[PeerId]) -> None:
        """Make exactly these peers the sources; what is known of those that stay is kept."""
        self._sources = {peer: self._sources.get(peer, _Source()) for peer in peers}
        self._find_fastest()

    def set_linked(self, peers: frozenset[PeerId]) -> None:
        """Links are open to exactly these peers."""
        self._linked = peers

    def succeeded(self, peer: PeerId, rate: int) -> None:
        """A pull from `peer` ended well at `rate` bytes per second; 0: all bytes were here already.

        The rate is a moving average, a quarter of it new.
        """
        if source := self._sources.get(peer):
            source.failures.reset()
            source.is_silent = False
            if rate:
                source.rate = max(1, (3 * source.rate + rate) // 4) if source.rate else rate
                self._find_fastest()

    def failed(self, peer: PeerId, now_ms: int, *, silent: bool, broke: bool = False) -> None:
        """A pull from `peer` ended badly; `silent`: before a byte of it came; `broke`: with its
        link.
        """
        if source := self._sources.get(peer):
            source.failures.add(now_ms, broke=broke)
            source.is_silent = source.is_silent or silent

    def cap_rate(self, peer: PeerId, ceiling: int) -> None:
        """`peer` sent at most `ceiling` bytes per second, though more was wanted."""
        if source := self._sources.get(peer):
            source.rate = min(source.rate or ceiling, ceiling)
            self._find_fastest()

    def offer_failed(self, peer: PeerId, now_ms: int) -> None:
        """An offer to `peer` was refused or lost."""
        if source := self._sources.get(peer):
            source.offer_retry_ms = now_ms + OFFER_RETRY_MS

    # ---- questions

    def takes_offers(self, peer: PeerId, now_ms: int) -> bool:
        """Whether it is worth offering to `peer` now."""
        return peer in self.linked and now_ms >= self._sources[peer].offer_retry_ms

    def is_silent(self, peer: PeerId) -> bool:
        """Whether nothing has come from `peer` since a pull failed that had no byte."""
        return peer in self._sources and self._sources[peer].is_silent

    def rate(self, peer: PeerId) -> int:
        """Bytes per second of a peer, 0 if it was never measured."""
        return self._sources[peer].rate if peer in self._sources else 0

    def reachable(self, now_ms: int) -> set[PeerId]:
        """Sources that do not pause after a failure."""
        return {peer for peer, source in self._sources.items() if source.failures.is_over(now_ms)}

    def distance(self, digest: Digest) -> int:
        """Distance of a payload from this node: an order that differs from node to node."""
        return self._own ^ int.from_bytes(digest[:16], "big")

    def best(
        self,
        digest: Digest,
        payload: Payload,
        reachable: set[PeerId],
        busy: set[PeerId],
        now_ms: int,
    ) -> PeerId | None:
        """The best of the `reachable` peers that are not `busy` to ask for a payload; None: ask
        nobody now.

        A peer that is not known to hold it is asked only for a wanted payload of which no holder is
        reachable: a busy holder is worth waiting for. One without a link is asked last: a dial may
        still succeed.
        """
        for tier in self._tiers(payload, reachable):
            candidates = {peer for peer in tier if payload.may_ask(peer, now_ms)}
            if candidates:
                return min(
                    candidates - busy,
                    key=lambda peer: self._rank(digest, payload, peer),
                    default=None,
                )
        return None

    def cost(self, payload: Payload, peer: PeerId, ceiling: int = 0) -> tuple[int, int, int]:
        """The cost of a peer as a source of a payload, less is better; similar peers are equal.

        `ceiling`, unless it is 0, bounds the peer's rate.
        """
        source = self._sources[peer]
        absent = payload.absent[peer].count if peer in payload.absent else 0
        rate = min(source.rate or ceiling, ceiling or source.rate)
        slowness = (self._fastest // rate).bit_length() - 1 if rate else 0
        return source.failures.count, absent, max(0, slowness) // 2

    def _rank(
        self, digest: Digest, payload: Payload, peer: PeerId
    ) -> tuple[int, int, int, bool, int]:
        return (
            *self.cost(payload, peer),
            peer != payload.idle_holder,
            self.distance(digest) ^ int(peer, 16),
        )

    def _tiers(self, payload: Payload, reachable: set[PeerId]) -> Iterator[set[PeerId]]:
        linked = reachable.intersection(self.linked)
        yield payload.holders & linked
        if payload.wanted:
            yield linked
            yield payload.holders & reachable
            yield reachable

    def _find_fastest(self) -> None:
        rates = (source.rate for source in self._sources.values())
        self._fastest = max(rates, default=0) or RATE_ASSUMED


def rate_of(size: int, elapsed_ms: int) -> int:
    """Bytes per second, at least one."""
    return max(1, 1000 * size // max(1, elapsed_ms))

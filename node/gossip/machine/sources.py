"""Peers as sources of payloads: how fast each is, which wait after a failure, and who is the best
to ask. Pure.

Sources rank by failures, then by measured rate, then by XOR distance, which differs per node and
spreads the load. Rates down to a quarter of the fastest are equal, as are those down to a
sixteenth, and so on: among like sources the load is spread and not all of it put on the best. Who
was never measured counts as fast. A pull that waited too long lowers its source's rate: busy is as
bad as slow.

Part of the exchange: only `Exchange.handle` calls what changes anything here.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from protocol.ids import Digest, PeerId

BACKOFF_FIRST_MS = 500
"""Wait after a source's first failure; it doubles with each further one."""

BACKOFF_MAX_MS = 10_000
"""Longest wait: a commit is available by invariant, so whoever holds it is worth asking again
soon."""

OFFER_RETRY_MS = 1_000
"""Wait before offering again to a neighbour that was unreachable or refused."""

RATE_ASSUMED = 64 * 1024
"""Bytes per second expected while no member's rate is known: a bit more than a poor DSL uplink
has."""


@dataclass(slots=True)
class Backoff:
    """A wait that doubles with each failure in a row."""

    failures: int = 0
    retry_ms: int = 0

    def fail(self, now_ms: int) -> None:
        """One more failure: not before `retry_ms` again."""
        self.failures += 1
        self.retry_ms = now_ms + min(BACKOFF_FIRST_MS << min(self.failures - 1, 16), BACKOFF_MAX_MS)


@dataclass(slots=True)
class Payload:
    """One payload of one round as the exchange sees it."""

    size: int
    held: bool = False
    own: bool = False
    wanted: bool = False
    """A commit names it."""
    replayed: bool = False
    """Of a commit whose round was never open here."""
    attempts: int = 0
    host: PeerId | None = None
    """Who has asked to be asked for it next, being idle."""
    holders: set[PeerId] = field(default_factory=set)
    """Who says, or is said, to hold it."""
    told: set[PeerId] = field(default_factory=set)
    """To whom this node offered it."""
    absent: dict[PeerId, Backoff] = field(default_factory=dict)
    """Who was asked and could not give it."""


@dataclass(slots=True)
class _Source:
    rate: int = 0  # bytes per second; 0: never measured
    backoff: Backoff = field(default_factory=Backoff)
    offer_retry_ms: int = 0


class Sources:
    """The members and relays other than this node."""

    def __init__(self, own: PeerId) -> None:
        self._own = int(own, 16)
        self._sources: dict[PeerId, _Source] = {}
        self._linked: frozenset[PeerId] | None = None
        self.fastest = RATE_ASSUMED
        """Bytes per second of the fastest peer that was measured."""

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._sources

    def become(self, peers: Iterable[PeerId]) -> None:
        """Forget who is not among `peers`; keep what is known of the others."""
        self._sources = {peer: self._sources.get(peer, _Source()) for peer in peers}
        self._find_fastest()

    def link(self, peers: frozenset[PeerId]) -> None:
        """To exactly these a link is open."""
        self._linked = peers

    @property
    def linked(self) -> Set[PeerId]:
        """To whom a link is open; everybody while nothing is known of links."""
        return self._sources.keys() if self._linked is None else self._sources.keys() & self._linked

    def succeeded(self, peer: PeerId, rate: int) -> None:
        """A pull from `peer` ended well at `rate` bytes per second, 0 if nothing had to be sent any
        more.

        The rate is a moving average, a quarter of it new."""
        if source := self._sources.get(peer):
            source.backoff = Backoff()
            if rate:
                source.rate = max(1, (3 * source.rate + rate) // 4) if source.rate else rate
                self._find_fastest()

    def failed(self, peer: PeerId, now_ms: int) -> None:
        """A pull from `peer` ended badly."""
        if source := self._sources.get(peer):
            source.backoff.fail(now_ms)

    def no_faster(self, peer: PeerId, ceiling: int) -> None:
        """`peer` sent no more than so many bytes per second to who wanted them."""
        if source := self._sources.get(peer):
            source.rate = min(source.rate or ceiling, ceiling)
            self._find_fastest()

    def offer_failed(self, peer: PeerId, now_ms: int) -> None:
        """An offer to `peer` was refused or lost."""
        if source := self._sources.get(peer):
            source.offer_retry_ms = now_ms + OFFER_RETRY_MS

    def takes_offers(self, peer: PeerId, now_ms: int) -> bool:
        """Whether it is worth offering to `peer` now."""
        return peer in self.linked and now_ms >= self._sources[peer].offer_retry_ms

    def rate(self, peer: PeerId) -> int:
        """Bytes per second of a peer, 0 if it was never measured."""
        return self._sources[peer].rate if peer in self._sources else 0

    def reachable(self, now_ms: int) -> set[PeerId]:
        """Who is not waiting after a failure."""
        return {peer for peer, source in self._sources.items() if now_ms >= source.backoff.retry_ms}

    def distance(self, digest: Digest) -> int:
        """How far a payload is from this node: an order that differs from node to node."""
        return self._own ^ int.from_bytes(digest[:16], "big")

    def best(
        self,
        digest: Digest,
        payload: Payload,
        reachable: set[PeerId],
        busy: set[PeerId],
        now_ms: int,
    ) -> PeerId | None:
        """Whom to ask for a payload among `reachable` peers that are not `busy`, or None for nobody
        now.

        A peer that is not known to hold it is asked only for a wanted payload of which no holder is
        reachable: a busy holder is worth waiting for. One without a link is asked last: a dial may
        still succeed."""
        for tier in self._tiers(payload, reachable):
            candidates = {peer for peer in tier if self._may_ask(payload, peer, now_ms)}
            if candidates:
                return min(
                    candidates - busy,
                    key=lambda peer: self.rank(digest, payload, peer),
                    default=None,
                )
        return None

    def rank(
        self, digest: Digest, payload: Payload, peer: PeerId
    ) -> tuple[int, int, int, bool, int]:
        """The order in which peers are asked for a payload."""
        return (
            *self.standing(payload, peer),
            peer != payload.host,
            self.distance(digest) ^ int(peer, 16),
        )

    def standing(self, payload: Payload, peer: PeerId, ceiling: int = 0) -> tuple[int, int, int]:
        """What a peer is as a source of a payload, less is better; like ones are equal. `ceiling`,
        if any, bounds its rate."""
        source = self._sources[peer]
        absent = payload.absent[peer].failures if peer in payload.absent else 0
        rate = min(source.rate or ceiling, ceiling or source.rate)
        slowness = (self.fastest // rate).bit_length() - 1 if rate else 0
        return source.backoff.failures, absent, max(0, slowness) // 2

    def _tiers(self, payload: Payload, reachable: set[PeerId]) -> Iterator[set[PeerId]]:
        linked = reachable.intersection(self.linked)
        yield payload.holders & linked
        if payload.wanted:
            yield linked
            yield payload.holders & reachable
            yield reachable

    def _find_fastest(self) -> None:
        self.fastest = (
            max((source.rate for source in self._sources.values()), default=0) or RATE_ASSUMED
        )

    def _may_ask(self, payload: Payload, peer: PeerId, now_ms: int) -> bool:
        return peer not in payload.absent or now_ms >= payload.absent[peer].retry_ms


def rate_of(size: int, elapsed_ms: int) -> int:
    """Bytes per second, at least one."""
    return max(1, 1000 * size // max(1, elapsed_ms))

"""Pulls under way: which to begin, and which to move to another source. Pure, a part of the
exchange.

              begin              Progressed               Pulled
    (missing) -------> waiting -----------------> arriving -------> (held)
        ^                 |                           |
        |                 +--------- Withdraw --------+      the source ends it: WITHDRAWN, no byte was sent in vain
        +-- PullFailed ---+                           |
                          +- Drop and Pull elsewhere -+      silent for too long: what is on its way is lost

A waiting pull stands in its source's queue (`node.links.upload_queue`). While nobody else holds the
payload, waiting is no stall: its only holder is asked by everybody and serves them one after the
other. When another holder is the better source, the pull is withdrawn and begins there; how long
this node waits at each so far is held against both. A like one is no better: where all are alike
everybody stands in every queue, and who leaves one only lengthens another. But one that says that
it is idle has no queue: one waiting pull goes there, unless its turn comes soon where it is.

An arriving pull is withdrawn when all that arrives is far slower than another holder is: the
payload of a thin uplink is had from whoever got it first. Not when this pull alone is slow, for
then this node's downlink may be the thin one.

A pull that hears nothing for too long is dropped if there is another source, and goes on if there
is none. That a source is gone is for its link to notice, which ends the pull."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from node.gossip.machine.events import Drop, Effect, Progressed, Pull, SwarmLimits, Withdraw
from node.gossip.machine.sources import Payload, Sources, rate_of
from protocol.ids import Digest, PeerId

PATIENCE = 4
"""A pull may be this many times as slow as the fastest source, or all pulls as another holder,
before one moves."""

WAIT_MS = 300
"""Least time that a pull stands in a queue before it moves: a round trip between continents is no
queue."""


class MissingPayload(NamedTuple):
    """A payload that this node lacks, in the oldest round that knows it."""

    round: int
    digest: Digest
    payload: Payload


@dataclass(slots=True)
class LivePull:
    """One pull from its beginning to its end or its move."""

    source: PeerId
    started_ms: int
    deadline_ms: int
    begun_ms: int | None = None
    """When its first bytes arrived; None while it waits."""
    arrived: int = 0
    """Bytes after the first ones."""

    withdrawn: bool = False
    """Its source was asked to end it."""

    def rate(self, now_ms: int) -> int:
        """Bytes per second since the first ones; 0 while nothing more has come."""
        return (
            0
            if self.begun_ms is None or not self.arrived
            else rate_of(self.arrived, now_ms - self.begun_ms)
        )


class PullPolicy:
    """The pulls of one exchange, at most one per digest."""

    def __init__(self, limits: SwarmLimits, sources: Sources) -> None:
        self._limits = limits
        self._sources = sources
        self._pulls: dict[Digest, LivePull] = {}

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._pulls

    def __iter__(self) -> Iterator[Digest]:
        return iter(sorted(self._pulls))

    @property
    def room(self) -> bool:
        """Whether a further pull may begin."""
        return len(self._pulls) < self._limits.pulls_max

    def source(self, digest: Digest) -> PeerId | None:
        """From whom a payload is being pulled."""
        return self._pulls[digest].source if digest in self._pulls else None

    def ended(self, digest: Digest, source: PeerId) -> bool:
        """A pull ended by itself; False for one that was dropped before the news of its end
        came."""
        if self.source(digest) != source:
            return False
        del self._pulls[digest]
        return True

    def drop(self, digest: Digest) -> list[Effect]:
        """Stop a pull, if there is one."""
        pull = self._pulls.pop(digest, None)
        return [Drop(pull.source, digest)] if pull else []

    def progressed(self, event: Progressed, now_ms: int) -> None:
        """Bytes arrived: with the first of them the wait is over, and the time that their sending
        may take begins."""
        pull = self._pulls.get(event.digest)
        if pull is None or pull.source != event.source:
            return  # late: dropped before the bytes came
        if pull.begun_ms is None:
            pull.begun_ms = now_ms
            pull.withdrawn = (
                False  # the source knew better; should it be slow, it may be asked again
            )
        else:
            pull.arrived += event.size
        pull.deadline_ms = now_ms + self._limits.stall_ms

    def begin(self, wishes: Sequence[MissingPayload], now_ms: int) -> list[Effect]:
        """Pull the first of these for which there is room and a source."""
        effects: list[Effect] = []
        if not wishes:  # as at almost every tick
            return effects
        reachable, busy = self._sources.reachable(now_ms), self._busy()
        for wish in wishes:
            if not self.room or not reachable - busy:
                break
            source = self._sources.best(wish.digest, wish.payload, reachable, busy, now_ms)
            if (
                source is not None and wish.digest not in self._pulls
            ):  # two rounds may know one digest
                effects.append(self._pull(wish, source, now_ms))
                busy = self._busy()
        return effects

    def move(self, wishes: Iterable[MissingPayload], now_ms: int) -> list[Effect]:
        """Move those of these pulls that are better off elsewhere; the others go on."""
        effects: list[Effect] = []
        for wish in wishes:
            pull = self._pulls[wish.digest]
            overdue = now_ms >= pull.deadline_ms
            if not overdue and (pull.withdrawn or not self._may_move(pull, now_ms)):
                continue
            busy, reachable = self._busy() | {pull.source}, self._sources.reachable(now_ms)
            source = self._sources.best(wish.digest, wish.payload, reachable, busy, now_ms)
            if source is None or not (overdue or self._is_better(source, pull, wish, now_ms)):
                continue
            ceiling = pull.rate(now_ms) or rate_of(wish.payload.size, now_ms - pull.started_ms)
            self._sources.no_faster(pull.source, ceiling)
            if overdue:
                effects += [Drop(pull.source, wish.digest), self._pull(wish, source, now_ms)]
            else:
                pull.withdrawn = True
                effects.append(Withdraw(pull.source, wish.digest))
        return effects

    def come_over(
        self, host: PeerId, wishes: Iterable[MissingPayload], now_ms: int
    ) -> list[Effect]:
        """Move one pull that waits elsewhere to an idle holder: of those that wait where this node
        waits for most, the one that has waited longest."""
        if host not in self._sources or host in self._busy():
            return []
        movable = [wish for wish in wishes if self._may_come_over(host, wish, now_ms)]
        if not movable:
            return []
        wish = min(movable, key=self._by_queue)
        pull = self._pulls[wish.digest]
        pull.withdrawn, wish.payload.host = True, host
        return [Withdraw(pull.source, wish.digest, unless_soon=True)]

    def _may_come_over(self, host: PeerId, wish: MissingPayload, now_ms: int) -> bool:
        """Whether it waits elsewhere, and the host is a holder that is no worse apart from its
        queue."""
        pull, payload = self._pulls[wish.digest], wish.payload
        if pull.withdrawn or pull.begun_ms is not None or not self._may_move(pull, now_ms):
            return False
        if pull.source == host or host not in payload.holders:
            return False
        standing = self._sources.standing
        return pull.source not in self._sources or standing(payload, host) <= standing(
            payload, pull.source
        )

    def _by_queue(self, wish: MissingPayload) -> tuple[int, int, Digest]:
        pull = self._pulls[wish.digest]
        return -len(self._waiting_at(pull.source)), pull.started_ms, wish.digest

    def _may_move(self, pull: LivePull, now_ms: int) -> bool:
        """Whether to look for another source at all: a cheap test before a dear one."""
        return (
            pull.arrived > 0 if pull.begun_ms is not None else now_ms - pull.started_ms >= WAIT_MS
        )

    def _is_better(self, source: PeerId, pull: LivePull, wish: MissingPayload, now_ms: int) -> bool:
        if pull.source not in self._sources:
            return True
        if pull.begun_ms is not None:
            total = sum(pull.rate(now_ms) for pull in self._pulls.values())
            return (self._sources.rate(source) or self._sources.fastest) > PATIENCE * total
        here = self._standing(wish.payload, pull.source, now_ms)
        return self._standing(wish.payload, source, now_ms) < here

    def _standing(self, payload: Payload, peer: PeerId, now_ms: int) -> tuple[int, int, int]:
        """A peer as a source, no faster than if it had sent the payload while pulls wait there."""
        since_ms = min((pull.started_ms for pull in self._waiting_at(peer)), default=None)
        ceiling = 0 if since_ms is None else rate_of(payload.size, now_ms - since_ms)
        return self._sources.standing(payload, peer, ceiling)

    def _waiting_at(self, peer: PeerId) -> list[LivePull]:
        return [
            pull for pull in self._pulls.values() if pull.source == peer and pull.begun_ms is None
        ]

    def _busy(self) -> set[PeerId]:
        """Sources from which no further pull may start."""
        live = [pull.source for pull in self._pulls.values()]
        return {peer for peer in live if live.count(peer) >= self._limits.pulls_per_peer}

    def _pull(self, wish: MissingPayload, source: PeerId, now_ms: int) -> Pull:
        deadline_ms = self._deadline_ms(wish.payload, now_ms)
        wish.payload.attempts += 1
        wish.payload.host = None
        self._pulls[wish.digest] = LivePull(source, now_ms, deadline_ms)
        payload = wish.payload
        return Pull(
            source, wish.digest, payload.size, wish.round, not payload.wanted, payload.replayed
        )

    def _deadline_ms(self, payload: Payload, now_ms: int) -> int:
        # Each further attempt gets twice the time: on a link that is slow for everybody, switching
        # helps nobody.
        expected_ms = (
            self._limits.stall_ms + PATIENCE * 1000 * payload.size // self._sources.fastest
        )
        return now_ms + (expected_ms << min(payload.attempts, 8))

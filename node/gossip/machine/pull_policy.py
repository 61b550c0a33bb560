"""Pulls under way: which to begin, and which to move to another source. Pure.

              begin              Progressed               Pulled
    (missing) -------> waiting -----------------> arriving -------> (held)
        ^                 |                           |
        |                 +--------- Withdraw --------+      the source ends it: WITHDRAWN,
        |                 |                           |      and no byte was sent in vain
        +-- PullFailed ---+                           |
                          +- Drop and Pull elsewhere -+      silent for too long: what is on
                                                             its way is lost

A waiting pull stands in its source's queue (`node.links.upload_queue`). While no other peer holds
the payload, waiting is no stall: its only holder is asked by all and serves them one after the
other. When another holder is the better source, the pull is withdrawn and begins there; the time
that this node has waited at each so far counts against both. A source of the same speed class is
not better: moving between equal queues helps nobody. But a holder that says that it is idle has no
queue: one waiting pull goes there, unless its turn comes soon where it is.

An arriving pull is withdrawn when all arriving pulls together are far slower than another holder
is: the payload of a thin uplink is better fetched from a peer that already has it. A single slow
pull is not withdrawn, for then this node's own downlink may be the thin one.

A source is silent that does not end a waiting pull when it is asked to, or that let one wait until
it failed: the pull is dropped, and the source has failed. Until it sends something again, pulls
leave it as soon as another source is known. A pull that hears nothing for too long is dropped if
there is another source, and goes on if there is none. Whether a source is gone is for its link to
notice, which ends the pull.

Part of the exchange: nothing here changes except through `Exchange.handle`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from node.gossip.machine import events
from node.gossip.machine.payloads import Payload
from node.gossip.machine.rounds import MissingPayload
from node.gossip.machine.sources import Sources, rate_of
from protocol.ids import Digest, PeerId

SLOWNESS_MAX = 4
"""Factor by which a pull may be slower than the fastest source, or all pulls together than another
holder, before one moves."""

WAIT_MS = 300
"""Shortest wait of a pull in a queue before it moves: a round trip between continents is no
queue."""

WITHDRAWN_MS = 1_000
"""Time in which a source ends a pull that it was asked to end: some round trips."""

DEADLINE_DOUBLINGS_MAX = 8
"""Doublings of a payload's deadline at most, one for each attempt: 256 times the first one."""


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

    withdrawn_ms: int | None = None
    """When its source was asked to end it at once."""

    @property
    def waits(self) -> bool:
        """Whether it stands in its source's queue: no byte has arrived."""
        return self.begun_ms is None

    def is_ignored(self, now_ms: int) -> bool:
        """Whether its source neither ends it nor begins, although it was asked to."""
        asked_ms = self.withdrawn_ms
        return self.waits and asked_ms is not None and now_ms - asked_ms >= WITHDRAWN_MS

    def rate(self, now_ms: int) -> int:
        """Bytes per second since the first ones; 0 while nothing more has come."""
        if self.begun_ms is None or not self.arrived:
            return 0
        return rate_of(self.arrived, now_ms - self.begun_ms)

    def may_move(self, now_ms: int) -> bool:
        """Whether to look for another source at all: a cheap test before an expensive one."""
        return now_ms - self.started_ms >= WAIT_MS if self.waits else self.arrived > 0


class PullPolicy:
    """The pulls of one exchange, at most one per payload."""

    def __init__(self, limits: events.SwarmLimits, sources: Sources) -> None:
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

    @property
    def sources(self) -> dict[Digest, PeerId]:
        """The source of each pull."""
        return {digest: pull.source for digest, pull in self._pulls.items()}

    # ---- what happened

    def ended(self, digest: Digest, source: PeerId) -> bool:
        """A pull ended by itself. Returns False for one that was dropped before the news of its end
        came.
        """
        if digest not in self._pulls or self._pulls[digest].source != source:
            return False
        del self._pulls[digest]
        return True

    def waited_in_vain(self, digest: Digest, now_ms: int) -> bool:
        """Whether no byte of a pull has arrived, and there was time for it."""
        pull = self._pulls.get(digest)
        return pull is not None and pull.waits and pull.may_move(now_ms)

    def drop(self, digest: Digest) -> list[events.Effect]:
        """Stop a pull, if there is one."""
        pull = self._pulls.pop(digest, None)
        return [events.Drop(pull.source, digest)] if pull else []

    def progressed(self, event: events.Progressed, now_ms: int) -> None:
        """Bytes arrived. The first of them end the wait, and from there the rate is measured."""
        pull = self._pulls.get(event.digest)
        if pull is None or pull.source != event.source:
            return  # late: dropped before the bytes came
        if pull.begun_ms is None:
            pull.begun_ms = now_ms
            # The source began all the same. Should it be slow, it may be asked to end once more.
            pull.withdrawn = False
        else:
            pull.arrived += event.size
        pull.deadline_ms = now_ms + self._limits.stall_ms

    # ---- decisions

    def begin(self, missing: Sequence[MissingPayload], now_ms: int) -> list[events.Effect]:
        """Pull the first of these payloads for which there is room and a source."""
        effects: list[events.Effect] = []
        if not missing:  # as at almost every tick
            return effects
        reachable, busy = self._sources.reachable(now_ms), self._busy()
        for wanted in missing:
            if not self.room or not reachable - busy:
                break
            source = self._sources.best(wanted.digest, wanted.payload, reachable, busy, now_ms)
            # Two rounds may know one payload: it is pulled once.
            if source is not None and wanted.digest not in self._pulls:
                effects.append(self._pull(wanted, source, now_ms))
                busy = self._busy()
        return effects

    def move(self, pulled: Iterable[MissingPayload], now_ms: int) -> list[events.Effect]:
        """Move those of these pulls that have a better source elsewhere; the others go on."""
        effects: list[events.Effect] = []
        for missing in pulled:
            pull, digest = self._pulls[missing.digest], missing.digest
            source = self._better_source(missing, pull, now_ms)
            if source is None:
                continue
            payload = missing.payload
            ceiling = pull.rate(now_ms) or rate_of(payload.size, now_ms - pull.started_ms)
            self._sources.cap_rate(pull.source, ceiling)
            if pull.is_ignored(now_ms):
                self._sources.failed(pull.source, now_ms, silent=True)
            if self._is_overdue(pull, now_ms):
                drop = events.Drop(pull.source, digest)
                effects += [drop, self._pull(missing, source, now_ms)]
            else:
                pull.withdrawn, pull.withdrawn_ms = True, now_ms
                effects.append(events.Withdraw(pull.source, digest))
        return effects

    def switch_to_idle(
        self, holder: PeerId, pulled: Iterable[MissingPayload], now_ms: int
    ) -> list[events.Effect]:
        """Move one waiting pull to an idle holder: among the waiting pulls, take the source with
        the most of them, and there the oldest.
        """
        if holder not in self._sources or holder in self._busy():
            return []
        movable = [missing for missing in pulled if self._may_switch(holder, missing, now_ms)]
        if not movable:
            return []
        chosen = min(movable, key=self._by_queue)
        pull = self._pulls[chosen.digest]
        pull.withdrawn, chosen.payload.idle_holder = True, holder
        return [events.Withdraw(pull.source, chosen.digest, unless_soon=True)]

    def _better_source(self, missing: MissingPayload, pull: LivePull, now_ms: int) -> PeerId | None:
        """The source that a pull should move to; any free one if it is overdue."""
        overdue = self._is_overdue(pull, now_ms)
        if not overdue and (pull.withdrawn or not pull.may_move(now_ms)):
            return None
        busy, reachable = self._busy() | {pull.source}, self._sources.reachable(now_ms)
        source = self._sources.best(missing.digest, missing.payload, reachable, busy, now_ms)
        if source and self._sources.is_silent(source) and self._sources.is_silent(pull.source):
            return None
        if source is None or overdue or self._is_better(source, pull, missing.payload, now_ms):
            return source
        return None

    def _is_overdue(self, pull: LivePull, now_ms: int) -> bool:
        """Whether it need not be asked to end; one at a silent source is, once there is another."""
        if now_ms >= pull.deadline_ms or pull.is_ignored(now_ms):
            return True
        return pull.waits and self._sources.is_silent(pull.source)

    def _may_switch(self, holder: PeerId, missing: MissingPayload, now_ms: int) -> bool:
        """Whether a pull waits elsewhere, and `holder` is as good a source except for its queue."""
        pull, payload = self._pulls[missing.digest], missing.payload
        if pull.withdrawn or not pull.waits or not pull.may_move(now_ms):
            return False
        if pull.source == holder or holder not in payload.holders:
            return False
        cost = self._sources.cost
        return pull.source not in self._sources or cost(payload, holder) <= cost(
            payload, pull.source
        )

    def _by_queue(self, missing: MissingPayload) -> tuple[int, int, Digest]:
        pull = self._pulls[missing.digest]
        return -len(self._waiting_at(pull.source)), pull.started_ms, missing.digest

    def _is_better(self, source: PeerId, pull: LivePull, payload: Payload, now_ms: int) -> bool:
        if pull.source not in self._sources:
            return True
        if not pull.waits:
            total = sum(pull.rate(now_ms) for pull in self._pulls.values())
            return (self._sources.rate(source) or self._sources.fastest) > SLOWNESS_MAX * total
        here = self._cost(payload, pull.source, now_ms)
        return self._cost(payload, source, now_ms) < here

    def _cost(self, payload: Payload, peer: PeerId, now_ms: int) -> tuple[int, int, int]:
        """A peer as a source. While pulls wait there it counts as no faster than if it had sent the
        payload in the time of the longest wait.
        """
        since_ms = min((pull.started_ms for pull in self._waiting_at(peer)), default=None)
        ceiling = 0 if since_ms is None else rate_of(payload.size, now_ms - since_ms)
        return self._sources.cost(payload, peer, ceiling)

    def _waiting_at(self, peer: PeerId) -> list[LivePull]:
        return [pull for pull in self._pulls.values() if pull.source == peer and pull.waits]

    def _busy(self) -> set[PeerId]:
        """Sources from which no further pull may start."""
        live = [pull.source for pull in self._pulls.values()]
        return {peer for peer in live if live.count(peer) >= self._limits.pulls_per_peer}

    def _pull(self, missing: MissingPayload, source: PeerId, now_ms: int) -> events.Pull:
        number, digest, payload = missing
        self._pulls[digest] = LivePull(source, now_ms, self._deadline_ms(payload, now_ms))
        payload.attempts += 1
        payload.idle_holder = None
        exact = not (payload.wanted or payload.disputed)
        return events.Pull(
            source,
            digest,
            payload.size,
            number,
            exact,
            replayed=payload.replayed,
            ranges=payload.ranges,
            disputed=payload.disputed and not payload.wanted,
        )

    def _deadline_ms(self, payload: Payload, now_ms: int) -> int:
        # Each further attempt gets twice the time: on a link that is slow to every source,
        # switching helps nobody.
        sending_ms = SLOWNESS_MAX * 1000 * payload.size // self._sources.fastest
        doublings = min(payload.attempts, DEADLINE_DOUBLINGS_MAX)
        return now_ms + ((self._limits.stall_ms + sending_ms) << doublings)

"""Gossip as one node sees it: what to offer to whom, and what to pull from where. Pure.

Digests are pushed, bytes are pulled. The machine decides; `node.swarm` moves the bytes, verifies them and reports
back. It follows all undecided rounds at once.

    one payload               Offered, Wanted            Pull                  Pulled (verified)
                            ------------------> known ---------> being pulled -----------------> held
                                                 ^ ^                  |                           |
                                                 | +--- PullFailed ---+                           |
      Published, Found: held at once             +--------------------- Lost ---------------------+

    one round                 Offered                RoundStarted         Wanted              Settled
                            ----------> early (kept) ------------> open ---------> committed ---------> forgotten
                            RoundStarted skips `early`, Wanted skips both, Settled ends each of them.

Rules
- What is held is offered to the round's neighbours, the own payload first, never to one who is known to hold it.
- A payload is pulled from one source at a time. When that takes much longer than the fastest known member would need,
  and another source is free, the pull is dropped and the other source goes on where it stopped.
- Sources rank by failures, then by measured rate (nobody measured yet counts as fast; rates within a factor of two
  are equal), then by XOR distance, which differs per node and spreads the load. The rarest payload goes first.
- A source that fails waits for a doubling backoff and is tried last after it.
- A payload named by a commit is asked of every member in turn when no known holder answers.
- An offer is bounded by size, round, sender and count. Blame is for what an honest peer cannot do; what may be a
  matter of timing is refused without blame, and the sender offers again.
- Same events, same effects: every choice is made over sorted values.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from node.exchange_events import (
    Blame,
    Drop,
    Effect,
    Event,
    Failure,
    Found,
    Lack,
    Lost,
    MembersChanged,
    Offer,
    Offered,
    OfferFailed,
    Published,
    Pull,
    Pulled,
    PullFailed,
    Refuse,
    ReportHolding,
    RoundStarted,
    Settled,
    SwarmLimits,
    Tick,
    Wanted,
)
from node.sources import Backoff, Payload, Sources
from protocol.errors import LocalProtocolError
from protocol.ids import Digest, PeerId, short
from protocol.limits import OFFERS_MAX
from protocol.neighbours import neighbours

AHEAD_ROUNDS_MAX = 2
"""A peer's offer may be this many rounds ahead of the newest round known here: its coordinator link is faster."""

UNDECIDED_ROUNDS_MAX = 16
"""Rounds followed at once; the oldest without a commit is forgotten first. With overlap two are usual."""

PATIENCE = 4
"""A pull may take this many times as long as the fastest measured member would need."""


@dataclass(slots=True)
class _Round:
    open: bool = False
    committed: bool = False
    payloads_max: int = 0
    neighbours: list[PeerId] = field(default_factory=list)
    payloads: dict[Digest, Payload] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _LivePull:
    source: PeerId
    size: int
    started_ms: int
    deadline_ms: int


class Exchange:
    """The machine. `handle` is the only way in; the methods below it only look."""

    def __init__(self, own: PeerId, limits: SwarmLimits) -> None:
        self._own = own
        self._limits = limits
        self._members: list[PeerId] = []
        self._sources = Sources(own)
        self._rounds: dict[int, _Round] = {}
        self._pulls: dict[Digest, _LivePull] = {}
        self._newest: int | None = None  # newest round that was opened or decided here

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event at the given time and say what to do.

        Raises `LocalProtocolError` for a payload published in a round that was never opened, or a second one."""
        effects: list[Effect] = []
        match event:
            case MembersChanged():
                self._on_members(event.members)
            case RoundStarted():
                effects = self._on_started(event.round)
            case Published():
                effects = self._on_published(event)
            case Found():
                effects = self._on_found(event)
            case Offered():  # never makes an offer here: skipping those keeps the most frequent event cheap
                return [*self._on_offered(event), *self._new_pulls(now_ms)]
            case OfferFailed():
                self._on_offer_failed(event, now_ms)
            case Wanted():
                effects = self._on_wanted(event)
            case Pulled():
                effects = self._on_pulled(event)
            case PullFailed():
                effects = self._on_pull_failed(event, now_ms)
            case Lost():
                self._on_lost(event.digest)
            case Settled():
                effects = self._on_settled(event.round)
            case Tick():
                pass
            case _:
                assert_never(event)
        return [*effects, *self._offers(now_ms), *self._overdue(now_ms), *self._new_pulls(now_ms)]

    def holding(self, round: int) -> list[Digest]:
        """Payloads of others that this node holds in an undecided round, sorted."""
        payloads = self._rounds[round].payloads if round in self._rounds else {}
        return sorted(digest for digest, payload in payloads.items() if payload.held and not payload.own)

    def holds(self, round: int, digest: Digest) -> bool:
        """Whether this payload is held, verified."""
        payloads = self._rounds[round].payloads if round in self._rounds else {}
        return digest in payloads and payloads[digest].held

    def lacking(self, round: int) -> list[Lack]:
        """What a commit names and this node does not hold yet, sorted by digest."""
        payloads = self._rounds[round].payloads if round in self._rounds else {}
        return [
            Lack(digest, self._pulls[digest].source if digest in self._pulls else None, len(payload.holders))
            for digest, payload in sorted(payloads.items())
            if payload.wanted and not payload.held
        ]

    # ---- events

    def _on_members(self, members: frozenset[PeerId]) -> None:
        self._members = sorted(members)
        self._sources.become(peer for peer in self._members if peer != self._own)
        for number, round in self._rounds.items():
            self._know_members(number, round)
            for payload in round.payloads.values():
                payload.told &= members  # who comes back may have forgotten

    def _know_members(self, number: int, round: _Round) -> None:
        # An author may leave after publishing, so the bound does not shrink with the members.
        round.payloads_max = max(round.payloads_max, len(self._members))
        round.neighbours = neighbours(number, self._members, self._own, self._limits.neighbours)

    def _on_started(self, number: int) -> list[Effect]:
        round = self._rounds.get(number)
        if round is None and self._newest is not None and number <= self._newest:
            return []  # said again after a reconnect, and decided here since
        self._newest = number if self._newest is None else max(self._newest, number)
        round = round or self._new_round(number)
        round.open = True
        undecided = sorted(number for number, round in self._rounds.items() if not round.committed)
        return [drop for old in undecided[:-UNDECIDED_ROUNDS_MAX] for drop in self._forget(old)]

    def _new_round(self, number: int) -> _Round:
        round = self._rounds[number] = _Round()
        self._know_members(number, round)
        return round

    def _on_published(self, event: Published) -> list[Effect]:
        round = self._rounds.get(event.round)
        if round is None and self._newest is not None and event.round <= self._newest:
            return []  # decided while the payload was being made: the trainer reclaims it
        if round is None or not (round.open or round.committed):
            open_rounds = sorted(number for number, round in self._rounds.items() if round.open)
            raise LocalProtocolError(f"expected a payload of an open round ({open_rounds}), got {event}")
        if any(payload.own and digest != event.digest for digest, payload in round.payloads.items()):
            raise LocalProtocolError(f"expected one own payload in round {event.round}, got a second: {event}")
        if round.committed and event.digest not in round.payloads:
            return []  # late: the commit left it out
        round.payloads.setdefault(event.digest, Payload(event.size)).own = True
        return self._hold(event.digest, event.size)

    def _on_found(self, event: Found) -> list[Effect]:
        round = self._rounds.get(event.round)
        if round is None or round.committed:
            return []  # late: decided while the log was being read
        round.payloads.setdefault(event.digest, Payload(event.size))
        return self._hold(event.digest, event.size)

    def _on_offered(self, event: Offered) -> list[Effect]:
        sender, size_max = event.sender, self._limits.payload_bytes_max
        if sender not in self._sources:
            return [Blame(sender, f"expected an offer from a member, got one from {short(sender)}")]
        if not 1 <= event.size <= size_max:
            return [Blame(sender, f"expected a payload of 1..{size_max} bytes, got an offer of {event.size}")]
        if self._newest is None:
            return [Refuse(sender, f"no round is known here yet, got an offer for round {event.round}")]
        if event.round > self._newest + AHEAD_ROUNDS_MAX:
            text = f"expected an offer up to round {self._newest + AHEAD_ROUNDS_MAX}, got round {event.round}"
            return [Blame(sender, text)]
        round = self._rounds.get(event.round)
        if round is None and event.round <= self._newest:
            return []  # late: the round is decided here, and not yet where the offer comes from
        return self._take_offer(event, round or self._new_round(event.round))

    def _take_offer(self, event: Offered, round: _Round) -> list[Effect]:
        payload, sender = round.payloads.get(event.digest), event.sender
        if payload is None:
            if round.committed:
                return []  # late: the commit left it out
            vouched = sum(sender in payload.holders for payload in round.payloads.values())
            if vouched >= round.payloads_max:
                text = f"expected at most {round.payloads_max} payloads in round {event.round}, got one more offer"
                return [Blame(sender, text)]
            if len(round.payloads) >= round.payloads_max:
                return [Refuse(sender, f"round {event.round} has {len(round.payloads)} payloads already")]
            payload = round.payloads[event.digest] = Payload(event.size)
        elif payload.size != event.size and not (payload.wanted and not payload.held):
            text = f"payload {event.digest.hex()[:8]}: expected {payload.size} bytes, got an offer of {event.size}"
            return [Blame(sender, text) if payload.held else Refuse(sender, text)]
        payload.holders.add(sender)
        payload.absent.pop(sender, None)
        return []

    def _on_offer_failed(self, event: OfferFailed, now_ms: int) -> None:
        self._sources.offer_failed(event.peer, now_ms)
        if event.round in self._rounds:  # else it is decided
            for payload in self._rounds[event.round].payloads.values():
                payload.told.discard(event.peer)

    def _on_wanted(self, event: Wanted) -> list[Effect]:
        round = self._rounds.get(event.round) or self._new_round(event.round)
        named = {want.digest: round.payloads.get(want.digest, Payload(want.size)) for want in event.wants}
        left_out = round.payloads.keys() - named.keys()
        round.committed, round.payloads = True, named
        for want in event.wants:
            payload = named[want.digest]
            payload.wanted, payload.held = True, payload.held or want.held
            payload.size = payload.size if payload.held and not want.held else want.size
            payload.holders |= set(want.holders) - {self._own}
        return self._drop_unneeded(left_out)

    def _on_pulled(self, event: Pulled) -> list[Effect]:
        pull = self._pulls.get(event.digest)
        if pull and pull.source == event.source:  # else it was dropped, but had just ended well
            del self._pulls[event.digest]
        self._sources.succeeded(event.source, event.bytes_per_second)
        for round in self._rounds.values():
            if event.digest in round.payloads:
                round.payloads[event.digest].holders.add(event.source)
        return self._hold(event.digest, event.size)

    def _hold(self, digest: Digest, size: int) -> list[Effect]:
        pull = self._pulls.pop(digest, None)
        effects: list[Effect] = [Drop(pull.source, digest)] if pull else []
        for number, round in sorted(self._rounds.items()):
            payload = round.payloads.get(digest)
            if payload and not payload.held:
                payload.held, payload.size = True, size
                if not payload.own:
                    effects.append(ReportHolding(number, (digest,)))
        return effects

    def _on_pull_failed(self, event: PullFailed, now_ms: int) -> list[Effect]:
        pull = self._pulls.get(event.digest)
        if pull is None or pull.source != event.source:
            return []  # late: dropped before the news of its end came
        del self._pulls[event.digest]
        if event.failure is not Failure.ABSENT:
            self._sources.failed(event.source, now_ms)
        if event.failure is not Failure.UNAVAILABLE:
            self._not_a_holder(event.digest, event.source, now_ms)
        return [Blame(event.source, event.reason)] if event.failure is Failure.FAULTY else []

    def _not_a_holder(self, digest: Digest, peer: PeerId, now_ms: int) -> None:
        for round in self._rounds.values():
            payload = round.payloads.get(digest)
            if payload is None:
                continue
            payload.holders.discard(peer)
            payload.absent.setdefault(peer, Backoff()).fail(now_ms)
            if not (payload.holders or payload.held or payload.wanted):
                del round.payloads[digest]  # nobody vouches for it any more: its place is free again

    def _on_lost(self, digest: Digest) -> None:
        for round in self._rounds.values():
            if digest in round.payloads:
                round.payloads[digest].held = False

    def _on_settled(self, number: int) -> list[Effect]:
        self._newest = number if self._newest is None else max(self._newest, number)
        return self._forget(number)

    def _forget(self, number: int) -> list[Effect]:
        round = self._rounds.pop(number, None)
        return self._drop_unneeded(round.payloads) if round else []

    def _drop_unneeded(self, digests: Iterable[Digest]) -> list[Effect]:
        drops: list[Effect] = []
        for digest in sorted(digests):
            if digest in self._pulls and not any(digest in round.payloads for round in self._rounds.values()):
                drops.append(Drop(self._pulls.pop(digest).source, digest))
        return drops

    # ---- decisions

    def _offers(self, now_ms: int) -> list[Effect]:
        offers: list[Effect] = []
        for number, round in sorted(self._rounds.items()):
            held = [item for item in sorted(round.payloads.items(), key=_own_first) if item[1].held]
            for peer in round.neighbours if round.open else ():
                if not self._sources.takes_offers(peer, now_ms):
                    continue
                news = [item for item in held if peer not in item[1].told and peer not in item[1].holders]
                for first in range(0, len(news), OFFERS_MAX):
                    part = news[first : first + OFFERS_MAX]
                    offers.append(Offer(peer, number, tuple((digest, payload.size) for digest, payload in part)))
                for _, payload in news:
                    payload.told.add(peer)
        return offers

    def _overdue(self, now_ms: int) -> list[Effect]:
        """Replace pulls past their deadline for which another source is free; the others go on."""
        effects: list[Effect] = []
        for digest, pull in sorted(self._pulls.items()):
            if now_ms < pull.deadline_ms:
                continue
            number, payload = self._wherever(digest)
            busy = self._full() | {pull.source}
            source = self._sources.best(digest, payload, self._sources.reachable(now_ms), busy, now_ms)
            if source is not None:
                self._sources.overdue(pull.source, pull.size, now_ms - pull.started_ms)
                effects += [Drop(pull.source, digest), self._pull(number, digest, source, now_ms)]
        return effects

    def _wherever(self, digest: Digest) -> tuple[int, Payload]:
        """The oldest round that knows a digest which is being pulled; a pull outlives no round that needs it."""
        return next((n, r.payloads[digest]) for n, r in sorted(self._rounds.items()) if digest in r.payloads)

    def _new_pulls(self, now_ms: int) -> list[Effect]:
        pulls: list[Effect] = []
        reachable, full = self._sources.reachable(now_ms), self._full()
        for number, digest in self._missing() if reachable - full else ():
            if len(self._pulls) >= self._limits.pulls_max:
                break
            payload = self._rounds[number].payloads[digest]
            source = self._sources.best(digest, payload, reachable, full, now_ms)
            if source is not None and digest not in self._pulls:  # two rounds may know one digest
                pulls.append(self._pull(number, digest, source, now_ms))
                full = self._full()
        return pulls

    def _missing(self) -> list[tuple[int, Digest]]:
        """What to pull next: named by a commit first, then of old rounds, then rare, then in this node's own order."""
        if len(self._pulls) >= self._limits.pulls_max:
            return []
        missing = [
            (not payload.wanted, number, len(payload.holders), self._sources.distance(digest), digest)
            for number, round in self._rounds.items()
            if round.open or round.committed
            for digest, payload in round.payloads.items()
            if not payload.held and digest not in self._pulls
        ]
        return [(number, digest) for _, number, _, _, digest in sorted(missing)]

    def _full(self) -> set[PeerId]:
        """Sources from which no further pull may start."""
        live = [pull.source for pull in self._pulls.values()]
        return {peer for peer in live if live.count(peer) >= self._limits.pulls_per_peer}

    def _pull(self, number: int, digest: Digest, source: PeerId, now_ms: int) -> Pull:
        payload = self._rounds[number].payloads[digest]
        expected_ms = self._limits.stall_ms + PATIENCE * 1000 * payload.size // self._sources.fastest
        # Each further attempt gets twice the time: on a link that is slow for everybody, switching helps nobody.
        deadline_ms = now_ms + (expected_ms << min(payload.attempts, 8))
        payload.attempts += 1
        self._pulls[digest] = _LivePull(source, payload.size, now_ms, deadline_ms)
        return Pull(source, digest, payload.size, number, exact=not payload.wanted)


def _own_first(item: tuple[Digest, Payload]) -> tuple[bool, Digest]:
    return not item[1].own, item[0]

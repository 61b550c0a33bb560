"""Gossip as one node sees it: what to offer to whom, and what to pull from where. Pure.

Digests are pushed, bytes are pulled. The machine decides; `node.gossip.swarm` moves the bytes,
verifies them and reports back. It follows all undecided rounds at once.

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
  Neighbours are who the hash says, as far as a link is open to them, others in their place where none is; all relays;
  and whoever offers to this node, for it may have no other way. A relay offers to all it is linked to.
- A payload is pulled from one source at a time: `node.gossip.machine.pull_policy` says when it moves to another, `node.gossip.machine.sources` to
  which. The rarest payload goes first.
- An idle uplink says so: who waits in a queue elsewhere for what it holds comes over (`node.gossip.machine.idle_uplink`).
- A source that fails waits for a doubling backoff and is tried last after it.
- A payload named by a commit is asked of every member in turn when no known holder answers.
- An offer is bounded by size, round, sender and count. Blame is for what an honest peer cannot do; what may be a
  matter of timing is refused without blame, and the sender offers again.
- Same events, same effects: every choice is made over sorted values.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import assert_never

from node.gossip.machine.events import (
    Blame,
    Effect,
    Event,
    Failure,
    Found,
    Idle,
    Lack,
    Linked,
    Lost,
    MembersChanged,
    Offer,
    Offered,
    OfferFailed,
    Progressed,
    Published,
    Pulled,
    PullFailed,
    Refuse,
    ReportHolding,
    RoundStarted,
    Served,
    Settled,
    SwarmLimits,
    Tick,
    Wanted,
)
from node.gossip.machine.idle_uplink import IdleUplink
from node.gossip.machine.pull_policy import MissingPayload, PullPolicy
from node.gossip.machine.round_state import PeerSet, Round
from node.gossip.machine.sources import Backoff, Payload, Sources
from protocol.errors import LocalProtocolError
from protocol.ids import Digest, PeerId, short

AHEAD_ROUNDS_MAX = 2
"""A peer's offer may be this many rounds ahead of the newest round known here: its coordinator link
is faster."""

UNDECIDED_ROUNDS_MAX = 16
"""Rounds followed at once; the oldest without a commit is forgotten first. With overlap two are
usual."""


class Exchange:
    """The machine. `handle` is the only way in; the methods below it only look."""

    def __init__(self, own: PeerId, limits: SwarmLimits) -> None:
        self._own = own
        self._limits = limits
        self._peers = PeerSet()
        self._sources = Sources(own)
        self._rounds: dict[int, Round] = {}
        self._pulls = PullPolicy(limits, self._sources)
        self._invitations = IdleUplink()
        self._newest: int | None = None  # newest round that was opened or decided here

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event at the given time and say what to do.

        Raises `LocalProtocolError` for a payload published in a round that was never opened, or a
        second one."""
        effects: list[Effect] = []
        match event:
            case MembersChanged():
                self._on_members(event)
            case Linked():
                self._on_linked(event.peers)
            case RoundStarted():
                effects = self._on_started(event.round)
            case Published():
                effects = self._on_published(event)
            case Found():
                effects = self._on_found(event)
            case Offered():  # never makes an offer here: skipping those keeps the most frequent event cheap
                return [
                    *self._on_offered(event),
                    *self._moves(now_ms, event.digest),
                    *self._new_pulls(now_ms),
                ]
            case Idle():
                return self._pulls.come_over(event.sender, self._pulled(), now_ms)
            case OfferFailed():
                self._on_offer_failed(event, now_ms)
            case Wanted():
                effects = self._on_wanted(event)
            case Progressed():  # makes no offer either
                return self._on_progressed(event, now_ms)
            case Pulled():
                effects = self._on_pulled(event)
            case PullFailed():
                effects = self._on_pull_failed(event, now_ms)
            case Served():
                self._on_served(event)
            case Lost():
                self._on_lost(event.digest)
            case Settled():
                effects = self._on_settled(event.round)
            case Tick():
                effects = self._on_tick(event, now_ms)
            case _:
                assert_never(event)
        return [*effects, *self._offers(now_ms), *self._moves(now_ms), *self._new_pulls(now_ms)]

    def holding(self, round: int) -> list[Digest]:
        """Payloads of others that this node holds in an undecided round, sorted."""
        payloads = self._rounds[round].payloads if round in self._rounds else {}
        return sorted(
            digest for digest, payload in payloads.items() if payload.held and not payload.own
        )

    def holds(self, round: int, digest: Digest) -> bool:
        """Whether this payload is held, verified."""
        payloads = self._rounds[round].payloads if round in self._rounds else {}
        return digest in payloads and payloads[digest].held

    def lacking(self, round: int) -> list[Lack]:
        """What a commit names and this node does not hold yet, sorted by digest."""
        payloads = self._rounds[round].payloads if round in self._rounds else {}
        return [
            Lack(digest, self._pulls.source(digest), len(payload.holders))
            for digest, payload in sorted(payloads.items())
            if payload.wanted and not payload.held
        ]

    def knows(self, digest: Digest) -> bool:
        """Whether a payload belongs to an undecided round."""
        return any(digest in round.payloads for round in self._rounds.values())

    def urgency(self, peer: PeerId, digest: Digest) -> tuple[int, ...]:
        """How urgent it is to serve a payload to a peer, less is more urgent: `Uploads` orders by
        it."""
        wish = next(self._wishes(digest), None)
        if wish is None:
            return (1,)
        payload = wish.payload
        return (
            0,
            wish.round,
            len(payload.holders),
            not payload.own,
            -self._sources.rate(peer).bit_length(),
        )

    # ---- events

    def _on_members(self, event: MembersChanged) -> None:
        peers = event.members | event.relays
        self._peers = replace(
            self._peers, members=tuple(sorted(event.members)), relays=tuple(sorted(event.relays))
        )
        self._sources.become(peer for peer in sorted(peers) if peer != self._own)
        self._know_peers(peers)

    def _on_linked(self, peers: frozenset[PeerId]) -> None:
        self._peers = replace(self._peers, linked=peers)
        self._sources.link(peers)
        self._know_peers(peers)

    def _know_peers(self, told: frozenset[PeerId]) -> None:
        for number, round in self._rounds.items():
            self._choose_neighbours(number, round)
            for payload in round.payloads.values():
                payload.told &= told  # who comes back may have forgotten

    def _choose_neighbours(self, number: int, round: Round) -> None:
        # An author may leave after publishing, so the bound does not shrink with the members.
        round.payloads_max = max(round.payloads_max, len(self._peers.members))
        round.neighbours = self._peers.neighbours(number, self._own, self._limits.neighbours)

    def _on_started(self, number: int) -> list[Effect]:
        round = self._rounds.get(number)
        if round is None and self._newest is not None and number <= self._newest:
            return []  # said again after a reconnect, and decided here since
        self._newest = number if self._newest is None else max(self._newest, number)
        round = round or self._new_round(number)
        round.open = True
        undecided = sorted(number for number, round in self._rounds.items() if not round.committed)
        return [drop for old in undecided[:-UNDECIDED_ROUNDS_MAX] for drop in self._forget(old)]

    def _new_round(self, number: int) -> Round:
        round = self._rounds[number] = Round()
        self._choose_neighbours(number, round)
        return round

    def _on_published(self, event: Published) -> list[Effect]:
        round = self._rounds.get(event.round)
        if round is None and self._newest is not None and event.round <= self._newest:
            return []  # decided while the payload was being made: the trainer reclaims it
        if round is None or not (round.open or round.committed):
            open_rounds = sorted(number for number, round in self._rounds.items() if round.open)
            raise LocalProtocolError(
                f"expected a payload of an open round ({open_rounds}), got {event}"
            )
        if any(
            payload.own and digest != event.digest for digest, payload in round.payloads.items()
        ):
            raise LocalProtocolError(
                f"expected one own payload in round {event.round}, got a second: {event}"
            )
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
            return [
                Blame(
                    sender,
                    f"expected a payload of 1..{size_max} bytes, got an offer of {event.size}",
                )
            ]
        if self._newest is None:
            return [
                Refuse(sender, f"no round is known here yet, got an offer for round {event.round}")
            ]
        if event.round > self._newest + AHEAD_ROUNDS_MAX:
            text = f"expected an offer up to round {self._newest + AHEAD_ROUNDS_MAX}, got round {event.round}"
            return [Refuse(sender, text)]  # a matter of time: this node may be catching up
        round = self._rounds.get(event.round)
        if round is None and event.round <= self._newest:
            return []  # late: the round is decided here, and not yet where the offer comes from
        return self._take_offer(event, round or self._new_round(event.round))

    def _take_offer(self, event: Offered, round: Round) -> list[Effect]:
        payload, sender = round.payloads.get(event.digest), event.sender
        round.callers.add(sender)
        if payload is None:
            if round.committed:
                return []  # late: the commit left it out
            vouched = sum(sender in payload.holders for payload in round.payloads.values())
            if vouched >= round.payloads_max:
                text = f"expected at most {round.payloads_max} payloads in round {event.round}, got one more offer"
                return [Blame(sender, text)]
            if len(round.payloads) >= round.payloads_max:
                return [
                    Refuse(
                        sender, f"round {event.round} has {len(round.payloads)} payloads already"
                    )
                ]
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
        named = {
            want.digest: round.payloads.get(want.digest, Payload(want.size)) for want in event.wants
        }
        left_out = round.payloads.keys() - named.keys()
        round.committed, round.payloads = True, named
        for want in event.wants:
            payload = named[want.digest]
            payload.wanted, payload.held = True, payload.held or want.held
            payload.replayed = not round.open
            payload.size = payload.size if payload.held and not want.held else want.size
            payload.holders |= set(want.holders) - {self._own}
        return self._drop_unneeded(left_out)

    def _on_progressed(self, event: Progressed, now_ms: int) -> list[Effect]:
        if event.digest not in self._pulls:
            return []  # late: dropped before the bytes came
        self._pulls.progressed(event, now_ms)
        return self._moves(now_ms, event.digest)

    def _on_pulled(self, event: Pulled) -> list[Effect]:
        self._pulls.ended(
            event.digest, event.source
        )  # else it was dropped, but had just ended well
        self._sources.succeeded(event.source, event.bytes_per_second)
        self._is_holder(event.digest, event.source)
        return self._hold(event.digest, event.size)

    def _on_served(self, event: Served) -> None:
        if event.peer in self._sources:
            self._is_holder(event.digest, event.peer)

    def _is_holder(self, digest: Digest, peer: PeerId) -> None:
        for round in self._rounds.values():
            if digest in round.payloads:
                round.payloads[digest].holders.add(peer)

    def _hold(self, digest: Digest, size: int) -> list[Effect]:
        effects = self._pulls.drop(digest)
        for number, round in sorted(self._rounds.items()):
            payload = round.payloads.get(digest)
            if payload and not payload.held:
                payload.held, payload.size = True, size
                if not payload.own:
                    effects.append(ReportHolding(number, (digest,)))
        return effects

    def _on_pull_failed(self, event: PullFailed, now_ms: int) -> list[Effect]:
        if not self._pulls.ended(event.digest, event.source):
            return []  # late: dropped before the news of its end came
        if event.failure in (Failure.UNAVAILABLE, Failure.FAULTY):
            self._sources.failed(event.source, now_ms)
        if event.failure in (Failure.ABSENT, Failure.FAULTY):
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
                del round.payloads[
                    digest
                ]  # nobody vouches for it any more: its place is free again

    def _on_lost(self, digest: Digest) -> None:
        for round in self._rounds.values():
            if digest in round.payloads:
                round.payloads[digest].held = False

    def _on_settled(self, number: int) -> list[Effect]:
        self._newest = number if self._newest is None else max(self._newest, number)
        return self._forget(number)

    def _on_tick(self, event: Tick, now_ms: int) -> list[Effect]:
        if not event.idle:
            self._invitations.end()
        if not (event.idle and self._invitations.due(now_ms)):
            return []
        waiting = {
            peer: number
            for number, round in sorted(self._rounds.items(), reverse=True)
            for peer in round.waiting(self._sources, now_ms)
        }
        chosen = self._invitations.next(list(waiting), now_ms)
        return [Offer(peer, waiting[peer], (), idle=True) for peer in chosen]

    def _forget(self, number: int) -> list[Effect]:
        round = self._rounds.pop(number, None)
        return self._drop_unneeded(round.payloads) if round else []

    def _drop_unneeded(self, digests: Iterable[Digest]) -> list[Effect]:
        drops: list[Effect] = []
        for digest in sorted(digests):
            if not any(digest in round.payloads for round in self._rounds.values()):
                drops += self._pulls.drop(digest)
        return drops

    # ---- decisions

    def _offers(self, now_ms: int) -> list[Effect]:
        rounds = sorted(self._rounds.items())
        return [
            offer
            for number, round in rounds
            for offer in round.offers(number, self._sources, now_ms)
        ]

    def _moves(self, now_ms: int, *digests: Digest) -> list[Effect]:
        """Move the pulls of these payloads, or of all, to better sources."""
        return self._pulls.move(self._pulled(*digests), now_ms)

    def _pulled(self, *digests: Digest) -> list[MissingPayload]:
        """What is being pulled, of these payloads or of all."""
        return [
            next(self._wishes(digest)) for digest in digests or self._pulls if digest in self._pulls
        ]

    def _wishes(self, digest: Digest) -> Iterator[MissingPayload]:
        """A payload in each undecided round that knows it, oldest first: a pull outlives no round
        that needs it."""
        return (
            MissingPayload(n, digest, r.payloads[digest])
            for n, r in sorted(self._rounds.items())
            if digest in r.payloads
        )

    def _new_pulls(self, now_ms: int) -> list[Effect]:
        return self._pulls.begin(self._missing() if self._pulls.room else (), now_ms)

    def _missing(self) -> list[MissingPayload]:
        """What to pull next: named by a commit first, then of old rounds, then rare, then in this
        node's own order."""
        missing = [
            (
                not payload.wanted,
                number,
                len(payload.holders),
                self._sources.distance(digest),
                digest,
            )
            for number, round in self._rounds.items()
            if round.open or round.committed
            for digest, payload in round.payloads.items()
            if not payload.held and digest not in self._pulls
        ]
        return [
            MissingPayload(number, digest, self._rounds[number].payloads[digest])
            for _, number, _, _, digest in sorted(missing)
        ]

"""Decides which payloads a node offers to which peer, and which it pulls from which one. Pure.

A node that has a payload tells its neighbours so: an offer, which is the digest. Whoever lacks the
payload asks for its bytes: a pull. So the bytes go only where they are wanted. The machine decides
both; `node.gossip.swarm` moves the bytes, verifies them and reports back. Several rounds may be
undecided at once, and all are followed (`machine.rounds` has the picture of a round).

    one payload

               Offered, Wanted          Pull                       Pulled (verified)
             ------------------> known ------> being pulled ---------------------------> held
                                  ^ ^               |                                     |
                                  | +- PullFailed --+                                     |
                                  +------------------------- Lost ------------------------+
             Published, Found ---------------------------------------------------------> held

Rules
- Held payloads are offered to the round's neighbours, the own payload first, and never to a peer
  that is known to hold them. A member's neighbours are chosen by a hash among the peers to which a
  link is open; all relays are neighbours too. A peer that offers to this node is offered to in
  turn: it may have no other way. A relay offers to every peer that it is linked to.
- In a round with a plan (`protocol.sums.plan`) payloads are cut: a part goes to the summers of its
  range, and from them to each other. A part that a sum needs is asked for as what a commit names.
- A payload is pulled from one source at a time: `machine.pull_policy` says when the pull moves to
  another source, `machine.sources` to which. The rarest payload goes first.
- A node whose uplink is idle tells its neighbours; a peer that waits elsewhere for a payload it
  holds may switch to it (`machine.idle_uplink`).
- A source that fails pauses for a doubling backoff and is tried last after it.
- A payload named by a commit is asked of every member in turn when no known holder answers. When
  every linked member failed to give it several times, it is `NotRetained`, and asked for all the
  same.
- An offer is bounded by size, round, sender and count (`machine.admission`).
- A pulled payload that no commit names and that counts for nothing is not held: its place in the
  round is free again, its sender is blamed, and so is every peer that offers it later.
- Same events, same effects: every choice is made over sorted values.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from node.gossip.machine import events
from node.gossip.machine.admission import admit
from node.gossip.machine.idle_uplink import IdleUplink
from node.gossip.machine.invariants import check
from node.gossip.machine.payloads import Payload
from node.gossip.machine.pull_policy import PullPolicy
from node.gossip.machine.rounds import MissingPayload, Rounds
from node.gossip.machine.sources import Sources
from protocol.errors import LocalProtocolError
from protocol.ids import Digest, PeerId
from protocol.sums.asked import bits_of
from protocol.sums.plan import SumPlan


class Exchange:
    """The machine. `handle` is the only way in; the other public methods change nothing."""

    def __init__(self, own: PeerId, limits: events.SwarmLimits) -> None:
        self._own = own
        self._limits = limits
        self._sources = Sources(own)
        self._rounds = Rounds(own, limits.neighbours)
        self._pulls = PullPolicy(limits, self._sources)
        self._idle_uplink = IdleUplink()

    def handle(self, event: events.Event, now_ms: int) -> list[events.Effect]:
        """Take one event at the given time and return what to do.

        Raises `LocalProtocolError` for a payload published in a round that was never opened, or a
        second one in a round.
        """
        effects: list[events.Effect] = []
        match event:
            case events.MembersChanged():
                self._on_members(event)
            case events.Linked():
                self._on_linked(event.peers)
            case events.RoundStarted():
                effects = self._drop(self._rounds.start(event))
            case events.SummerAdded():
                self._rounds.add_summer(event.round, event.number, event.peer)
            case events.Published():
                effects = self._on_published(event)
            case events.Found():
                effects = self._on_found(event)
            case events.Offered():  # the most frequent event; it never leads to an offer
                return [
                    *admit(event, self._rounds, self._sources, self._limits.payload_bytes_max),
                    *self._moves(now_ms, event.digest),
                    *self._new_pulls(now_ms),
                ]
            case events.Idle():
                return self._pulls.switch_to_idle(event.sender, self._pulled(), now_ms)
            case events.OfferFailed():
                self._on_offer_failed(event, now_ms)
            case events.Wanted():
                effects = self._on_wanted(event)
            case events.PartsNeeded():
                effects = self._on_parts_needed(event)
            case events.Progressed():  # never leads to an offer either
                return self._on_progressed(event, now_ms)
            case events.Pulled():
                effects = self._on_pulled(event)
            case events.PullFailed():
                effects = self._on_pull_failed(event, now_ms)
            case events.Served():
                self._on_served(event)
            case events.Lost():
                self._rounds.lose(event.digest)
            case events.Settled():
                self._rounds.saw(event.round)
                effects = self._drop(self._rounds.forget(event.round))
            case events.Tick():
                effects = self._on_tick(event, now_ms)
            case _:
                assert_never(event)
        return [*effects, *self._offers(now_ms), *self._moves(now_ms), *self._new_pulls(now_ms)]

    # ---- views

    @property
    def newest_round(self) -> int | None:
        """Newest round that was opened or decided here."""
        return self._rounds.newest

    @property
    def rounds(self) -> list[int]:
        """Rounds that are followed, oldest first."""
        return [number for number, _ in self._rounds]

    @property
    def pulling(self) -> dict[Digest, PeerId]:
        """Pulls under way, by payload, with their sources."""
        return self._pulls.sources

    def holding(self, round: int) -> list[Digest]:
        """Payloads of others that this node holds in an undecided round, sorted."""
        return self._rounds.holding(round)

    def holds(self, round: int, digest: Digest) -> bool:
        """Whether this payload is held, verified."""
        state = self._rounds.get(round)
        return state is not None and state.holds(digest)

    def lacking(self, round: int) -> list[events.Lack]:
        """Payloads that a commit names and this node does not hold yet, sorted by digest."""
        state = self._rounds.get(round)
        return [
            events.Lack(digest, self._pulls.sources.get(digest), len(payload.holders))
            for digest, payload in (sorted(state.payloads.items()) if state else ())
            if payload.missing
        ]

    def knows(self, digest: Digest) -> bool:
        """Whether a payload belongs to an undecided round."""
        return self._rounds.knows(digest)

    def fetches_of(self, round: int, author: PeerId) -> bool:
        """Whether the payloads of an author are of use here before a commit names them."""
        state = self._rounds.get(round)
        return state is None or state.near is None or author in state.near

    def plan(self, round: int) -> SumPlan | None:
        """The plan of a round that is open; None: it has none, or is not."""
        state = self._rounds.get(round)
        return state.plan if state else None

    def ranges(self, round: int) -> int:
        """Bits of the ranges whose parts this node takes now: none without a plan, or after the
        commit.
        """
        state = self._rounds.get(round)
        return state.ranges if state and state.has_parts else 0

    def added_here(self, round: int) -> int:
        """Bits of the ranges that this node adds, of those that it takes."""
        plan = self.plan(round)
        return self.ranges(round) & bits_of(plan.ranges_of(self._own)) if plan else 0

    def is_over(self, round: int) -> bool:
        """Whether a round was decided or forgotten here."""
        state = self._rounds.get(round)
        return state.committed if state else self._rounds.is_over(round)

    def urgency(self, peer: PeerId, digest: Digest) -> tuple[int, ...]:
        """How urgent it is to serve a payload to a peer, less is more urgent; the order of
        `node.links.upload_queue`.
        """
        known = next(self._rounds.payloads(digest), None)
        if known is None:
            return (1,)
        return (
            0,
            known.round,
            len(known.payload.holders),
            not known.payload.own,
            -self._sources.rate(peer).bit_length(),
        )

    def validate(self) -> None:
        """Check what holds between two events, as `invariants.check` says."""
        check(self._own, self._limits, self._rounds, self._sources, self._pulls)

    # ---- events

    def _on_members(self, event: events.MembersChanged) -> None:
        members, relays = tuple(sorted(event.members)), tuple(sorted(event.relays))
        self._sources.set_peers(sorted((event.members | event.relays) - {self._own}))
        self._rounds.meet(replace(self._rounds.peers, members=members, relays=relays))

    def _on_linked(self, peers: frozenset[PeerId]) -> None:
        self._sources.set_linked(peers)
        self._rounds.meet(replace(self._rounds.peers, linked=peers))

    def _on_published(self, event: events.Published) -> list[events.Effect]:
        if self._rounds.is_over(event.round):
            return []  # decided while the payload was being made: it is lost
        round = self._rounds.get(event.round)
        if round is None or not (round.open or round.committed):
            open_rounds = [number for number, round in self._rounds if round.open]
            raise LocalProtocolError(
                f"expected a payload of an open round ({open_rounds}), got {event}"
            )
        if round.plan is None and any(
            payload.own and digest != event.digest for digest, payload in round.payloads.items()
        ):
            raise LocalProtocolError(
                f"expected one own payload in round {event.round}, got a second: {event}"
            )
        if round.committed and event.digest not in round.payloads:
            return []  # late: the commit left it out
        payload = round.payloads.setdefault(event.digest, Payload(event.size))
        payload.own, payload.ranges = True, payload.ranges | event.ranges
        return self._hold(event.digest, event.size)

    def _on_found(self, event: events.Found) -> list[events.Effect]:
        round = self._rounds.get(event.round)
        if round is None or round.committed:
            return []  # late: decided while the log was being read
        round.payloads.setdefault(event.digest, Payload(event.size)).ranges |= event.ranges
        return self._hold(event.digest, event.size)

    def _on_offer_failed(self, event: events.OfferFailed, now_ms: int) -> None:
        self._sources.offer_failed(event.peer, now_ms)
        if round := self._rounds.get(event.round):  # else it is decided
            for payload in round.payloads.values():
                payload.told.discard(event.peer)
            round.tell_again()

    def _on_wanted(self, event: events.Wanted) -> list[events.Effect]:
        round = self._rounds.follow(event.round)
        named = {
            want.digest: round.payloads.get(want.digest, Payload(want.size)) for want in event.wants
        }
        left_out = round.payloads.keys() - named.keys()
        round.committed, round.payloads = True, named
        round.untold.clear()
        for want in event.wants:
            payload = named[want.digest]
            payload.wanted, payload.held = True, payload.held or want.held
            payload.replayed = not round.open
            payload.size = payload.size if payload.held and not want.held else want.size
            payload.holders |= set(want.holders) - {self._own}
        return self._drop(self._rounds.unneeded(left_out))

    def _on_parts_needed(self, event: events.PartsNeeded) -> list[events.Effect]:
        round, effects = self._rounds.get(event.round), list[events.Effect]()
        if round is None or not round.has_parts:
            return []  # late: decided since
        for want in event.wants:
            payload = round.payloads.setdefault(want.digest, Payload(want.size))
            payload.wanted = True
            payload.holders |= set(want.holders) - {self._own}
            if want.held and not payload.held:
                effects += self._hold(want.digest, want.size)
        return effects

    def _on_progressed(self, event: events.Progressed, now_ms: int) -> list[events.Effect]:
        if event.digest not in self._pulls:
            return []  # late: dropped before the bytes came
        self._pulls.progressed(event, now_ms)
        return self._moves(now_ms, event.digest)

    def _on_pulled(self, event: events.Pulled) -> list[events.Effect]:
        # A pull that was dropped in its last moment brought the payload all the same.
        self._pulls.ended(event.digest, event.source)
        self._sources.succeeded(event.source, event.bytes_per_second)
        self._rounds.add_holder(event.digest, event.source)
        return self._hold(event.digest, event.size)

    def _on_served(self, event: events.Served) -> None:
        if event.peer in self._sources:
            self._rounds.add_holder(event.digest, event.peer)

    def _hold(self, digest: Digest, size: int) -> list[events.Effect]:
        return [*self._pulls.drop(digest), *self._rounds.hold(digest, size)]

    def _on_pull_failed(self, event: events.PullFailed, now_ms: int) -> list[events.Effect]:
        silent = self._pulls.waited_in_vain(event.digest, now_ms)
        if not self._pulls.ended(event.digest, event.source):
            return []  # late: dropped before the news of its end came
        failure, effects = event.failure, list[events.Effect]()
        broke = failure is events.Failure.BROKEN
        if broke or failure in (events.Failure.UNAVAILABLE, events.Failure.FAULTY):
            self._sources.failed(event.source, now_ms, silent=silent, broke=broke)
        if failure in (events.Failure.ABSENT, events.Failure.FAULTY):
            self._rounds.remove_holder(event.digest, event.source, now_ms)
        if failure is events.Failure.WORTHLESS:
            self._rounds.throw_away(event.digest, event.source, now_ms)
        if failure in (events.Failure.FAULTY, events.Failure.WORTHLESS):
            effects.append(events.Blame(event.source, event.reason))
        return [*effects, *self._not_retained(event.digest)]

    def _not_retained(self, digest: Digest) -> list[events.Effect]:
        """The news that every linked member failed to give a missing payload, if that is so."""
        members = self._sources.linked & set(self._rounds.peers.members)
        return [
            events.NotRetained(known.round, digest)
            for known in self._rounds.payloads(digest)
            if known.payload.missing and known.payload.kept_by_none(members)
        ]

    def _on_tick(self, event: events.Tick, now_ms: int) -> list[events.Effect]:
        if not event.idle:
            self._idle_uplink.reset()
        if not (event.idle and self._idle_uplink.is_due(now_ms)):
            return []
        waiting = {  # each peer with the oldest round in which it waits
            peer: number
            for number, round in reversed(list(self._rounds))
            for peer in round.waiting(self._sources, now_ms)
        }
        chosen = self._idle_uplink.invite(list(waiting), now_ms)
        return [events.Offer(peer, waiting[peer], (), idle=True) for peer in chosen]

    # ---- decisions

    def _drop(self, digests: Iterable[Digest]) -> list[events.Effect]:
        """Stop the pulls of payloads that no round needs any more."""
        return [drop for digest in digests for drop in self._pulls.drop(digest)]

    def _offers(self, now_ms: int) -> list[events.Effect]:
        return [
            offer
            for number, round in self._rounds
            for offer in round.offers(number, self._sources, now_ms)
        ]

    def _moves(self, now_ms: int, *digests: Digest) -> list[events.Effect]:
        """Move the pulls of these payloads, or of all, to better sources."""
        return self._pulls.move(self._pulled(*digests), now_ms)

    def _pulled(self, *digests: Digest) -> list[MissingPayload]:
        """Payloads that are being pulled, among these or of all."""
        return [
            next(self._rounds.payloads(digest))
            for digest in digests or self._pulls
            if digest in self._pulls
        ]

    def _new_pulls(self, now_ms: int) -> list[events.Effect]:
        return self._pulls.begin(self._to_pull() if self._pulls.room else (), now_ms)

    def _to_pull(self) -> list[MissingPayload]:
        """Payloads to pull next: those named by a commit first, then those of old rounds, then rare
        ones, then in this node's own order.
        """

        def order(missing: MissingPayload) -> tuple[bool, int, int, int, Digest]:
            number, digest, payload = missing
            distance = self._sources.distance(digest)
            return not payload.wanted, number, len(payload.holders), distance, digest

        return sorted(
            (missing for missing in self._rounds.lacking() if missing.digest not in self._pulls),
            key=order,
        )

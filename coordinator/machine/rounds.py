"""THE state machine of a run: opens rounds, decides each once, keeps the data order and the
members.

    waiting --------> round in flight                                            finished
      ^    enough      opened --bell--> exchanging --publish_by--> closing          ^
      |    ready          \\                 |                        |              | all steps
      |                    '-----------------'------------------------'              | committed
      |                 everyone announced and copies exist, or commit_by            |
      |                                      |                                       |
      '-------------------- committed | skipped (final) ------------------------------'

Rules
- `handle` is the only door. The final word of a round is said once, in the order of rounds.
- Round r+1 opens when nobody computes r any more and at most `overlap` rounds are undecided: with overlap 1 a
  round is exchanged while the next is computed; with overlap 0, and before round `overlap_from`, it is decided first.
- A payload counts when it was announced by `publish_by` by a member that was asked for it and `copies_min`
  other members hold it. Fewer such payloads than the quorum: the round is skipped and authors reclaim.
- A round closes early when every live member that was asked has announced and copies of all exist. A payload that
  died with its author's process, before anybody else held it, is not waited for.
- A commit carries the learning rate of the step that it makes, which a round opened before a skip did not know.
- The slot of a round follows what members needed in the last one (`coordinator.machine.pacing`).
- A member whose state differs is held to account by `coordinator.machine.digest_verdicts`.
- Leased samples: announced ones are trained (in the update or in the author's momentum), unused ones return
  to the data order; those of a member that goes away or is late are lost and recorded.
- A finished run is concluded, and its nodes let go, when all of them hold its last commit: until then they serve
  each other. It waits two leases at most for those that are behind or went missing lately.
- Late messages are no errors: they are ignored by name where they are matched.
"""

from typing import assert_never

from coordinator.machine.digest_verdicts import DigestVerdicts
from coordinator.machine.events import (
    Announced,
    Applied,
    AskResync,
    Assignment,
    CommitRound,
    Concluded,
    Disconnected,
    Effect,
    Event,
    Evict,
    FinishRun,
    Heartbeat,
    Holding,
    InstantReached,
    Joined,
    Lapsed,
    Left,
    OpenRound,
    Ready,
    Refuse,
    Restarted,
    SkipRound,
)
from coordinator.machine.membership import Member, Membership
from coordinator.machine.pacing import Pace, next_pace, samples_per_share, smoothed_speed
from coordinator.machine.undecided_round import (
    UndecidedRound,
    check_announcement,
    mean_loss,
    unused_part,
)
from protocol.clock import instants, stated_slot
from protocol.commits import Commit, Entry, commit_digest, genesis_digest
from protocol.errors import LocalProtocolError
from protocol.ids import Digest, PeerId, RunId
from protocol.runfile import RunSpec
from protocol.schedule import scalars
from protocol.shuffle import DataOrder


class Rounds:
    """State of one run as its coordinator knows it. Fields are read by
    `coordinator.status_document`, written here."""

    def __init__(self, spec: RunSpec, run_id: RunId) -> None:
        self.spec, self.run_id = spec, run_id
        self.members = Membership(spec.membership)
        self.verdicts = DigestVerdicts()
        self.pace = Pace(stated_slot(spec.rounds))
        self.order = DataOrder()
        self.in_flight: list[UndecidedRound] = []
        self.next_round = 0
        self.committed = 0
        self.skipped = 0
        self.decided_round = -1
        self.head_round = -1
        self.head: Digest = genesis_digest(run_id)
        self.samples_trained = 0
        self.samples_lost = 0
        self.payloads = 0
        self.payload_bytes = 0
        self.loss: float | None = None
        self.finished = False
        self.concluded = False
        self.conclude_by_ms = 0
        self.reason = "no member has joined yet"
        self.last_ms = 0

    # ---- the door

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event at a time that never runs backwards; return what must follow, in order.

        Raises `RemoteProtocolError` for what no honest node sends, with the state untouched."""
        if now_ms < self.last_ms:
            raise LocalProtocolError(
                f"expected time at or after {self.last_ms}, got {now_ms} with {event}"
            )
        effects = self._dispatch(event, now_ms)
        if isinstance(event, Announced | Holding | Applied):
            self.members.renew(
                event.peer, now_ms
            )  # a sign of life, even when it comes too late for its round
        if not isinstance(
            event, Heartbeat
        ):  # else a replay would count an outage from another instant
            self.last_ms = now_ms
        return effects + self._advance(now_ms)

    def due(self, now_ms: int) -> list[Event]:
        """Events that time alone has brought about; the shell journals and handles them one by
        one."""
        lapsed: list[Event] = [Lapsed(peer) for peer in self.members.lapsed(now_ms)]
        reached: list[Event] = []
        for flight in self.in_flight:
            upcoming = flight.next_instant()
            if upcoming and upcoming[1] <= now_ms:
                reached.append(InstantReached(flight.round, upcoming[0]))
        if self.finished and not self.concluded and self.conclude_by_ms <= now_ms:
            reached.append(Concluded())
        return lapsed + reached

    def next_due_ms(self) -> int | None:
        """When `due` will have something next."""
        times = [upcoming[1] for flight in self.in_flight if (upcoming := flight.next_instant())]
        if self.finished and not self.concluded:
            times.append(self.conclude_by_ms)
        lapse = self.members.next_lapse_ms()
        return min(times + ([lapse] if lapse is not None else []), default=None)

    def flight(self, round: int) -> UndecidedRound | None:
        """The round, while it is undecided."""
        return next((flight for flight in self.in_flight if flight.round == round), None)

    # ---- events

    def _dispatch(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Announced():
                return self._announced(event, now_ms)
            case Holding(peer, round, digests):
                flight = self.flight(round)
                if flight and self.members.get(
                    peer
                ):  # a late receipt, or one from a former member, says nothing
                    for digest in digests:
                        flight.hold(peer, digest, now_ms)
                return []
            case Applied():
                return self._applied(event, now_ms)
            case InstantReached():
                return self._reached(event)
            case Concluded():
                return [self._conclude()]
            case Ready():
                return self._readied(event, now_ms)
            case Left(peer) | Lapsed(peer):
                effects = self.members.handle(event, now_ms)
                return effects + self._gone(peer, now_ms)
            case Restarted():
                self._extend(now_ms - self.last_ms)
                return self.members.handle(event, now_ms)
            case Joined(peer):
                if reason := self.verdicts.refusal(peer, now_ms):
                    return [Refuse(peer, reason, True)]
                for flight in self.in_flight:
                    flight.doubt(peer)
                return self.members.handle(event, now_ms)
            case Heartbeat() | Disconnected():
                return self.members.handle(event, now_ms)
            case _:
                assert_never(event)

    def _announced(self, event: Announced, now_ms: int) -> list[Effect]:
        flight, member = self.flight(event.round), self.members.get(event.peer)
        if flight is None or member is None or event.peer not in flight.assignments:
            return []  # stale: the round is decided, or the author was not asked
        if earlier := flight.announced.get(event.peer):
            if earlier.digest and earlier.digest == event.digest:
                flight.hold(event.peer, Digest(event.digest), now_ms)
            return []  # said again after a reconnect: it still holds it
        if flight.reached in ("publish_by", "commit_by"):
            return []  # late: left out, and already counted as a strike
        assignment = flight.assignments[event.peer]
        check_announcement(event, assignment, self.spec.rounds.payload_bytes_max)
        flight.announce(event, now_ms)
        for share in unused_part(assignment.shares, event.samples):
            self.order.give_back(share)
        self.samples_trained += event.samples
        self.members.punctual(event.peer)
        member.samples += event.samples
        if event.samples:
            member.speed = smoothed_speed(member.speed, event.samples, event.compute_ms)
            member.loss = event.loss
        return []

    def _applied(self, event: Applied, now_ms: int) -> list[Effect]:
        member = self.members.get(event.peer)
        if member is None or event.round > self.head_round:
            return []  # a former member's report, or one from the future of a lost journal
        member.round = max(member.round, event.round)
        return self._judged(self.verdicts.report(event, self.members, now_ms), now_ms)

    def _readied(self, event: Ready, now_ms: int) -> list[Effect]:
        if self.members.get(event.peer) is None:
            return []  # it was evicted with this on the way; it will say hello again
        if event.round > self.head_round:
            return self._judged(self.verdicts.ahead(event, self.head_round, self.members), now_ms)
        verdicts = self.verdicts.report(event, self.members, now_ms)
        effects = self._judged(verdicts, now_ms)
        if any(
            isinstance(effect, AskResync | Evict) and effect.peer == event.peer
            for effect in verdicts
        ):
            return effects
        effects += self.members.handle(event, now_ms)
        for flight in self.in_flight:
            flight.settle_doubt(event.peer)
        for flight in self.in_flight:  # it lost its session in the middle: give it its work again
            if event.peer in flight.silent:
                effects.append(self._open_effect(flight, (flight.assignments[event.peer],)))
        if self.concluded:
            effects.append(FinishRun(self.reason))  # it came back after the end and missed the word
        return effects

    def _judged(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        """With what follows when a verdict has removed members, or sent them back to the log: what
        they were to train on a state that is discarded is lost, and nobody waits for it."""
        for effect in effects:
            if isinstance(effect, Evict):
                effects = effects + self._gone(effect.peer, now_ms)
            elif isinstance(effect, AskResync):
                self.samples_lost += sum(flight.withdraw(effect.peer) for flight in self.in_flight)
        return effects

    def _gone(self, peer: PeerId, now_ms: int) -> list[Effect]:
        """A member went: what it was to train unannounced is lost, what it held is gone."""
        self.samples_lost += sum(flight.forget(peer) for flight in self.in_flight)
        return self._judged(self.verdicts.gone(peer, self.members, now_ms), now_ms)

    def _reached(self, event: InstantReached) -> list[Effect]:
        flight = self.flight(event.round)
        if flight is None:
            return []  # decided early
        flight.reached = event.instant
        if event.instant == "publish_by":
            for peer in flight.awaited(self.members.live):
                self.members.late(peer)
        return []

    def _extend(self, outage_ms: int) -> None:
        self.conclude_by_ms += outage_ms
        for flight in self.in_flight:
            flight.postpone(outage_ms)

    # ---- decisions

    def _advance(self, now_ms: int) -> list[Effect]:
        """Say every final word that can be said, then open what can be opened."""
        effects: list[Effect] = []
        while self.in_flight and self._decidable(self.in_flight[0]):
            effects.append(self._decide(self.in_flight.pop(0), now_ms))
        if not self.finished and self.committed >= self.spec.schedule.steps:
            self.finished, self.reason = True, f"all {self.committed} steps are done"
            self.conclude_by_ms = now_ms + 2 * self.spec.membership.lease_ms
        if self.finished and not self.concluded and not self._behind():
            effects.append(self._conclude())
        if not self.finished and self._may_open():
            effects.append(self._open(now_ms))
        return effects

    def _behind(self) -> list[PeerId]:
        """Who lacks the last commit of a finished run and may still ask others for it."""
        behind = [member.peer for member in self.members if member.round < self.head_round]
        return behind + self.members.missing(
            self.conclude_by_ms - 4 * self.spec.membership.lease_ms
        )

    def _conclude(self) -> Effect:
        self.concluded = True
        return FinishRun(self.reason)

    def _decidable(self, flight: UndecidedRound) -> bool:
        if flight.reached == "commit_by":
            return True
        live, roster = self.members.live, self.members.roster
        if flight.reached != "publish_by" and flight.waits(live):
            return False
        if any(peer in roster for peer in flight.assignments) and not any(
            map(live, flight.assignments)
        ):
            return (
                False  # everyone's session is gone at once: the network here, rather than the nodes
            )
        return not flight.waits_for_copies(roster)

    def _decide(self, flight: UndecidedRound, now_ms: int) -> Effect:
        rounds = self.spec.rounds
        self.decided_round = flight.round
        self.samples_lost += flight.unannounced()
        needs = flight.needs(self.members.keeps_time, now_ms)
        self.pace = next_pace(
            self.pace, needs, rounds, hides=rounds.overlap_at(self.next_round) > 0
        )
        # A lost session makes no member fewer, or a blip would let an uncopied payload pass.
        counted = flight.available(self.members.roster)
        if len(counted) < rounds.quorum:
            self.skipped += 1
            self.reason = f"round {flight.round} was skipped: {len(counted)} contributors, quorum {rounds.quorum}"
            return SkipRound(flight.round, self.reason)
        entries = tuple(
            Entry(payload.peer, Digest(payload.digest), payload.payload_bytes, 1, payload.samples)
            for payload in counted
        )
        rate, decay = scalars(self.spec.schedule, self.committed)
        commit = Commit(self.run_id, flight.round, self.committed, entries, rate, decay, self.head)
        self.head, self.head_round = commit_digest(commit), flight.round
        self.verdicts.open(flight.round, self.members, frozenset(each.peer for each in counted))
        self.committed += 1
        self.payloads += len(entries)
        self.payload_bytes += sum(entry.payload_bytes for entry in entries)
        self.loss = mean_loss(counted)
        for payload in counted:
            if member := self.members.get(payload.peer):
                member.rounds_counted += 1
        return CommitRound(
            commit, tuple(flight.told_holders(entry.digest) for entry in entries), self.loss
        )

    def _may_open(self) -> bool:
        spec = self.spec
        undecided_max = spec.rounds.overlap_at(self.next_round)
        if (
            self.committed + len(self.in_flight) >= spec.schedule.steps
            or len(self.in_flight) > undecided_max
        ):
            return False
        if self.in_flight and not self.in_flight[-1].computed(self.members.live):
            return False
        ready = len(self._ready())
        needed = max(
            spec.rounds.quorum, spec.membership.start_members if self.next_round == 0 else 1
        )
        if ready < needed:
            held = next(iter(self.verdicts.held.values()), "")
            self.reason = f"waiting for members: {ready} of {needed} are ready" + (
                f"; {held}" if held else ""
            )
            return False
        self.reason = f"{ready} members train round {self.next_round}"
        return True

    def _open(self, now_ms: int) -> Effect:
        ready, rounds, slot = self._ready(), self.spec.rounds, self.pace.slot
        speeds = {member.peer: (member.speed, member.strikes) for member in ready}
        wanted = samples_per_share(speeds, rounds, slot.compute_ms)
        muted = self._muted(ready)
        assignments = {}
        for member in ready:
            halved = (
                f"share halved {member.strikes} times for late rounds" if member.strikes else ""
            )
            shares = self.order.lease(wanted[member.peer])
            reason = "; ".join(filter(None, (muted.get(member.peer, halved), self.pace.reason)))
            assignments[member.peer] = Assignment(member.peer, shares, member.peer in muted, reason)
        step = self.committed + len(self.in_flight)
        rate, decay = scalars(self.spec.schedule, step)
        when = instants(slot, now_ms)
        flight = UndecidedRound(
            self.next_round, step, when, rate, decay, assignments, rounds.copies_min
        )
        self.next_round += 1
        self.in_flight.append(flight)
        return self._open_effect(flight, tuple(assignments.values()))

    def _ready(self) -> list[Member]:
        """Who may be given work."""
        return [member for member in self.members.ready() if member.peer not in self.verdicts.held]

    def muted_reason(self, member: Member) -> str:
        """Why the member's payloads do not count at present; empty when they do."""
        return self.verdicts.muted_reason(member.peer) or self.members.muted_reason(member)

    def _muted(self, ready: list[Member]) -> dict[PeerId, str]:
        """Who does not count this round, and why. Nobody is muted when the others are fewer than
        the quorum: a run must not wait for members that only a round can free."""
        reasons = {member.peer: reason for member in ready if (reason := self.muted_reason(member))}
        return reasons if len(ready) - len(reasons) >= self.spec.rounds.quorum else {}

    def _open_effect(
        self, flight: UndecidedRound, assignments: tuple[Assignment, ...]
    ) -> OpenRound:
        return OpenRound(
            flight.round,
            flight.step,
            flight.instants,
            flight.learning_rate_bits,
            flight.decay_bits,
            assignments,
        )

"""The state machine of a run: opens rounds, decides each once, keeps members and data order.

    waiting --enough ready--> opened --bell--> exchanging --publish_by--> closing
       ^                         |                 |                         |
       |                         '-----------------'-------------------------'
       |                 everyone announced and copies exist, or commit_by
       |                                           |
       '----------- committed | skipped -----------'
                            '--- all steps committed ---> finished

Rules
- `handle` is the only door. Each round is decided once, in the order of rounds.
- `coordinator.machine.opening` says when the next round opens.
- A payload counts when a member that was asked to work announced it by `publish_by` and
  `copies_min` other members hold it; in a public run most of its drawn witnesses
  (`coordinator.machine.members.standing`). With fewer such payloads than the quorum the round is
  skipped.
- What a member announces first in a round stands. What it says of it later, in the same session or
  in another, as this process or as one with a copy of its directory, changes nothing.
- A round closes early when every member that is waited for has announced and all payloads that are
  waited for have their copies (`coordinator.machine.closing`). A payload that died with its
  author's process, before any other member held it, is not waited for.
- The slot of a round follows the needs of members in the last one (`coordinator.machine.pacing`).
- `coordinator.machine.digests.verdicts` judges a member whose state differs, and where auditors are
  named their word is final (`coordinator.machine.digests.auditing`).
- The operator's orders (`coordinator.machine.operator.orders`) change what comes next; an open
  round goes on to its end.
- A committed payload that nobody has becomes void (`coordinator.machine.payloads.voids`).
- Where nodes mix parameters, `coordinator.machine.mixing` says what is waited for and committed.
- A leased sample is trained by a payload that counts, or returns to the data order
  (`coordinator.machine.samples`).
- A finished run is concluded, and its nodes let go, when all of them hold its last commit: until
  then they serve each other. It waits at most two leases for nodes that are behind or that lapsed
  within the two leases before.
- Late messages are no errors: each is ignored by name where it is matched. An event that only the
  machine itself can have asked for, out of its order, is a bug and raises `LocalProtocolError`.
"""

from collections import deque
from typing import NoReturn, assert_never

from coordinator.machine import closing, deciding, ending, head_state, opening, samples
from coordinator.machine.checkpoints import publishing
from coordinator.machine.digests import auditing
from coordinator.machine.evaluation import measuring
from coordinator.machine.evaluation.events import Evaluated
from coordinator.machine.events import (
    Announced,
    Applied,
    AskResync,
    Audited,
    Concluded,
    Disconnected,
    Effect,
    Event,
    Evict,
    Heartbeat,
    Holding,
    InstantReached,
    Joined,
    Lapsed,
    Left,
    LinksMeasured,
    NotHeld,
    Ready,
    RestartAsked,
    Restarted,
    VoidDue,
)
from coordinator.machine.invariants import validate
from coordinator.machine.members.membership import Membership
from coordinator.machine.mixing import edges
from coordinator.machine.operator import orders
from coordinator.machine.operator.acts import Ordered, Salted, TokenShown, Vouched
from coordinator.machine.payloads import voiding
from coordinator.machine.run_state import RunState, new_state
from coordinator.machine.screening import is_transient
from coordinator.machine.undecided_round import (
    UndecidedRound,
    check_announcement,
    unused_part,
)
from protocol.errors import LocalProtocolError
from protocol.ids import Digest, PeerId, RunId
from protocol.runfile import RunSpec
from protocol.shuffle import Share

HISTORY_EVENTS = 8
"""Newest events that the error of an impossible transition names."""


class Rounds:
    """The machine of one run. `state` is read by others and changed only here."""

    def __init__(self, spec: RunSpec, run_id: RunId) -> None:
        self.spec, self.run_id = spec, run_id
        self._history: deque[tuple[int, Event]] = deque(maxlen=HISTORY_EVENTS)
        self._install(new_state(spec, run_id))

    def resume(self, state: RunState) -> None:
        """Continue from the state of an earlier machine of this run, before the first event."""
        if self._history:
            self._impossible("a state only before the first event", "one")
        self._install(state)

    def _install(self, state: RunState) -> None:
        self.state = state
        self.members = Membership(self.spec.membership, state.members)

    # ---- the door

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event, at a time that never runs backwards; return what must follow, in order.

        Raises `RemoteProtocolError` for an event that no honest node causes and
        `LocalProtocolError` for one that is impossible in this state; both leave the state
        untouched.
        """
        if now_ms < self.state.last_ms:
            self._impossible(f"time at or after {self.state.last_ms}", f"{now_ms} with {event}")
        effects = self._dispatch(event, now_ms)
        self._history.append((now_ms, event))
        if isinstance(event, Announced | Holding | Applied):
            self.members.renew(event.peer, now_ms)  # also when it comes too late for its round
        if not is_transient(event, effects):
            # a replay, which has no transient events, must measure an outage from the same instant
            self.state.last_ms = now_ms
            head_state.note_readiness(self.state, self.members, now_ms)
        effects += self._advance(now_ms)
        effects = publishing.follow(event, effects, self.state, self.members, self.spec)
        return measuring.follow(event, effects, self.state, self.members, self.spec)

    def due(self, now_ms: int) -> list[Event]:
        """Events that time alone has brought about; the shell journals and handles them one by
        one.
        """
        events: list[Event] = [Lapsed(peer) for peer in self.members.check_leases(now_ms)]
        for undecided in self.state.undecided:
            upcoming = undecided.next_instant()
            if upcoming and upcoming[1] <= now_ms:
                events.append(InstantReached(undecided.round, upcoming[0]))
        events += [VoidDue(*payload) for payload in self.state.voids.due(now_ms)]
        if self._ends() and self.state.end.conclude_by_ms <= now_ms:
            events.append(Concluded())
        return events

    def next_due_ms(self) -> int | None:
        """A time before which `due` has nothing; None while nothing is planned."""
        upcoming = [undecided.next_instant() for undecided in self.state.undecided]
        times = [instant[1] for instant in upcoming if instant]
        if self._ends():
            times.append(self.state.end.conclude_by_ms)
        others = (self.members.next_lapse_ms(), self.state.voids.next_due_ms())
        return min([*times, *(at_ms for at_ms in others if at_ms is not None)], default=None)

    def undecided(self, round: int) -> UndecidedRound | None:
        """The round with this number, while it is undecided."""
        return self.state.undecided_round(round)

    def validate(self) -> None:
        """Raise `LocalProtocolError` unless every invariant of the state holds."""
        validate(self.state, self.spec)

    def _ends(self) -> bool:
        return self.state.end.finished and not self.state.end.concluded

    def _impossible(self, expected: str, got: str) -> NoReturn:
        state = self.state
        rounds = [(undecided.round, undecided.reached) for undecided in state.undecided]
        raise LocalProtocolError(
            f"expected {expected}, got {got}; state: decided {state.decided_round}, undecided "
            f"{rounds}, {state.end}; last events: {list(self._history)}"
        )

    # ---- events

    def _dispatch(self, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, publishing.CheckpointEvent):
            publishing.take(event, self.state, self.members)
            return []
        match event:
            case Announced():
                return self._announced(event, now_ms)
            case Holding():
                closing.hold(self.state, event, self.members, now_ms)
                return []
            case Applied():
                return self._applied(event, now_ms)
            case Audited():
                return self._enforce(auditing.take(event, self.state, self.members, now_ms), now_ms)
            case NotHeld(peer, round, digests):
                if self.members.get(peer):  # else a former member's
                    self.state.voids.complain(peer, round, digests, now_ms)
                return []
            case InstantReached():
                return self._instant_reached(event)
            case VoidDue():
                return voiding.take_out(event, self.state, self.members, self.run_id)
            case RestartAsked():
                machine = self.state, self.members, self.spec
                return head_state.restart(event, *machine, self.run_id, now_ms)
            case Concluded():
                if not self.state.end.finished:
                    self._impossible("a finished run", str(event))
                return [self._conclude()]
            case Ready():
                return self._ready(event, now_ms)
            case Left(peer) | Lapsed(peer):
                return self.members.handle(event, now_ms) + self._forget(peer, now_ms)
            case Restarted():
                self._extend(now_ms - self.state.last_ms)
                self.state.voids.postpone(now_ms - self.state.last_ms)
                self.members.restart(self.state.last_ms, now_ms)
                return []
            case Joined(peer):
                if refused := orders.refusal(peer, self.state, self.members, now_ms):
                    return [refused]
                effects = self.members.handle(event, now_ms)
                for undecided in self.state.undecided if self.members.get(peer) else ():
                    undecided.receipts.doubt(peer)
                self.state.voids.forget(peer)
                if self.state.end.concluded and self.members.get(peer):  # the others were let go
                    effects.append(ending.farewell(self.state))
                return self._enforce(effects, now_ms)
            case Vouched() | Salted() | TokenShown() | Ordered():
                effects = orders.take(
                    event, self.state, self.members, (self.run_id, self.spec), now_ms=now_ms
                )
                return self._enforce(effects, now_ms)
            case Heartbeat() | Disconnected() | LinksMeasured():
                return self.members.handle(event, now_ms)
            case Evaluated():
                return []  # taken by `measuring.follow`
            case _:
                assert_never(event)

    def _announced(self, event: Announced, now_ms: int) -> list[Effect]:
        undecided, member = self.undecided(event.round), self.members.get(event.peer)
        if undecided is None or member is None or event.peer not in undecided.assignments:
            closing.announced_after(self.state, event, self.members, now_ms)
            return []  # stale: the round is decided, or the author was not asked
        if earlier := undecided.announced.get(event.peer):
            if earlier.digest and earlier.digest == event.digest:
                undecided.receipts.hold(event.peer, (Digest(event.digest),), now_ms)
            return []  # repeated after a reconnect: the author still holds its payload
        if undecided.reached in ("publish_by", "commit_by"):
            return []  # late: left out, and already counted as a strike
        assignment = undecided.assignments[event.peer]
        check_announcement(event, assignment, self.spec.rounds.payload_bytes_max)
        undecided.announce(event, now_ms, closing.witnesses(undecided, event, self.members))
        edges.note(undecided, event.peer, now_ms)
        for share in unused_part(assignment.shares, event.samples):
            self.state.order.give_back(share)
        self.members.note_punctual(event.peer)
        if not self.members.public:
            member.work.book(event.samples, event.compute_ms)
        if event.samples:
            member.work.loss = event.loss
        return []

    def _applied(self, event: Applied, now_ms: int) -> list[Effect]:
        member = self.members.get(event.peer)
        if member is None or head_state.is_outdated(self.state, event):
            return []  # a former member's report, or one of a state that it will discard
        self.members.note_applied(event.peer, event.round, now_ms)
        self.state.voids.apply(event.peer, event.round)
        self.state.consensus.hear(event)
        return self._enforce(self._judged(event, now_ms), now_ms)

    def _judged(self, said: Applied | Ready, now_ms: int) -> list[Effect]:
        """The verdicts on a reported state; nobody is blamed where nodes differ by design."""
        judge = self.state.consensus if self.spec.algorithm.mixes else self.state.verdicts
        return judge.report(said, self.members, now_ms)

    def _ready(self, event: Ready, now_ms: int) -> list[Effect]:
        verdicts, head_round = self.state.verdicts, self.state.head_round
        if self.members.get(event.peer) is None:
            return []  # evicted while this was on the way; the node will say hello again
        if event.round > head_round:
            return self._enforce(verdicts.send_back(event, head_round, self.members), now_ms)
        if head_state.is_outdated(self.state, event):
            return []  # said before it heard of a void or a restart: it will be ready again
        self.state.voids.apply(event.peer, event.round)
        judged = self._judged(event, now_ms)
        effects = self._enforce(judged, now_ms)
        if any(isinstance(each, AskResync | Evict) and each.peer == event.peer for each in judged):
            return effects
        effects += self.members.handle(event, now_ms)
        for undecided in self.state.undecided:
            undecided.receipts.settle_doubt(event.peer)
        for undecided in self.state.undecided:
            if event.peer in undecided.silent:  # it lost its session in the middle of the round
                again = (undecided.assignments[event.peer],)
                effects.append(opening.effect(undecided, again, self.spec))
        return effects

    def _enforce(self, verdicts: list[Effect], now_ms: int) -> list[Effect]:
        """The verdicts on members, and what follows when they remove members or send them back to
        the log: their unfinished samples go back, and no round waits for them.
        """
        effects = verdicts
        for verdict in verdicts:
            if isinstance(verdict, Evict):
                effects = effects + self._forget(verdict.peer, now_ms)
            elif isinstance(verdict, AskResync):
                for undecided in self.state.undecided:
                    self._leave_out(undecided.withdraw(verdict.peer))
        return effects

    def _forget(self, peer: PeerId, now_ms: int) -> list[Effect]:
        """Drop a member that went: it holds nothing, and its unannounced samples go back."""
        for undecided in self.state.undecided:
            self._leave_out(undecided.forget(peer, now_ms))
        self.state.voids.forget(peer)
        return self._enforce(self.state.verdicts.forget(peer, self.members, now_ms), now_ms)

    def _leave_out(self, shares: tuple[Share, ...]) -> None:
        samples.leave_out(shares, self.state, mixes=self.spec.algorithm.mixes)

    def _instant_reached(self, event: InstantReached) -> list[Effect]:
        if event.round >= self.state.next_round:
            self._impossible(f"an instant of a round below {self.state.next_round}", str(event))
        if (undecided := self.undecided(event.round)) is None:
            return []  # decided early
        upcoming = undecided.next_instant()
        if upcoming is None or upcoming[0] != event.instant:
            self._impossible(f"{upcoming or 'no further instant'}", str(event))
        undecided.reach(event.instant)
        if event.instant == "publish_by":
            for peer in undecided.awaited(self.members.live):
                self.members.note_late(peer, undecided.instants.publish_by)
        return []

    def _extend(self, outage_ms: int) -> None:
        self.state.end.conclude_by_ms += outage_ms
        for undecided in self.state.undecided:
            undecided.postpone(outage_ms)

    # ---- decisions

    def _advance(self, now_ms: int) -> list[Effect]:
        """Decide every round that can be decided, then open the next one if it may begin."""
        effects: list[Effect] = []
        state, end = self.state, self.state.end
        while state.undecided and closing.may_decide(state.undecided[0], self.members, self.spec):
            effects.append(self._decide(now_ms))
        ending.finish_if_due(state, self.members, self.spec, now_ms)
        voiding.plan(state, self.members, now_ms)
        behind = self._ends() and ending.behind(state, self.members, self.spec)
        if self._ends() and not (behind or publishing.awaited(state)):
            effects.append(self._conclude())
        if not end.finished and opening.may_begin(state, self.members, self.spec):
            effects += self._open(now_ms)
        return effects

    def _conclude(self) -> Effect:
        self.state.end.concluded = True
        return ending.farewell(self.state)

    def _decide(self, now_ms: int) -> Effect:
        undecided, run_id = self.state.undecided.pop(0), self.run_id
        return deciding.decide(
            undecided, self.state, self.members, self.spec, run_id=run_id, now_ms=now_ms
        )

    def _open(self, now_ms: int) -> list[Effect]:
        state = self.state
        if reason := opening.shortage(state, self.members, self.spec):
            state.reason = reason
            return []
        opened = opening.begin_round(state, self.members, self.spec, now_ms)
        return [opening.effect(opened, tuple(opened.assignments.values()), self.spec)]

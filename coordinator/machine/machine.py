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
- `coordinator.machine.rules.opening` says when the next round opens.
- A payload counts when a member that was asked to work announced it by `publish_by` and
  `copies_min` other members hold it; in a public run most of its drawn witnesses
  (`coordinator.machine.state.standing`). With fewer such payloads than the quorum the round is
  skipped.
- What a member announces first in a round stands. What it says of it later, in the same session or
  in another, as this process or as one with a copy of its directory, changes nothing.
- A round closes early when every member that is waited for has announced and all payloads that are
  waited for have their copies (`coordinator.machine.rules.closing`). A payload that died with its
  author's process, before any other member held it, is not waited for.
- Where summers add, they hold parts of the payloads. A round that closes fixes its authors, and is
  decided when its ranges are added (`coordinator.machine.rules.sums`).
- The slot of a round follows the needs of members in the last one
  (`coordinator.machine.rules.pacing`).
- `coordinator.machine.rules.judging` judges a member whose state differs, and where auditors are
  named their word is final (`coordinator.machine.rules.auditing`).
- The operator's orders (`coordinator.machine.rules.orders`) change what comes next; an open
  round goes on to its end.
- A committed payload that nobody has becomes void (`coordinator.machine.rules.voiding`).
- Where nodes mix parameters, `coordinator.machine.rules.edges` says what is waited for and
  committed.
- A leased sample is trained by a payload that counts, or returns to the data order
  (`coordinator.machine.rules.samples`).
- A finished run is concluded, and its nodes let go, when all of them hold its last commit: until
  then they serve each other. It waits at most two leases for nodes that are behind or that lapsed
  within the two leases before.
- Late messages are no errors: each is ignored by name where it is matched. An event that only the
  machine itself can have asked for, out of its order, is a bug and raises `LocalProtocolError`.
"""

from collections import deque
from typing import NoReturn, assert_never

from coordinator.machine.events import acts, inputs
from coordinator.machine.events.effects import Effect
from coordinator.machine.events.inputs import Event
from coordinator.machine.invariants import validate
from coordinator.machine.rules import (
    announcing,
    auditing,
    deciding,
    ending,
    head_state,
    holding,
    joining,
    measuring,
    membership,
    opening,
    orders,
    publishing,
    reporting,
    voiding,
)
from coordinator.machine.rules.sums import adding, offering, parts
from coordinator.machine.screening import is_transient
from coordinator.machine.state.run import Run
from coordinator.machine.state.run_state import RunState
from coordinator.machine.state.undecided_round import UndecidedRound
from protocol.errors import LocalProtocolError
from protocol.ids import RunId
from protocol.runfile import RunSpec

HISTORY_EVENTS = 8
"""Newest events that the error of an impossible transition names."""

_OF_A_ROUND = inputs.Announced | inputs.Holding | inputs.PartsHeld | inputs.Summed | inputs.Applied


class RunMachine(Run):
    """The machine of one run. `state` is read by others and changed only here, by the rules."""

    def __init__(self, spec: RunSpec, run_id: RunId) -> None:
        super().__init__(spec, run_id)
        self._history: deque[tuple[int, Event]] = deque(maxlen=HISTORY_EVENTS)

    def resume(self, state: RunState) -> None:
        """Continue from the state of an earlier machine of this run, before the first event."""
        if self._history:
            self._impossible("a state only before the first event", "one")
        self.install(state)

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
        if isinstance(event, _OF_A_ROUND):
            self.renew(event.peer, now_ms)  # also when it comes too late for its round
        if not is_transient(event, effects):
            # a replay, which has no transient events, must measure an outage from the same instant
            self.state.last_ms = now_ms
            head_state.note_readiness(self, now_ms)
        effects = publishing.follow(event, effects + self._advance(now_ms), self)
        return measuring.follow(event, effects, self)

    def due(self, now_ms: int) -> list[Event]:
        """Events that time alone has brought about; the shell journals and handles them one by
        one.
        """
        events: list[Event] = [inputs.Lapsed(peer) for peer in self.members.check_leases(now_ms)]
        events += [inputs.OfferEnded(peer) for peer in self.relays.lapsed(now_ms)]
        for undecided in self.state.undecided:
            upcoming = undecided.next_instant()
            if upcoming and upcoming[1] <= now_ms:
                events.append(inputs.InstantReached(undecided.round, upcoming[0]))
            late_ms = undecided.sums.next_due_ms() if undecided.sums else None
            if late_ms is not None and late_ms <= now_ms:
                events.append(inputs.SummersLate(undecided.round))
        events += [inputs.VoidDue(*payload) for payload in self.state.voids.due(now_ms)]
        if self._ends() and self.state.end.conclude_by_ms <= now_ms:
            events.append(inputs.Concluded())
        return events

    def next_due_ms(self) -> int | None:
        """A time before which `due` has nothing; None while nothing is planned."""
        upcoming = [undecided.next_instant() for undecided in self.state.undecided]
        times = [instant[1] for instant in upcoming if instant]
        late_ms = [each.sums.next_due_ms() for each in self.state.undecided if each.sums]
        times += [at_ms for at_ms in late_ms if at_ms is not None]
        if self._ends():
            times.append(self.state.end.conclude_by_ms)
        leases_ms = self.members.next_lapse_ms(), self.relays.next_lapse_ms()
        others = (*leases_ms, self.state.voids.next_due_ms())
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
        match event:
            case inputs.Announced():
                return announcing.take(event, self, now_ms)
            case inputs.Holding():
                return holding.take(event, self, now_ms)
            case inputs.PartsHeld():
                return parts.take(event, self, now_ms)
            case inputs.Summed() | inputs.SummersLate():
                return adding.take(event, self, now_ms)
            case inputs.SumsOffered() | inputs.OfferEnded():
                return offering.take(event, self, now_ms)
            case inputs.Applied() | inputs.Ready():
                return reporting.take(event, self, now_ms)
            case inputs.Audited():
                return auditing.take(event, self, now_ms)
            case inputs.NotHeld() | inputs.VoidDue():
                return voiding.take(event, self, now_ms)
            case inputs.Joined():
                return joining.take(event, self, now_ms)
            case (
                inputs.Heartbeat()
                | inputs.LinksMeasured()
                | inputs.Disconnected()
                | inputs.Left()
                | inputs.Lapsed()
            ):
                return membership.take(event, self, now_ms)
            case acts.Vouched() | acts.Salted() | acts.TokenShown() | acts.Ordered():
                return orders.take(event, self, now_ms)
            case (
                inputs.RoomGiven()
                | inputs.CheckpointSaid()
                | inputs.CheckpointStored()
                | inputs.CheckpointFailed()
            ):
                return publishing.take(event, self)
            case inputs.Evaluated():
                return measuring.take(event, self)
            case inputs.RestartAsked():
                return head_state.take(event, self, now_ms)
            case inputs.InstantReached():
                return self._reach(event)
            case inputs.Restarted():
                return self._extend(now_ms - self.state.last_ms, now_ms)
            case inputs.Concluded():
                if not self.state.end.finished:
                    self._impossible("a finished run", str(event))
                return [self._conclude()]
            case _:
                assert_never(event)

    def _reach(self, event: inputs.InstantReached) -> list[Effect]:
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

    def _extend(self, outage_ms: int, now_ms: int) -> list[Effect]:
        """The coordinator was away for this long: everybody has that much longer."""
        self.state.end.conclude_by_ms += outage_ms
        for undecided in self.state.undecided:
            undecided.postpone(outage_ms)
        self.state.voids.postpone(outage_ms)
        self.members.restart(self.state.last_ms, now_ms)
        self.relays.restart(now_ms + self.members.lease_ms)
        return []

    # ---- decisions

    def _advance(self, now_ms: int) -> list[Effect]:
        """Decide every round that can be decided, then open the next one if it may begin."""
        effects: list[Effect] = []
        undecided = self.state.undecided
        for each in undecided:
            effects += adding.replace_gone(each, self, now_ms)
        while undecided:
            effects += adding.ask_again(undecided[0], self, now_ms)
            if not deciding.may_decide(undecided[0], self):
                break
            if (asked := adding.fix(undecided[0], self, now_ms)) is not None:
                effects += asked
                continue
            effects.append(deciding.decide(undecided.pop(0), self, now_ms))
        ending.finish_if_due(self, now_ms)
        voiding.plan(self, now_ms)
        if self._ends() and not (ending.behind(self) or publishing.awaited(self.state)):
            effects.append(self._conclude())
        if not self.state.end.finished and opening.may_begin(self):
            effects += opening.open_next(self, now_ms)
        return effects

    def _conclude(self) -> Effect:
        self.state.end.concluded = True
        return ending.farewell(self.state)

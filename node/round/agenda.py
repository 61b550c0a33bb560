"""Decides what a node does next: train, take a decision, catch up, resync, wait or end. Pure.

The trainer tells the agenda what has happened, and asks it for the next step (`node.round.events`
has both). The agenda remembers three things about its node. Whether the coordinator counts on it:

    absent --Welcomed--> owed --SayReady--> ready      owed: it catches up, then says Ready
                          ^                   |
                          '-Welcomed, Resync--'

What it is doing:

    between rounds --Train--> training --Announced--> settling --Settled--> between rounds
       |      |
       |      '--TakeDecision--> concluding --End--> ended     DeadlinePassed: ended, from anywhere
       '--End--> ended

And whether it goes on: stays --Finished--> finished --LeaveAsked--> leaves.

Between two rounds these rules are asked one after the other; the first that applies decides:

    1. a resync was ordered, or the chain makes another state: discard the state and replay the log
    2. the run goes on from a checkpoint: take that state
    3. a round is open and may be trained at once (`Agenda._may_run_ahead`): train it
    4. the node leaves, and nothing that it announced is undecided: end
    5. a decision is out: take it, or jump over it by a snapshot when the log is too long; but a
       node that has no state of a finished run ends
    6. the run is finished or the node leaves: take the decisions of its rounds, end
    7. Ready is owed: say it
    8. a round is open: train it; else wait

Why rule 3 comes before 5: with overlap a node may begin a round although the decision of the one
before has just arrived. Had it arrived a moment later, the node would have begun in any case; and a
node that applies first is late, while the others wait for it.

A node that stays waits as long as it takes. One that is about to end waits for each decision no
longer than `Agenda._limit_ms`: what it does not hear is in the log, and a resync that comes too
late is obeyed at its next start.
"""

from collections import deque
from enum import Enum
from typing import assert_never

from node.round import events
from node.round.events import LogPosition
from node.standing import Doing
from protocol import wire_pb2 as wire
from protocol.clock import longest_slot
from protocol.errors import LocalProtocolError
from protocol.runfile import RoundsSpec

FINISHED_MS = 60_000
"""Least limit of the wait for one payload once the run is finished; its holder may have left."""

AWAY_MS = 5_000
"""Longest wait of a leaving node for a coordinator that is away: its decisions are in the log."""

HISTORY_MAX = 32
"""Events and steps that an error shows."""


class Readiness(Enum):
    """The part that this node has in the run, as the coordinator knows it."""

    ABSENT = "absent"
    """No session was opened yet."""
    OWED = "owed"
    """The node says Ready as soon as it has taken every decision."""
    READY = "ready"


class Activity(Enum):
    """The work of this node."""

    BETWEEN_ROUNDS = "between rounds"
    TRAINING = "training"
    """From the opening until the round is announced."""
    SETTLING = "settling"
    """The round is announced; decisions must be taken before the next one may begin."""
    CONCLUDING = "concluding"
    """Trains no more, and takes the decisions that its announced rounds wait for."""
    ENDED = "ended"


class Stay(Enum):
    """Whether this node goes on."""

    STAYS = "stays"
    FINISHED = "finished"
    """The run is over."""
    LEAVES = "leaves"
    """This node was asked to leave, whatever the run does."""


class Agenda:
    """The next steps of one node in one run. Its shell is `node.trainer`."""

    def __init__(self, rounds: RoundsSpec, *, settles_first: bool = False) -> None:
        """`settles_first`: a payload is made of the state, so the decisions in front of its round
        are taken before it is made.
        """
        self._rounds, self._settles_first = rounds, settles_first
        self._round_ms = (1 + rounds.overlap) * longest_slot(rounds).milliseconds
        self._newest_trained = -1
        """The newest round that this process has trained."""
        self._readiness = Readiness.ABSENT
        self._newcomer = False  # whether it has no state of a run that has one
        self._activity = Activity.BETWEEN_ROUNDS
        self._stay = Stay.STAYS
        self._end_reason = "this node was stopped by its owner"
        self._finished = False
        self._opened: wire.RoundOpened | None = None
        self._ordered: wire.Resync | None = None
        self._obeyed = wire.Resync(round=-1)
        self._limited_round = -1
        self._history: deque[str] = deque(maxlen=HISTORY_MAX)

    # ---- the state

    @property
    def readiness(self) -> Readiness:
        """The part that this node has in the run, as the coordinator knows it."""
        return self._readiness

    @property
    def activity(self) -> Activity:
        """The work of this node."""
        return self._activity

    @property
    def stay(self) -> Stay:
        """Whether this node goes on."""
        return self._stay

    @property
    def end_reason(self) -> str:
        """Why the node ends or would end, in words."""
        return self._end_reason

    @property
    def finished(self) -> bool:
        """Whether the run is over, also where this node was asked to leave before."""
        return self._finished

    @property
    def resyncs_obeyed(self) -> int:
        """The coordinator's number of the last resync that was obeyed; 0 when there was none."""
        return self._obeyed.number

    def reports(self, round: int) -> bool:
        """Whether the coordinator wants to hear the state digest after this round. While the node
        catches up only the round that a resync was about; the last state goes with Ready.
        """
        asked = self._obeyed.number > 0 and round == self._obeyed.round
        return asked or self._readiness is not Readiness.OWED

    def must_settle(self, log: LogPosition) -> bool:
        """Whether the announced round has to wait for the decision of `next_round`. A state that is
        to be discarded waits for nothing.
        """
        if self._ordered or log.restarts:
            return False
        overlap = self._rounds.overlap_at(self._newest_trained + 1)
        return log.next_round <= self._newest_trained - overlap

    def must_settle_first(self, log: LogPosition) -> bool:
        """Whether the round that was just trained has to wait with its payload for the decision of
        `next_round`.
        """
        if self._ordered or log.restarts or not self._settles_first:
            return False
        return log.next_round < self._newest_trained

    def settles_between_passes(self, round: int, left_ms: int, apply_ms: int) -> bool:
        """Whether a decision that is there is taken in the middle of the work of a later round: if
        more time remains for the work than applying it takes (`apply_ms`, as last time).
        """
        in_front = self._activity is Activity.TRAINING and round < self._newest_trained
        return in_front and left_ms >= 2 * apply_ms

    # ---- events

    def handle(self, event: events.Event, log: LogPosition) -> int | None:
        """Take an event. Returns the limit of all waits from now on in milliseconds, also of the
        one that is going on; None: as before.

        Raises `LocalProtocolError` for an event that this state does not permit.
        """
        self._history.append(type(event).__name__)
        match event:
            case events.Welcomed():
                if self._readiness is Readiness.ABSENT:
                    self._newcomer = log.next_round == 0 and log.behind
                self._readiness = Readiness.OWED
            case events.Opened():
                self._opened = event.round
            case events.Decided() | events.StateAsked():
                pass  # known by its log position; not the agenda's
            case events.ResyncOrdered():
                self._ordered = event.order
            case events.StateOutdated():
                # the coordinator's own order, if there is one, is obeyed in the same way
                own = wire.Resync(round=-1, reason=event.reason, number=self._obeyed.number)
                self._ordered = self._ordered or own
            case events.Finished():
                self._end_reason, self._finished = event.reason, True
                if self._stay is Stay.STAYS:
                    self._stay = Stay.FINISHED
                return self._limit_ms(log)
            case events.LeaveAsked():
                self._stay = Stay.LEAVES
                return self._limit_ms(log)
            case events.Announced():
                self._require(event, self._activity is Activity.TRAINING)
                self._activity = Activity.SETTLING
            case events.Settled():
                self._require(event, self._activity is Activity.SETTLING)
                self._activity = Activity.BETWEEN_ROUNDS
            case events.DeadlinePassed():
                self._require(event, self._stay is not Stay.STAYS)
                self._activity = Activity.ENDED
            case _:
                assert_never(event)
        return None

    # ---- decisions

    def next(self, log: LogPosition) -> events.Step:
        """The next step, which counts as begun. Raises `LocalProtocolError` while a round is in
        work.
        """
        self._require("next", self._activity not in (Activity.TRAINING, Activity.SETTLING))
        step = self._next(log)
        self._history.append(type(step).__name__)
        return step

    def _next(self, log: LogPosition) -> events.Step:
        if self._activity in (Activity.CONCLUDING, Activity.ENDED):
            return self._conclude(log)
        if self._ordered:
            return self._resync(self._ordered)
        if log.restarts:
            return self._restart(log)
        self._drop_stale(log)
        if self._opened and self._may_run_ahead(self._opened.round, log):
            return self._train(self._opened)
        if self._stay is Stay.LEAVES and not log.undecided:
            return self._conclude(log)  # decisions that are out now are taken another time
        if self._stay is Stay.FINISHED and self._newcomer:
            return self._conclude(log)  # it comes too late: nobody is there to catch up from
        if log.behind:
            return self._catch_up(log)
        if self._stay is not Stay.STAYS:
            return self._conclude(log)
        if self._readiness is Readiness.OWED:
            self._readiness, self._newcomer = Readiness.READY, False
            return events.SayReady()
        if self._opened and self._may_train:
            return self._train(self._opened)
        return events.Wait(log.offline or "waits for a round")

    def _drop_stale(self, log: LogPosition) -> None:
        """A round may be decided before it is begun, or told again in a new session."""
        opened = self._opened
        if opened and (opened.round <= self._newest_trained or opened.round < log.next_round):
            self._opened = None

    @property
    def _may_train(self) -> bool:
        return self._readiness is Readiness.READY and self._stay is Stay.STAYS

    def _may_run_ahead(self, round: int, log: LogPosition) -> bool:
        """Whether a round may be trained before a decision that is there is taken: it is undecided
        itself, and `next_round` is no further back than the overlap permits.
        """
        reach = log.next_round + self._rounds.overlap_at(round)
        return log.decided_round < round <= reach and self._may_train

    def _train(self, opened: wire.RoundOpened) -> events.Step:
        self._opened, self._newest_trained = None, opened.round
        self._activity = Activity.TRAINING
        return events.Train(opened)

    def _resync(self, order: wire.Resync) -> events.Step:
        """A round that was opened for the discarded state is not for the one that replays."""
        self._ordered, self._obeyed, self._opened = None, order, None
        if self._readiness is Readiness.READY:
            self._readiness = Readiness.OWED
        return events.Resync(order)

    def _restart(self, log: LogPosition) -> events.Step:
        """A round that was opened for the state that is replaced is skipped."""
        self._opened = None
        if self._readiness is Readiness.READY:
            self._readiness = Readiness.OWED
        return events.Jump("the run goes on from a checkpoint", self._limit_for(log))

    def _catch_up(self, log: LogPosition) -> events.Step:
        limit_ms = self._limit_for(log)
        if log.too_far:
            return events.Jump(f"{log.decided_round - log.next_round} rounds behind", limit_ms)
        if log.next_round < log.decided_round:
            reason = f"round {log.next_round} of {log.decided_round}"
            return events.TakeDecision(reason, limit_ms, Doing.BEHIND)
        reason = f"applies round {log.next_round}"  # the newest one: nobody is ahead of this node
        return events.TakeDecision(reason, limit_ms)

    def _conclude(self, log: LogPosition) -> events.Step:
        if self._activity is Activity.ENDED or not log.undecided or self._ordered or log.restarts:
            self._activity = Activity.ENDED
            return events.End(self._end_reason)
        self._activity = Activity.CONCLUDING
        reason = f"waits for the decision of round {log.next_round}"
        return events.TakeDecision(reason, self._limit_for(log))

    # ---- limits

    def _limit_for(self, log: LogPosition) -> int | None:
        """A new limit for each decision; to look again for the payloads of one is no new wait."""
        if self._limited_round == log.next_round:
            return None
        self._limited_round = log.next_round
        return self._limit_ms(log)

    def _limit_ms(self, log: LogPosition) -> int | None:
        """Longest wait from now. A leaving node may finish a round (two rounds of time), or wait
        for the last decision (one); it waits for nothing that it merely catches up with.
        """
        match self._stay:
            case Stay.STAYS:
                return None
            case Stay.FINISHED if self._newcomer:
                return 0
            case Stay.FINISHED:
                return max(FINISHED_MS, self._round_ms)
            case Stay.LEAVES:
                in_round = self._activity in (Activity.TRAINING, Activity.SETTLING)
                limit_ms = self._round_ms * (2 if in_round else 1 if log.undecided else 0)
                return min(limit_ms, AWAY_MS) if log.offline else limit_ms
            case _:
                assert_never(self._stay)

    def _require(self, event: object, permitted: bool) -> None:
        if not permitted:
            state = f"{self._activity.value}, {self._readiness.value}, {self._stay.value}"
            raise LocalProtocolError(
                f"{event} is not permitted in the state ({state}); before it: "
                f"{', '.join(self._history)}"
            )

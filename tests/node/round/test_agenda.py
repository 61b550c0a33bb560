"""Every transition, rule and limit of what a node does next, without a replica and without time."""

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from node.round import agenda, events
from node.round.agenda import (
    AWAY_MS,
    FINISHED_MS,
    Activity,
    Agenda,
    Readiness,
    Stay,
)
from node.round.events import LogPosition
from node.standing import Doing
from protocol import wire_pb2 as wire
from protocol.errors import LocalProtocolError
from protocol.runfile import RoundsSpec

ROUNDS = RoundsSpec(compute_ms=1000, publish_ms=1000, exchange_ms=1000, stretch=1, overlap=1)
ROUND_MS = 6_000
"""Two slots, because a round overlaps with the next."""

HEAD = LogPosition(next_round=4, decided_round=3)
BEHIND = LogPosition(next_round=2, decided_round=3)

ALL_EVENTS: list[events.Event] = [
    events.Welcomed(),
    events.Opened(wire.RoundOpened(round=4)),
    events.Decided(),
    events.ResyncOrdered(wire.Resync(round=2, reason="differs", number=1)),
    events.Finished("all steps are done"),
    events.LeaveAsked(),
    events.Announced(),
    events.Settled(),
    events.DeadlinePassed(),
    events.StateAsked(),
]


def opened(round: int) -> events.Opened:
    return events.Opened(wire.RoundOpened(round=round))


def ready(rounds: RoundsSpec = ROUNDS) -> Agenda:
    """An agenda at the head of the log that has said Ready."""
    machine = Agenda(rounds)
    machine.handle(events.Welcomed(), HEAD)
    assert machine.next(HEAD) == events.SayReady()
    return machine


def in_activity(activity: Activity, stay: Stay = Stay.STAYS) -> Agenda:
    """An agenda that came to an activity by its own steps."""
    machine = ready()
    if activity in (Activity.TRAINING, Activity.SETTLING):
        machine.handle(opened(4), HEAD)
        assert isinstance(machine.next(HEAD), events.Train)
    if activity is Activity.SETTLING:
        machine.handle(events.Announced(), HEAD)
    if stay is Stay.FINISHED:
        machine.handle(events.Finished("done"), HEAD)
    if stay is Stay.LEAVES or activity in (Activity.CONCLUDING, Activity.ENDED):
        machine.handle(events.LeaveAsked(), HEAD)
    if activity is Activity.CONCLUDING:
        step = machine.next(dataclasses.replace(HEAD, undecided=True))
        assert isinstance(step, events.TakeDecision)
    if activity is Activity.ENDED:
        assert isinstance(machine.next(HEAD), events.End)
    assert machine.activity is activity
    return machine


# ---- transitions


PERMITTED = {
    events.Announced: lambda machine: machine.activity is Activity.TRAINING,
    events.Settled: lambda machine: machine.activity is Activity.SETTLING,
    events.DeadlinePassed: lambda machine: machine.stay is not Stay.STAYS,
}
"""The events that not every state permits."""


@pytest.mark.parametrize("event", ALL_EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("stay", Stay)
@pytest.mark.parametrize("activity", Activity)
def test_every_event_is_taken_or_raises_with_state_and_history_in_every_state(
    activity: Activity, stay: Stay, event: events.Event
) -> None:
    machine = in_activity(activity, stay)
    before = machine.activity, machine.readiness, machine.stay
    if PERMITTED.get(type(event), lambda _: True)(machine):
        machine.handle(event, HEAD)
        return
    with pytest.raises(LocalProtocolError) as raised:
        machine.handle(event, HEAD)
    words = str(raised.value)
    assert type(event).__name__ in words
    assert f"({activity.value}, ready, {machine.stay.value})" in words
    assert "Welcomed, SayReady" in words
    assert (machine.activity, machine.readiness, machine.stay) == before


@pytest.mark.parametrize("activity", [Activity.TRAINING, Activity.SETTLING])
def test_no_step_is_asked_for_while_a_round_is_in_work(activity: Activity) -> None:
    machine = in_activity(activity)
    with pytest.raises(LocalProtocolError, match=f"next is not permitted.*{activity.value}"):
        machine.next(HEAD)


def test_the_history_in_an_error_is_bounded() -> None:
    machine = ready()
    for _ in range(1000):
        machine.handle(events.Welcomed(), HEAD)
    with pytest.raises(LocalProtocolError) as raised:
        machine.handle(events.Settled(), HEAD)
    assert str(raised.value).count("Welcomed") < agenda.HISTORY_MAX


def test_an_ended_node_stays_ended_whatever_comes() -> None:
    machine = in_activity(Activity.ENDED)
    for event in ALL_EVENTS[:5]:
        machine.handle(event, BEHIND)
        assert machine.next(BEHIND) == events.End(machine.end_reason)


# ---- joining and catching up


def test_before_a_session_is_open_the_node_waits_and_says_why() -> None:
    machine = Agenda(ROUNDS)
    assert machine.next(LogPosition(0, -1, offline="not connected yet")) == events.Wait(
        "not connected yet"
    )
    assert machine.readiness is Readiness.ABSENT


def test_ready_is_said_once_after_every_decision_is_taken() -> None:
    machine = Agenda(ROUNDS)
    machine.handle(events.Welcomed(), BEHIND)
    assert machine.next(BEHIND) == events.TakeDecision("round 2 of 3", None, Doing.BEHIND)
    assert machine.next(HEAD) == events.SayReady()
    assert machine.next(HEAD) == events.Wait("waits for a round")


def test_a_node_that_applies_the_newest_decision_does_not_catch_up() -> None:
    machine = Agenda(ROUNDS)
    machine.handle(events.Welcomed(), BEHIND)
    newest = LogPosition(next_round=3, decided_round=3)
    assert machine.next(newest) == events.TakeDecision("applies round 3")


def test_a_log_that_is_too_long_is_jumped() -> None:
    machine = Agenda(ROUNDS)
    machine.handle(events.Welcomed(), BEHIND)
    far = LogPosition(2, 30, too_far=True)
    assert machine.next(far) == events.Jump("28 rounds behind")


def test_a_node_that_said_ready_takes_decisions_without_saying_it_again() -> None:
    machine = ready()
    assert isinstance(machine.next(BEHIND), events.TakeDecision)
    assert machine.next(HEAD) == events.Wait("waits for a round")


# ---- rounds


def test_an_open_round_is_trained_once() -> None:
    machine = ready()
    machine.handle(opened(4), HEAD)
    assert machine.next(HEAD) == events.Train(wire.RoundOpened(round=4))
    machine.handle(events.Announced(), HEAD)
    machine.handle(events.Settled(), HEAD)
    machine.handle(opened(4), HEAD)  # told again in a new session
    assert machine.next(HEAD) == events.Wait("waits for a round")


def test_of_two_open_rounds_the_newest_is_trained() -> None:
    machine = ready()
    machine.handle(opened(4), HEAD)
    machine.handle(opened(5), HEAD)
    assert machine.next(HEAD) == events.Train(wire.RoundOpened(round=5))


def test_a_round_that_was_decided_meanwhile_is_dropped() -> None:
    machine = ready()
    machine.handle(opened(3), HEAD)
    assert machine.next(HEAD) == events.Wait("waits for a round")


@pytest.mark.parametrize(
    ("overlap", "next_round", "trains"),
    [
        (1, 3, True),  # one decision waits: the round may run ahead of it
        (1, 2, False),  # two do
        (0, 3, False),
        (0, 4, True),
    ],
)
def test_a_round_runs_ahead_of_a_decision_as_far_as_the_overlap_permits(
    overlap: int, next_round: int, trains: bool
) -> None:
    machine = ready(ROUNDS.model_copy(update={"overlap": overlap}))
    machine.handle(opened(4), HEAD)
    step = machine.next(LogPosition(next_round, 3))
    assert isinstance(step, events.Train if trains else events.TakeDecision)


def test_a_round_that_is_decided_itself_does_not_run_ahead() -> None:
    machine = ready()
    machine.handle(opened(4), HEAD)
    assert isinstance(machine.next(LogPosition(3, 4)), events.TakeDecision)


def test_a_node_in_a_new_session_says_ready_before_it_trains() -> None:
    machine = ready()
    machine.handle(events.Welcomed(), HEAD)
    machine.handle(opened(4), HEAD)
    assert isinstance(machine.next(BEHIND), events.TakeDecision)
    assert isinstance(machine.next(HEAD), events.SayReady)
    assert isinstance(machine.next(HEAD), events.Train)


def test_a_session_that_opens_in_the_middle_of_a_round_is_told_ready_after_it() -> None:
    machine = in_activity(Activity.TRAINING)
    machine.handle(events.Welcomed(), HEAD)
    machine.handle(events.Announced(), HEAD)
    machine.handle(events.Settled(), HEAD)
    assert machine.next(HEAD) == events.SayReady()


@pytest.mark.parametrize(("overlap", "must"), [(0, [True, True, False]), (1, [True, False, False])])
def test_an_announced_round_waits_for_decisions_as_far_as_the_next_one_needs_them(
    overlap: int, must: list[bool]
) -> None:
    spec = ROUNDS.model_copy(update={"overlap": overlap})
    machine = ready(spec)
    machine.handle(opened(4), HEAD)
    machine.next(HEAD)
    machine.handle(events.Announced(), HEAD)
    assert [machine.must_settle(LogPosition(next_round, 9)) for next_round in (3, 4, 5)] == must


@pytest.mark.parametrize(("audit_every", "waits"), [(0, False), (5, True), (4, False)])
def test_a_round_that_is_audited_is_trained_where_the_log_says(
    audit_every: int, waits: bool
) -> None:
    spec = ROUNDS.model_copy(update={"audit_every": audit_every})
    machine = ready(spec)
    machine.handle(opened(4), HEAD)
    machine.next(HEAD)
    machine.handle(events.Announced(), HEAD)
    assert machine.must_settle(LogPosition(4, 3)) is waits, "round 4, before 5 is trained"
    machine.handle(events.Settled(), HEAD)
    machine.handle(opened(5), HEAD)
    step = machine.next(LogPosition(4, 4, undecided=True))
    assert isinstance(step, events.TakeDecision if waits else events.Train | events.TakeDecision)


@pytest.mark.parametrize(
    ("round", "left_ms", "settles"),
    [(3, 400, True), (3, 399, False), (4, 4000, False)],
)
def test_between_passes_a_round_in_front_is_settled_if_more_time_is_left_than_it_takes(
    round: int, left_ms: int, settles: bool
) -> None:
    machine = in_activity(Activity.TRAINING)
    assert machine.settles_between_passes(round, left_ms, apply_ms=200) is settles
    machine.handle(events.Announced(), HEAD)
    assert not machine.settles_between_passes(round, left_ms, apply_ms=200)


# ---- resync


ORDER = wire.Resync(round=2, reason="differs", number=3)


def test_a_resync_comes_before_everything_and_drops_the_open_round() -> None:
    machine = ready()
    machine.handle(opened(4), HEAD)
    machine.handle(events.LeaveAsked(), HEAD)
    machine.handle(events.ResyncOrdered(ORDER), HEAD)
    assert machine.next(HEAD) == events.Resync(ORDER)
    assert machine.resyncs_obeyed == 3
    assert isinstance(machine.next(HEAD), events.End)


def test_after_a_resync_the_log_is_replayed_and_ready_is_owed() -> None:
    machine = ready()
    machine.handle(opened(4), HEAD)
    machine.handle(events.ResyncOrdered(ORDER), HEAD)
    machine.next(HEAD)
    assert isinstance(machine.next(LogPosition(0, 3)), events.TakeDecision)
    assert machine.next(HEAD) == events.SayReady()
    assert machine.next(HEAD) == events.Wait("waits for a round")


def test_a_resync_in_the_middle_of_a_round_is_obeyed_after_it() -> None:
    machine = in_activity(Activity.TRAINING)
    machine.handle(events.ResyncOrdered(ORDER), HEAD)
    machine.handle(events.Announced(), HEAD)
    machine.handle(events.Settled(), HEAD)
    assert machine.next(HEAD) == events.Resync(ORDER)


def test_while_it_catches_up_a_node_reports_only_the_round_that_the_resync_was_about() -> None:
    machine = ready()
    assert all(machine.reports(round) for round in range(5))
    machine.handle(events.Welcomed(), HEAD)
    assert not any(machine.reports(round) for round in range(-1, 5))
    machine.handle(events.ResyncOrdered(ORDER), HEAD)
    machine.next(HEAD)
    assert [round for round in range(5) if machine.reports(round)] == [2]


# ---- the end


def test_a_finished_run_is_followed_to_its_last_decision() -> None:
    machine = ready()
    machine.handle(events.Finished("all steps are done"), BEHIND)
    assert isinstance(machine.next(BEHIND), events.TakeDecision)
    assert machine.next(HEAD) == events.End("all steps are done")
    assert machine.activity is Activity.ENDED


def test_a_leaving_node_takes_no_decision_that_none_of_its_rounds_waits_for() -> None:
    machine = ready()
    machine.handle(events.LeaveAsked(), BEHIND)
    assert machine.next(BEHIND) == events.End("this node was stopped by its owner")


def test_a_node_without_a_state_ends_at_once_when_the_run_is_finished() -> None:
    new = LogPosition(next_round=0, decided_round=7)
    machine = Agenda(ROUNDS)
    machine.handle(events.Welcomed(), new)
    assert isinstance(machine.next(new), events.TakeDecision)
    assert machine.handle(events.Finished("done; the model is there"), new) == 0, "no more waiting"
    assert machine.next(new) == events.End("done; the model is there")


@pytest.mark.parametrize("event", [events.LeaveAsked(), events.Finished("done")])
def test_an_ending_node_trains_no_open_round(event: events.Event) -> None:
    machine = ready()
    machine.handle(opened(4), HEAD)
    machine.handle(event, HEAD)
    assert isinstance(machine.next(HEAD), events.End)


@pytest.mark.parametrize("event", [events.LeaveAsked(), events.Finished("done")])
def test_an_ending_node_waits_for_the_decisions_of_its_rounds(event: events.Event) -> None:
    machine, waits = ready(), dataclasses.replace(HEAD, undecided=True)
    machine.handle(event, waits)
    step = machine.next(waits)
    assert isinstance(step, events.TakeDecision)
    assert step.reason == "waits for the decision of round 4"
    assert isinstance(machine.next(LogPosition(5, 4)), events.End)


def test_the_reason_of_the_run_is_told_also_by_a_node_that_was_asked_to_leave() -> None:
    machine = ready()
    machine.handle(events.LeaveAsked(), HEAD)
    machine.handle(events.Finished("all steps are done"), HEAD)
    assert machine.stay is Stay.LEAVES
    assert machine.next(HEAD) == events.End("all steps are done")


# ---- limits


def test_a_node_that_stays_has_no_limit() -> None:
    machine = ready()
    for event in ALL_EVENTS[:4]:
        assert machine.handle(event, HEAD) is None
    assert machine.next(HEAD) == events.Resync(ALL_EVENTS[3].order)  # type: ignore[union-attr]
    assert machine.next(BEHIND) == events.TakeDecision("round 2 of 3", None, Doing.BEHIND)


@pytest.mark.parametrize(
    ("activity", "undecided", "offline", "limit_ms"),
    [
        (Activity.BETWEEN_ROUNDS, False, "", 0),
        (Activity.BETWEEN_ROUNDS, True, "", ROUND_MS),
        (Activity.TRAINING, False, "", 2 * ROUND_MS),
        (Activity.SETTLING, True, "", 2 * ROUND_MS),
        (Activity.CONCLUDING, True, "", ROUND_MS),
        (Activity.SETTLING, True, "lost", AWAY_MS),
        (Activity.BETWEEN_ROUNDS, False, "lost", 0),
    ],
)
def test_a_leaving_node_waits_as_long_as_its_rounds_may_take(
    activity: Activity, undecided: bool, offline: str, limit_ms: int
) -> None:
    machine = in_activity(activity)
    log = dataclasses.replace(HEAD, undecided=undecided, offline=offline)
    assert machine.handle(events.LeaveAsked(), log) == limit_ms


@pytest.mark.parametrize(("slot_ms", "limit_ms"), [(1000, FINISHED_MS), (60_000, 2 * 180_000)])
def test_after_the_end_of_the_run_each_payload_has_a_minute_or_a_round(
    slot_ms: int, limit_ms: int
) -> None:
    times = {"compute_ms": slot_ms, "publish_ms": slot_ms, "exchange_ms": slot_ms}
    machine = ready(ROUNDS.model_copy(update=times))
    assert machine.handle(events.Finished("done"), HEAD) == limit_ms


def test_each_decision_has_a_limit_of_its_own_and_to_look_again_is_no_new_wait() -> None:
    machine = ready()
    machine.handle(events.Finished("done"), BEHIND)
    limits = [
        machine.next(LogPosition(next_round, 9, too_far=too_far))
        for next_round, too_far in [(2, False), (2, True), (2, False), (3, True), (3, True)]
    ]
    found = [
        step.limit_ms for step in limits if isinstance(step, events.TakeDecision | events.Jump)
    ]
    assert found == [FINISHED_MS, None, None, FINISHED_MS, None]


# ---- purity


def test_the_agenda_loads_neither_torch_nor_a_clock_nor_an_event_loop() -> None:
    code = (
        "import sys\nfor name in ('torch', 'numpy', 'asyncio', 'grpc'): sys.modules[name] = None\n"
        "import node.round.agenda"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""


# ---- any order of events


class AgendaMachine(RuleBasedStateMachine):
    """A node that does what its agenda says, while messages come in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Agenda(ROUNDS)
        self.next_round, self.decided_round, self.opened_round = 0, -1, -1
        self.pending: set[int] = set()
        self.trained: list[int] = []
        self.readies = self.sessions = self.resyncs = 0
        self.asked = self.ended = False

    @property
    def log(self) -> LogPosition:
        return LogPosition(self.next_round, self.decided_round, bool(self.pending))

    @rule()
    def welcome(self) -> None:
        self.sessions += 1
        self.machine.handle(events.Welcomed(), self.log)

    @rule()
    def open(self) -> None:
        self.opened_round = min(self.opened_round + 1, self.decided_round + 2)
        self.machine.handle(opened(self.opened_round), self.log)

    @precondition(lambda self: self.decided_round < self.opened_round)
    @rule()
    def decide(self) -> None:
        self.decided_round += 1

    @rule(number=st.integers(1, 9))
    def order_resync(self, number: int) -> None:
        order = wire.Resync(round=0, number=number)
        self.machine.handle(events.ResyncOrdered(order), self.log)

    @rule()
    def finish(self) -> None:
        self.asked = True
        assert self.machine.handle(events.Finished("done"), self.log) is not None

    @rule()
    def leave(self) -> None:
        self.asked = True
        assert self.machine.handle(events.LeaveAsked(), self.log) is not None

    def take_decision(self) -> None:
        self.decided_round = max(self.decided_round, self.next_round)  # waited for
        self.opened_round = max(self.opened_round, self.decided_round)
        self.pending.discard(self.next_round)
        self.next_round += 1

    @precondition(lambda self: self.machine.activity is Activity.TRAINING)
    @rule()
    def announce(self) -> None:
        self.pending.add(self.trained[-1])
        self.machine.handle(events.Announced(), self.log)

    @precondition(lambda self: self.machine.activity is Activity.SETTLING)
    @rule()
    def settle(self) -> None:
        while self.machine.must_settle(self.log):
            self.take_decision()
        self.machine.handle(events.Settled(), self.log)

    @precondition(lambda self: self.machine.activity not in (Activity.TRAINING, Activity.SETTLING))
    @rule()
    def step(self) -> None:
        log, step = self.log, self.machine.next(self.log)
        assert not self.ended or isinstance(step, events.End)
        match step:
            case events.Train():
                assert not self.asked, "a node that is to end begins no round"
                assert self.sessions > 0, "a round was trained without a session"
                assert step.opened.round > max(self.trained, default=-1), "trained twice"
                assert self.next_round <= step.opened.round, "a decided round was trained"
                self.trained.append(step.opened.round)
            case events.TakeDecision():
                assert log.behind or log.undecided
                self.take_decision()
            case events.Resync():
                self.next_round, self.pending = 0, set()
                self.resyncs += 1
            case events.SayReady():
                assert not log.behind
                self.readies += 1
            case events.End():
                assert self.asked, "nobody asked this node to end"
                self.ended = True
            case events.Wait():
                assert not log.behind
            case _:
                raise AssertionError(f"not expected here: {step}")

    @invariant()
    def ready_is_said_at_most_once_for_each_reason(self) -> None:
        assert self.readies <= self.sessions + self.resyncs


TestAgendaMachine = AgendaMachine.TestCase
TestAgendaMachine.settings = settings(max_examples=60, stateful_step_count=40)


# ---- the run goes on from a checkpoint


def test_a_checkpoint_from_which_the_run_goes_on_comes_before_every_round_and_decision() -> None:
    machine = ready()
    machine.handle(opened(4), HEAD)
    restarts = dataclasses.replace(BEHIND, restarts=True, too_far=True)
    assert machine.next(restarts) == events.Jump("the run goes on from a checkpoint")
    assert machine.readiness is Readiness.OWED
    assert machine.next(HEAD) == events.SayReady()
    assert isinstance(machine.next(HEAD), events.Wait), "the open round was skipped"


def test_a_state_that_a_checkpoint_replaces_waits_for_no_decision() -> None:
    restarts = dataclasses.replace(BEHIND, restarts=True, undecided=True)
    assert not in_activity(Activity.SETTLING).must_settle(restarts)
    assert isinstance(in_activity(Activity.CONCLUDING).next(restarts), events.End)


def test_a_payload_that_is_made_of_the_state_waits_for_the_decision_in_front_of_it() -> None:
    """Whatever the overlap: the step of round 4 is made after round 3 was mixed."""
    waits, goes_on = (Agenda(ROUNDS, settles_first=first) for first in (True, False))
    for machine in (waits, goes_on):
        machine.handle(events.Welcomed(), HEAD)
        machine.next(HEAD)
        machine.handle(opened(4), HEAD)
        assert isinstance(machine.next(HEAD), events.Train)
    behind, settled = LogPosition(next_round=3, decided_round=2), LogPosition(4, 3)
    assert waits.must_settle_first(behind)
    assert not waits.must_settle_first(settled)
    assert not goes_on.must_settle_first(behind)
    waits.handle(events.ResyncOrdered(wire.Resync(round=2, reason="differs", number=1)), behind)
    assert not waits.must_settle_first(behind), "a state to be discarded waits for nothing"

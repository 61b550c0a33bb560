"""The validation loss of a run, in virtual time: whose turn it is, and which word counts."""

from typing import Any

import pytest

from coordinator.machine.events.acts import Pause, ordered
from coordinator.machine.events.effects import (
    AskCheckpoint,
    AskEvaluation,
    CommitRound,
    Effect,
    LossMeasured,
)
from coordinator.machine.events.inputs import Evaluated, Heartbeat, RoomGiven
from coordinator.machine.rules import measuring
from coordinator.machine.screening import screened
from coordinator.machine.state.evaluation import POINTS_KEPT, Evaluation
from coordinator.state_snapshot import decode_state, durable_part, encode_state
from protocol.ids import PeerId
from protocol.limits import VALIDATION_TOKENS, VALIDATION_WINDOWS_MAX
from tests.coordinator.machine.driver import A, B, C, Driver, of_kind, run_spec


def run_of(*peers: PeerId, every: int = 2, **sections: Any) -> Driver:
    """A run with a snapshot after every `every` steps, and no checkpoint before its end."""
    retention = {"snapshot_every": every, "checkpoint_every": 0}
    return Driver(*peers, retention=retention, **sections)


def found(driver: Driver) -> Evaluation:
    return driver.machine.state.evaluation


def asked(driver: Driver) -> AskEvaluation:
    return of_kind(AskEvaluation, driver.effects)[-1]


def measured(driver: Driver, **changes: Any) -> list[Effect]:
    """The word of the member that was asked last, but for `changes`."""
    ask = asked(driver)
    fields: dict[str, Any] = {"peer": ask.peer, "round": ask.round, "loss": 1.5, "samples": 8}
    return driver.tell(Evaluated(**(fields | changes)))


def test_one_member_is_asked_in_front_of_the_commit_of_every_snapshot() -> None:
    driver = run_of(A, B)
    assert not of_kind(AskEvaluation, driver.make_round(A, B))
    effects = driver.make_round(A, B)
    kinds = [type(each) for each in effects if isinstance(each, AskEvaluation | CommitRound)]
    assert kinds == [AskEvaluation, CommitRound]
    assert (asked(driver).round, asked(driver).peer in (A, B)) == (1, True)


def test_the_turn_follows_from_the_round_and_the_members_and_goes_round() -> None:
    turns = []
    for _ in range(2):
        driver = run_of(A, B, C, every=1)
        for _ in range(12):
            driver.make_round(A, B, C)
            measured(driver)
        turns.append([ask.peer for ask in of_kind(AskEvaluation, driver.effects)])
    assert turns[0] == turns[1]
    assert set(turns[0]) == {A, B, C}


def test_a_measured_loss_is_kept_with_its_round_and_its_member() -> None:
    driver = run_of(A, B)
    driver.make_round(A, B)
    driver.make_round(A, B)
    ask = asked(driver)
    assert measuring.words(driver.machine.state).endswith("measures the state after round 1")
    (effect,) = of_kind(LossMeasured, measured(driver, data_sha256=b"d" * 32))
    point = found(driver).newest
    assert point == effect.point
    assert (point.round, point.step, point.loss, point.peer) == (1, 1, 1.5, ask.peer)
    assert point.name.startswith("node "), "the name that the volunteer chose"
    assert not measuring.words(driver.machine.state)


def test_words_of_others_of_other_rounds_and_twice_change_nothing() -> None:
    driver = run_of(A, B, every=3)
    for _ in range(3):
        driver.make_round(A, B)
    ask = asked(driver)
    other = B if ask.peer == A else A
    for said in (
        Evaluated(other, ask.round, 0.1, 8),
        Evaluated(ask.peer, ask.round - 1, 0.1, 8),
        Evaluated(ask.peer, ask.round + 1, 0.1, 8),
        Evaluated(C, ask.round, 0.1, 8),
    ):
        assert screened(said, driver.machine) == Heartbeat(said.peer), "not journalled"
        assert not of_kind(LossMeasured, driver.tell(said))
    assert found(driver).newest is None
    said = Evaluated(ask.peer, ask.round, 1.5, 8)
    assert screened(said, driver.machine) == said
    measured(driver)
    assert screened(said, driver.machine) == Heartbeat(ask.peer)
    assert not of_kind(LossMeasured, measured(driver, loss=0.1))
    assert [point.loss for point in found(driver).points] == [1.5]


def test_nothing_is_heard_of_a_round_before_it_is_committed() -> None:
    driver = run_of(A, B, every=1)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.hold(A, 0, [B])
    assert not of_kind(AskEvaluation, driver.effects)
    assert not of_kind(LossMeasured, driver.tell(Evaluated(A, 0, 1.5, 8)))


@pytest.mark.parametrize("goes", ["fails", "leaves", "is silent"])
def test_a_second_member_is_asked_with_a_later_state_and_then_nobody_until_due(goes: str) -> None:
    every = 2 * measuring.PATIENCE_ROUNDS
    driver = run_of(A, B, C, every=every, schedule={"steps": 1000})
    for _ in range(every):
        driver.make_round(A, B, C)
    first = asked(driver)
    others = [peer for peer in (A, B, C) if peer != first.peer]
    if goes == "fails":
        measured(driver, loss=0.0, samples=0, failure="it is too busy")
    elif goes == "leaves":
        driver.leave(first.peer)
    rounds = measuring.PATIENCE_ROUNDS + 2 if goes == "is silent" else 2
    for _ in range(rounds):
        driver.make_round(*others, *([] if goes == "leaves" else [first.peer]))
    second = asked(driver)
    assert second.peer != first.peer
    assert second.round > first.round
    assert not of_kind(LossMeasured, driver.tell(Evaluated(first.peer, first.round, 0.1, 8)))
    measured(driver, loss=0.0, samples=0, failure="its data is damaged")
    count = len(of_kind(AskEvaluation, driver.effects))
    driver.make_round(*others, *([] if goes == "leaves" else [first.peer]))
    assert len(of_kind(AskEvaluation, driver.effects)) == count
    assert "its data is damaged" in measuring.words(driver.machine.state)


def test_the_last_state_is_measured_in_place_of_an_older_one() -> None:
    driver = run_of(A, B, every=3, schedule={"steps": 4})
    for _ in range(4):
        driver.make_round(A, B)
    assert [ask.round for ask in of_kind(AskEvaluation, driver.effects)] == [2, 3]
    assert driver.machine.state.end.finished
    measured(driver)
    newest = found(driver).newest
    assert newest is not None
    assert newest.round == 3


def test_where_no_round_follows_the_second_measures_the_head() -> None:
    driver = run_of(A, B, every=2)
    driver.make_round(A, B)
    driver.make_round(A, B)
    first = asked(driver)
    driver.tell(ordered(Pause(""), 1, driver.machine.state.operator.head))
    driver.make_round(A, B)
    effects = measured(driver, loss=0.0, samples=0, failure="it is too busy")
    (second,) = of_kind(AskEvaluation, effects)
    assert (second.round, second.peer != first.peer) == (driver.machine.state.head_round, True)


def test_whoever_writes_a_checkpoint_measures_its_state() -> None:
    for seed_round in range(1, 6):
        driver = run_of(A, B, C, every=1000, schedule={"steps": seed_round})
        driver.tell(RoomGiven(10_000, 2))
        for _ in range(seed_round):
            driver.make_round(A, B, C)
        (ask,) = of_kind(AskCheckpoint, driver.effects)
        assert (asked(driver).round, asked(driver).peer) == (ask.round, ask.writer)


def test_nodes_that_mix_are_measured_only_where_all_are_equal() -> None:
    driver = run_of(A, B, every=1000)
    driver.make_round(A, B)
    state = driver.machine.state
    found(driver).wanted, state.consensus.apart = True, True
    assert not of_kind(AskEvaluation, driver.make_round(A, B))
    state.consensus.apart = False
    assert of_kind(AskEvaluation, driver.make_round(A, B))


def test_a_member_that_comes_back_is_asked_again() -> None:
    driver = run_of(A, B)
    driver.make_round(A, B)
    driver.make_round(A, B)
    ask = asked(driver)
    driver.hello(ask.peer)
    assert of_kind(AskEvaluation, driver.ready(ask.peer)) == [ask]


def test_all_measure_the_same_number_of_samples_and_long_ones_cost_no_more() -> None:
    assert measuring.windows(run_spec(data={"sequence_length": 8})) == VALIDATION_WINDOWS_MAX
    long = run_spec(data={"sequence_length": 4096})
    assert measuring.windows(long) * 4096 == VALIDATION_TOKENS
    assert measuring.windows(run_spec(data={"sequence_length": 10**6})) == 1


def test_points_are_bounded_and_the_state_survives_its_encoding() -> None:
    driver = run_of(A, B, every=1)
    driver.make_round(A, B)
    measured(driver)
    (point,) = found(driver).points
    found(driver).points = [point] * POINTS_KEPT
    driver.make_round(A, B)
    state = driver.machine.state
    assert durable_part(decode_state(encode_state(state))) == durable_part(state)
    measured(driver)
    assert len(found(driver).points) == POINTS_KEPT
    assert found(driver).points[-1].round == 1
    assert durable_part(decode_state(encode_state(state))) == durable_part(state)

"""Further steps and another learning rate: signed into the chain, and obeyed from then on."""

from coordinator.machine.events import acts
from coordinator.machine.events.effects import Chained, CommitRound, FinishRun
from coordinator.state_snapshot import decode_state, durable_part, encode_state
from protocol.codec.chain import Reschedule, entry_digest
from protocol.schedule import float32_bits, in_force, scalars
from tests.coordinator.machine.driver import A, B, Driver, entries_of, of_kind
from tests.coordinator.machine.rules.test_orders import objection, order


def make_rounds(driver: Driver, count: int) -> None:
    for _ in range(count):
        round = driver.machine.state.undecided[0].round
        driver.exchange(round, A, B)
        for peer in (A, B):
            driver.apply(peer, round)


def changed(driver: Driver) -> Reschedule:
    return entries_of(Reschedule, driver.effects)[-1]


def test_an_extended_run_makes_its_new_steps_and_the_chain_says_so() -> None:
    driver = Driver(A, B, schedule={"steps": 3})
    make_rounds(driver, 1)
    head = driver.machine.state.head
    order(driver, acts.Extend(2))
    entry = changed(driver)
    assert (entry.round, entry.step, entry.steps) == (0, 1, 5)
    assert entry.learning_rate_bits == float32_bits(driver.machine.spec.schedule.learning_rate)
    assert entry.previous == head
    make_rounds(driver, 1)
    assert driver.commits[-1].commit.previous == entry_digest(entry)
    make_rounds(driver, 3)
    assert driver.machine.state.end.finished
    assert len(driver.commits) == 5


def test_a_commit_has_the_rate_of_the_schedule_in_force() -> None:
    driver = Driver(A, B, schedule={"steps": 9})
    make_rounds(driver, 2)
    order(driver, acts.Rate(0.0007))
    make_rounds(driver, 1)
    order(driver, acts.Extend(20))
    make_rounds(driver, 1)
    schedule = driver.machine.spec.schedule
    changes = entries_of(Reschedule, driver.effects)
    for commit, past in zip((each.commit for each in driver.commits), (0, 0, 1, 2), strict=True):
        expected = scalars(in_force(schedule, changes[:past]), commit.step)
        assert (commit.learning_rate_bits, commit.decay_bits) == expected


def test_a_run_that_has_ended_goes_on_when_it_is_extended() -> None:
    driver = Driver(A, B, schedule={"steps": 1})
    make_rounds(driver, 1)
    assert of_kind(FinishRun, driver.effects)
    driver.leave(A, B)
    order(driver, acts.Extend(2))
    assert not driver.machine.state.end.finished
    assert not of_kind(FinishRun, driver.hello(A)), "it is not sent away"
    driver.ready(A)
    driver.join(B)
    make_rounds(driver, 2)
    assert driver.machine.state.end.finished
    assert [each.commit.step for each in driver.commits] == [0, 1, 2]


def test_an_end_by_order_is_taken_back_and_the_steps_count_from_there() -> None:
    driver = Driver(A, B, schedule={"steps": 50})
    order(driver, acts.Finish("enough"))
    make_rounds(driver, 1)
    assert driver.machine.state.end.finished
    assert "extend it first" in objection(driver, acts.Rate(0.1))
    order(driver, acts.Extend(2))
    assert changed(driver).steps == 3
    driver.join(A, B)
    make_rounds(driver, 2)
    assert driver.machine.state.end.finished


def test_the_schedule_in_force_outlives_a_restart() -> None:
    driver = Driver(A, B, schedule={"steps": 3})
    order(driver, acts.Extend(7))
    assert changed(driver).round == -1, "before the first commit"
    state = driver.machine.state
    again = decode_state(encode_state(state))
    assert durable_part(again) == durable_part(state)
    assert again.schedule(driver.machine.spec).steps == 10


def test_nothing_but_the_order_itself_enters_the_chain() -> None:
    driver = Driver(A, B, schedule={"steps": 3})
    effects = order(driver, acts.Rate(0.5))
    assert [type(each) for each in effects] == [Chained]
    assert len(entries_of(Reschedule, effects)) == 1
    assert not of_kind(CommitRound, effects)

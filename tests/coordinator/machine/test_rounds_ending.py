"""The end of a run, time and restarts."""

import pytest

from coordinator.machine.events.effects import Assignment, FinishRun
from coordinator.machine.events.inputs import InstantReached, Restarted
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.schedule import scalars
from protocol.shuffle import Share
from tests.coordinator.machine.driver import A, B, C, Driver, of_kind


def agreeing(driver: Driver, *peers: PeerId) -> None:
    driver.join(*peers)
    driver.exchange(0, *peers)


# ---- the end


def test_the_run_finishes_after_its_steps() -> None:
    driver = Driver(A, B, schedule={"steps": 2})
    driver.exchange(0, A, B)
    assert not driver.machine.state.end.finished
    driver.exchange(1, A, B)
    assert driver.machine.state.end.finished
    assert driver.machine.state.undecided == []
    assert len(driver.opened) == 2


def test_nodes_are_let_go_when_all_of_them_hold_the_last_commit() -> None:
    driver = Driver(schedule={"steps": 1})
    agreeing(driver, A, B)
    assert of_kind(FinishRun, driver.apply(A, 0)) == []  # B may still need what A holds
    assert of_kind(FinishRun, driver.apply(B, 0)) == [FinishRun("all 1 steps are done")]
    assert driver.machine.state.end.concluded


def test_who_comes_after_the_end_is_told_so_at_once() -> None:
    driver = Driver(schedule={"steps": 1})
    agreeing(driver, A, B)
    driver.apply(A, 0)
    driver.apply(B, 0)
    assert of_kind(FinishRun, driver.hello(C)) == [FinishRun("all 1 steps are done")]


def test_a_finished_run_waits_for_one_that_went_missing_and_two_leases_at_most() -> None:
    lease_ms = Driver().machine.spec.membership.lease_ms
    for comes_back in (True, False):
        driver = Driver(A, B, C, schedule={"steps": 1})
        driver.exchange(0, A, B)
        driver.part(C)
        driver.apply(A, 0)
        driver.apply(B, 0)
        effects = driver.wait(lease_ms - 1)
        if comes_back:
            assert of_kind(FinishRun, effects) == []
            assert of_kind(FinishRun, driver.join(C)) == [FinishRun("all 1 steps are done")]
        else:
            assert of_kind(FinishRun, effects + driver.wait(lease_ms)) == []
            assert of_kind(FinishRun, driver.wait(2)) == [FinishRun("all 1 steps are done")]


def test_a_member_that_said_goodbye_is_not_waited_for_at_the_end() -> None:
    driver = Driver(A, B, C, schedule={"steps": 1})
    driver.exchange(0, A, B)
    driver.leave(C)
    driver.apply(A, 0)
    assert of_kind(FinishRun, driver.apply(B, 0)) == [FinishRun("all 1 steps are done")]


def test_a_skipped_round_makes_no_step() -> None:
    driver = Driver(A, B, schedule={"steps": 2})
    driver.exchange(0, A, B)
    driver.wait(1500)
    assert not driver.machine.state.end.finished
    driver.exchange(2, A, B)
    assert driver.machine.state.end.finished
    assert [commit.commit.round for commit in driver.commits] == [0, 2]


def test_with_overlap_a_skipped_last_round_is_followed_by_another() -> None:
    driver = Driver(A, B, schedule={"steps": 2}, rounds={"overlap": 1})
    driver.announce(A, 0)
    driver.announce(B, 0)
    assert [opened.round for opened in driver.opened] == [0, 1]
    driver.announce(A, 1)
    driver.announce(B, 1)
    assert [opened.round for opened in driver.opened] == [
        0,
        1,
    ]  # the two steps of the run are under way
    driver.wait(3000)
    assert [skip.round for skip in driver.skips] == [0, 1]
    driver.exchange(2, A, B)
    driver.exchange(3, A, B)
    assert [(commit.commit.round, commit.commit.step) for commit in driver.commits] == [
        (2, 0),
        (3, 1),
    ]
    assert driver.machine.state.end.finished


def test_a_commit_carries_the_scalars_of_the_step_that_it_makes() -> None:
    schedule = {"steps": 9, "warmup_steps": 5, "weight_decay": 0.5}
    driver = Driver(A, B, C, schedule=schedule, rounds={"overlap": 1})
    driver.announce(A, 0)
    driver.wait(1000)  # round 1 opens as step 1, and round 0 is skipped
    driver.exchange(1, A, B, C)
    driver.wait(2000)
    driver.exchange(2, A, B, C)
    made = [driver.commits[place].commit for place in (0, 1)]
    assert [(commit.round, commit.step) for commit in made] == [(1, 0), (2, 1)]
    assert [(opened.round, opened.step) for opened in driver.opened[1:3]] == [(1, 1), (2, 1)]
    spec = driver.machine.spec.schedule
    assert [(commit.learning_rate_bits, commit.decay_bits) for commit in made] == [
        scalars(spec, 0),
        scalars(spec, 1),
    ]


def test_a_node_that_comes_back_after_the_end_is_told() -> None:
    driver = Driver(schedule={"steps": 1})
    agreeing(driver, A, B)
    driver.apply(A, 0)
    driver.apply(B, 0)
    driver.leave(A)
    assert of_kind(FinishRun, driver.join(A)) == [FinishRun("all 1 steps are done")]


# ---- time and restarts


def test_time_that_runs_backwards_is_our_own_bug() -> None:
    driver = Driver(A)
    driver.now_ms -= 1
    with pytest.raises(LocalProtocolError, match="expected time at or after 1000000, got 999999"):
        driver.join(B)


def test_instants_become_due_one_by_one_in_order() -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)  # and no member holds it: the round waits until commit_by
    seen = []
    for milliseconds in (999, 1, 499, 1, 1499, 1):
        driver.now_ms += milliseconds
        due = driver.machine.due(driver.now_ms)
        seen.append(due)
        for event in due:
            driver.tell(event)
    assert seen == [
        [],
        [InstantReached(0, "bell")],
        [],
        [InstantReached(0, "publish_by")],
        [],
        [InstantReached(0, "commit_by")],
    ]


def test_an_instant_of_a_decided_round_says_nothing() -> None:
    driver = Driver()
    agreeing(driver, A, B)
    assert driver.tell(InstantReached(0, "commit_by")) == []
    assert len(driver.commits) == 1
    assert driver.skips == []


def test_a_restart_extends_leases_and_instants_by_the_outage() -> None:
    driver = Driver(A, B, membership={"lease_ms": 4000, "heartbeat_ms": 1000})
    before = driver.machine.state.undecided[0].instants
    driver.now_ms += 60_000
    driver.tell(Restarted())
    after = driver.machine.state.undecided[0].instants
    assert (
        after.bell - before.bell,
        after.publish_by - before.publish_by,
        after.commit_by - before.commit_by,
    ) == (
        60_000,
        60_000,
        60_000,
    )
    assert driver.member(A).lease_until_ms == driver.now_ms + 4000
    assert driver.machine.due(driver.now_ms) == []
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B]


def test_a_round_that_was_reached_stays_reached_over_a_restart() -> None:
    driver = Driver(A, B, C)
    driver.announce(A, 0)
    driver.wait(1500)
    driver.now_ms += 60_000
    driver.tell(Restarted())
    assert driver.announce(B, 0) == []
    undecided = driver.machine.undecided(0)
    assert undecided is not None
    assert sorted(undecided.announced) == [A]
    assert undecided.assignments[B] == Assignment(B, (Share(8, 8),), False, "")

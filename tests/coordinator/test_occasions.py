"""What an operator who is not looking hears of: each once, and again when it comes back."""

from coordinator.history import History
from coordinator.machine.events.effects import Checkpoint, CommitRound, SkipRound
from coordinator.machine.state.standing import Demoted
from coordinator.occasions import STALL_MS, Occasions
from protocol.ids import Digest
from tests.coordinator.machine.driver import A, B, Driver
from tests.coordinator.test_history import take
from tests.coordinator.test_public_document import commit


class Watched:
    """A run of two members that is looked at."""

    def __init__(self) -> None:
        self.driver, self.history, self.occasions = Driver(A, B), History(), Occasions()
        assert self.kinds() == []

    def kinds(self, later_ms: int = 0) -> list[str]:
        now_ms = self.driver.now_ms + later_ms
        found = self.occasions.look(self.driver.machine, self.history, now_ms)
        assert all(each.text for each in found)
        return [each.kind for each in found]


def test_members_that_differ_are_an_alarm_until_they_agree() -> None:
    run = Watched()
    run.driver.exchange(0, A, B)
    run.driver.apply(A, 0)
    run.driver.apply(B, 0, digest=7)
    assert run.kinds() == ["alarm"]
    assert run.kinds() == []
    reports = run.driver.machine.state.verdicts.tally.by_round
    disputed = dict(reports)
    reports.clear()
    assert run.kinds() == []
    reports.update(disputed)
    assert run.kinds() == ["alarm"], "it has come back"


def test_a_run_that_has_begun_and_waits_for_long_is_a_stall() -> None:
    run = Watched()
    run.driver.make_round(A, B)
    run.driver.leave(A)
    run.driver.wait(60_000)
    assert run.kinds() == []
    assert run.kinds(STALL_MS) == ["stall"]
    assert run.kinds(2 * STALL_MS) == []


def test_a_run_that_has_not_begun_may_wait_for_ever() -> None:
    driver = Driver(membership={"start_members": 2})
    occasions = Occasions()
    for later_ms in (0, 10 * STALL_MS):
        assert occasions.look(driver.machine, History(), driver.now_ms + later_ms) == []


def test_rounds_that_count_for_nobody_one_after_the_other_are_told_once() -> None:
    run = Watched()
    take(run.history, [SkipRound(0, "x"), SkipRound(1, "x")])
    assert run.kinds() == []
    take(run.history, [SkipRound(2, "x")])
    assert run.kinds() == ["skips"]
    take(run.history, [SkipRound(3, "x")])
    assert run.kinds() == []
    take(run.history, [CommitRound(commit(4, A), ((),), 1.0)])
    assert run.kinds() == []
    take(run.history, [SkipRound(round, "x") for round in (5, 6, 7)])
    assert run.kinds() == ["skips"]


def test_a_checkpoint_a_demotion_and_the_end_are_told_when_they_come() -> None:
    run = Watched()
    state = run.driver.machine.state
    state.checkpoints.made.append(Checkpoint(5, 5, 1, Digest(b"x" * 32), 1, A, "", None))
    assert run.kinds() == ["checkpoint"]
    state.members.standing.demoted[B] = Demoted(A, "copied work", b"", b"")
    assert run.kinds() == ["demotion"]
    state.end.finished = True
    assert run.kinds() == ["end"]
    assert run.kinds() == []


def test_what_was_there_at_the_start_is_old() -> None:
    driver = Driver(A, B)
    state = driver.machine.state
    state.checkpoints.made.append(Checkpoint(5, 5, 1, Digest(b"x" * 32), 1, A, "", None))
    state.members.standing.demoted[B] = Demoted(A, "copied work", b"", b"")
    state.end.finished = True
    assert Occasions().look(driver.machine, History(), driver.now_ms) == []

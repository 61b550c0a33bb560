"""A node leaves a machine that is in use, and comes back when it has been quiet for long enough."""

from itertools import pairwise

import pytest

from lockstep.volunteer.others.quiet import (
    BUSY_S,
    CALM_S,
    UNREAD_S,
    Quiet,
    QuietLimits,
    Seen,
)

LOOK_S = 5.0


class Machine:
    """A machine that is looked at every LOOK_S seconds of virtual time."""

    def __init__(self, when_idle: int = 0, other_load: int = 0) -> None:
        self.quiet = Quiet(QuietLimits(when_idle, other_load))
        self.now_s = 1000.0

    def look(self, **seen: float | None) -> str:
        self.quiet.look(Seen(self.now_s, **seen))
        self.now_s += LOOK_S
        return self.quiet.reason()

    def looks(self, seconds: float, **seen: float | None) -> list[str]:
        return [self.look(**seen) for _ in range(int(seconds / LOOK_S))]


@pytest.mark.parametrize(
    ("idle_s", "reason"),
    [
        (0.0, "you are using this machine; goes on after 5 quiet minutes"),
        (61.0, "you are using this machine; goes on after 5 quiet minutes (4 more)"),
        (299.0, "you are using this machine; goes on after 5 quiet minutes (1 more)"),
        (300.0, ""),
        (float("inf"), ""),
    ],
)
def test_a_person_at_the_machine_sends_the_node_away(idle_s: float, reason: str) -> None:
    assert Machine(when_idle=5).look(idle_s=idle_s) == reason


def test_without_the_limit_a_person_and_a_load_change_nothing() -> None:
    assert not any(Machine().looks(600, idle_s=0.0, cpu_percent=100.0))


def test_a_person_who_can_no_longer_be_seen_counts_as_present() -> None:
    machine = Machine(when_idle=1)
    assert machine.look(idle_s=60.0) == ""
    assert machine.look(idle_s=None).startswith("cannot tell any more whether you use")
    assert machine.look(idle_s=65.0) == ""


def test_a_load_of_others_sends_the_node_away_after_half_a_minute() -> None:
    machine = Machine(other_load=25)
    assert not any(
        machine.looks(CALM_S, cpu_percent=24.0) + machine.looks(BUSY_S, cpu_percent=10.0)
    )
    said = machine.looks(BUSY_S + LOOK_S, cpu_percent=80.0)
    assert said[0] == "", "one busy look is no load"
    assert said[-1] == (
        "other programs use 80 % of the CPU, and 25 % are allowed; goes on when they have used "
        "less than 19 % for 2 minutes"
    )


def test_a_short_peak_does_not_send_the_node_away() -> None:
    machine = Machine(other_load=50)
    machine.looks(CALM_S, cpu_percent=10.0)
    assert not any(machine.looks(10, cpu_percent=100.0) + machine.looks(CALM_S, cpu_percent=10.0))


def test_the_node_comes_back_after_two_calm_minutes_and_not_before() -> None:
    machine = Machine(other_load=40)
    machine.looks(CALM_S, cpu_percent=100.0)
    assert machine.quiet.reason()
    waited = machine.looks(CALM_S + LOOK_S, cpu_percent=0.0)
    gone = next(number for number, reason in enumerate(waited) if not reason)
    assert CALM_S / 2 < gone * LOOK_S <= CALM_S


def test_a_load_just_below_the_limit_does_not_bring_the_node_back() -> None:
    machine = Machine(other_load=40)
    machine.looks(CALM_S, cpu_percent=60.0)
    assert all(machine.looks(3 * CALM_S, cpu_percent=35.0)), "35 % is above 3/4 of 40 %"
    assert machine.looks(CALM_S, cpu_percent=29.0)[-1] == ""


def test_a_load_that_wavers_about_the_limit_does_not_send_the_node_to_and_fro() -> None:
    machine = Machine(other_load=40)
    reasons = [machine.look(cpu_percent=20.0 + 40.0 * (step % 2)) for step in range(400)]
    changes = sum(bool(old) != bool(new) for old, new in pairwise(reasons))
    assert changes <= 1


def test_a_gpu_that_others_use_counts_as_a_cpu_does() -> None:
    machine = Machine(other_load=30)
    said = machine.looks(BUSY_S + 2 * LOOK_S, cpu_percent=0.0, gpu_percent=90.0)
    assert "90 % of a GPU" in said[-1]
    alone = Machine(other_load=30)
    assert not any(alone.looks(CALM_S, cpu_percent=0.0, gpu_percent=None)), "no GPU that tells"


def test_a_load_that_can_no_longer_be_read_counts_as_busy() -> None:
    machine = Machine(other_load=30)
    machine.looks(CALM_S, cpu_percent=0.0)
    said = machine.looks(UNREAD_S + 2 * LOOK_S, cpu_percent=None)
    assert said[0] == ""
    assert said[-1].startswith("cannot tell any more how busy")
    assert machine.looks(2 * LOOK_S, cpu_percent=0.0)[-1] == ""


def test_the_time_that_a_machine_slept_is_no_load_and_no_calm() -> None:
    machine = Machine(other_load=30)
    machine.looks(CALM_S, cpu_percent=90.0)
    machine.now_s += 3600
    assert machine.look(cpu_percent=0.0), "an hour asleep does not make it calm"
    assert machine.looks(CALM_S, cpu_percent=0.0)[-1] == ""

"""The number of samples in a pass: doubled while it is worth it and fits, and the least good one
taken.
"""

import pytest

from node.model.pass_size import SAMPLES_MAX, TRIALS_S, Room, Step, Trial, best, next_step

WIDE = Room(samples_max=10_000, pass_s_max=100.0)


def search(pass_s: dict[int, float], room: Room = WIDE, memory: int = 0) -> tuple[int, Step]:
    """(The size that is taken, the last step) of a machine with these times, whose passes take
    `memory` bytes a sample.
    """
    trials: list[Trial] = []
    while (step := next_step(trials, room)).samples:
        trials.append(Trial(step.samples, pass_s[step.samples], memory * step.samples))
    return best(trials).samples, step


def test_a_wide_device_gets_the_size_at_which_more_samples_stop_to_be_quicker() -> None:
    times = {1: 0.10, 2: 0.10, 4: 0.11, 8: 0.12, 16: 0.23, 32: 0.46}
    taken, step = search(times)
    assert taken == 8
    assert step == Step(0, "32 are hardly quicker")


def test_a_device_that_one_sample_fills_keeps_to_one() -> None:
    taken, _ = search({1: 1.0, 2: 2.0, 4: 4.0})
    assert taken == 1


def test_one_disappointing_trial_ends_nothing() -> None:
    times = {1: 0.10, 2: 0.20, 4: 0.15, 8: 0.16, 16: 0.32, 32: 0.64}
    assert search(times)[0] == 8


def test_of_equally_quick_sizes_the_least_is_taken() -> None:
    assert best([Trial(1, 1.0), Trial(2, 1.0), Trial(4, 1.9), Trial(8, 3.9)]).samples == 2


def test_no_size_is_tried_whose_memory_may_not_be_there() -> None:
    times = {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}
    taken, step = search(times, Room(10_000, 100.0, memory_bytes=799), memory=100)
    assert (taken, step.samples) == (4, 0)
    assert "8 may not fit" in step.reason
    assert search(times, Room(10_000, 100.0, memory_bytes=0), memory=100)[0] == 1


def test_a_pass_stays_short_beside_the_time_to_the_bell() -> None:
    taken, step = search({1: 1.0, 2: 1.1, 4: 1.3}, Room(10_000, 2.5))
    assert taken == 4
    assert "a pass of 8 might last 2.6 s" in step.reason


def test_no_more_samples_than_a_member_may_have_in_a_round() -> None:
    taken, step = search(dict.fromkeys((1, 2, 4), 1.0), Room(6, 100.0))
    assert taken == 4
    assert "no pass of this run has more than 6 samples" in step.reason


@pytest.mark.parametrize(("spent_s", "more"), [(0.0, 8), (TRIALS_S - 1.0, 0)])
def test_the_time_for_all_trials_has_a_bound(spent_s: float, more: int) -> None:
    assert next_step([Trial(4, 0.5)], WIDE, spent_s).samples == more


def test_a_device_without_end_ends_too() -> None:
    trials: list[Trial] = []
    while (step := next_step(trials, WIDE)).samples:
        trials.append(Trial(step.samples, 0.001))
    assert trials[-1].samples == SAMPLES_MAX

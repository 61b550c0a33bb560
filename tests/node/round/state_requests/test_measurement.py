"""How long the passes of a measurement are."""

import pytest

from node.round.state_requests.measurement import IDLE_PASS_MS, LossMeasurement, borrowed_ms


def begun(samples: int = 64) -> LossMeasurement:
    return LossMeasurement(round=9, samples=samples, targets_per_sample=10)


def test_the_first_pass_is_one_sample_and_the_next_fit_the_time() -> None:
    measurement = begun()
    assert measurement.count_within(0, 8) == 0
    assert measurement.count_within(1, 8) == 1, "its cost is not known"
    measurement.add(1, 20.0, took_ms=10)
    assert measurement.count_within(9, 8) == 0
    assert measurement.count_within(35, 8) == 3
    assert measurement.count_within(1000, 8) == 8, "no more than fit the memory"


def test_an_idle_pass_is_short_but_for_a_single_sample() -> None:
    measurement = begun()
    assert measurement.idle_count(8) == 1
    measurement.add(1, 20.0, took_ms=IDLE_PASS_MS / 4)
    assert measurement.idle_count(8) == 4
    measurement.add(4, 80.0, took_ms=40 * IDLE_PASS_MS)
    assert measurement.idle_count(8) == 1


def test_the_loss_is_the_mean_over_all_targets() -> None:
    measurement = begun(samples=3)
    measurement.add(1, 30.0, took_ms=0)
    assert not measurement.is_complete
    assert measurement.count_within(1000, 8) == 2, "no more than are left"
    measurement.add(2, 45.0, took_ms=0)
    assert measurement.is_complete
    assert measurement.loss == pytest.approx(75 / 30)


def test_time_is_borrowed_only_where_the_bell_cuts_rounds_and_two_passes_remain() -> None:
    assert borrowed_ms(1000, 10, cut=False) == 0
    assert borrowed_ms(1000, 10, cut=True) == 250
    assert borrowed_ms(1000, 450, cut=True) == 100
    assert borrowed_ms(1000, 600, cut=True) == 0
    assert borrowed_ms(-5, 1, cut=True) == 0

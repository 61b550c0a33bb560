"""The curve of a whole run: bounded, exact in the mean, deaf to what is no loss."""

import math

import pytest

from coordinator.loss_curve import POINTS_MAX, LossCurve


def test_a_short_run_is_shown_round_by_round() -> None:
    curve = LossCurve()
    for round in (0, 1, 3):
        curve.add(round, 5.0 - round)
    assert curve.columns() == ([0, 1, 3], [5.0, 4.0, 2.0])


def test_a_million_rounds_are_a_bounded_curve_with_the_right_means() -> None:
    curve, rounds = LossCurve(), 1_000_000
    for round in range(rounds):
        curve.add(round, float(round))
    middles, losses = curve.columns()
    assert POINTS_MAX // 2 <= len(losses) <= POINTS_MAX
    assert curve.width == 1024
    assert losses[0] == sum(range(1024)) / 1024
    assert middles == sorted(middles)
    assert all(abs(middle - loss) <= 1 for middle, loss in zip(middles, losses, strict=True))


def test_a_curve_with_gaps_is_that_of_the_rounds_there_are() -> None:
    curve = LossCurve()
    for round in range(0, 100 * POINTS_MAX, 50):
        curve.add(round, 2.0)
    middles, losses = curve.columns()
    assert set(losses) == {2.0}
    assert len(set(middles)) == len(middles) <= POINTS_MAX


@pytest.mark.parametrize("loss", [None, math.nan, math.inf, -math.inf, 1e300])
def test_what_is_no_loss_leaves_no_point(loss: float | None) -> None:
    curve = LossCurve()
    curve.add(0, 3.0)
    curve.add(1, loss)
    assert curve.columns() == ([0], [3.0])

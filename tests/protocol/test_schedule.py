"""Learning rate and decay by step, and the float32 bits that a commit carries."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.chain import Reschedule
from protocol.ids import Digest, RunId
from protocol.runfile import ScheduleSpec
from protocol.schedule import float32_bits, float32_value, in_force, learning_rate, scalars

SHAPES = ("cosine", "constant")
bounded = settings(max_examples=200)
schedules = st.builds(
    ScheduleSpec,
    steps=st.integers(1, 10_000),
    learning_rate=st.floats(1e-8, 10, allow_subnormal=False),
    warmup_steps=st.integers(0, 12_000),
    shape=st.sampled_from(SHAPES),
    final_fraction=st.floats(0, 1),
    weight_decay=st.floats(0, 10),
)


def spec(shape: str, **fields: float) -> ScheduleSpec:
    return ScheduleSpec(
        **({"steps": 100, "warmup_steps": 10, "learning_rate": 0.5, "shape": shape} | fields)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_warm_up_rises_in_equal_steps_to_the_full_rate(shape: str) -> None:
    rates = [learning_rate(spec(shape), step) for step in range(11)]
    assert rates == pytest.approx([0.5 * (step + 1) / 11 for step in range(11)])
    assert rates[10] == 0.5


@pytest.mark.parametrize(("shape", "last"), [("cosine", 0.05), ("constant", 0.5)])
def test_the_last_step_has_the_final_rate(shape: str, last: float) -> None:
    assert learning_rate(spec(shape, final_fraction=0.1), 99) == pytest.approx(last, rel=1e-12)
    assert learning_rate(spec(shape, final_fraction=0.1), 10_000) == pytest.approx(last, rel=1e-12)


def test_a_cosine_is_halfway_in_the_middle() -> None:
    middle = spec("cosine", steps=101, warmup_steps=0, final_fraction=0.0)
    assert learning_rate(middle, 50) == pytest.approx(0.25)
    quarter = spec("cosine", steps=101, warmup_steps=0, final_fraction=0.0)
    assert learning_rate(quarter, 25) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)) / 2)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert learning_rate(spec("cosine", warmup_steps=0), 0) == 0.5


@bounded
@given(schedules, st.integers(0, 20_000))
def test_the_rate_stays_within_its_bounds_and_falls_after_warm_up(
    schedule: ScheduleSpec, step: int
) -> None:
    rate, later = learning_rate(schedule, step), learning_rate(schedule, step + 1)
    assert 0 <= rate <= schedule.learning_rate * (1 + 1e-12)
    if step >= schedule.warmup_steps:
        assert later <= rate * (1 + 1e-12)
    else:
        assert later > rate


@bounded
@given(schedules, st.integers(0, 20_000))
def test_scalars_are_the_bits_of_the_nearest_float32(schedule: ScheduleSpec, step: int) -> None:
    rate = learning_rate(schedule, step)
    rate_bits, decay_bits = scalars(schedule, step)
    assert rate_bits == int(np.float32(rate).view(np.uint32))
    assert decay_bits == int(np.float32(1 - rate * schedule.weight_decay).view(np.uint32))


@bounded
@given(st.integers(0, 2**32 - 1))
def test_bits_and_values_are_inverse(bits: int) -> None:
    value = float32_value(bits)
    if math.isnan(value):
        assert np.isnan(np.uint32(bits).view(np.float32))
    else:
        assert float32_bits(value) == bits
        assert value == float(np.uint32(bits).view(np.float32))


@pytest.mark.parametrize(
    ("value", "bits"),
    [(0.0, 0), (1.0, 0x3F800000), (0.1, 0x3DCCCCCD), (-2.0, 0xC0000000), (0.004, 0x3B83126F)],
)
def test_known_bits(value: float, bits: int) -> None:
    assert float32_bits(value) == bits


def test_no_decay_is_exactly_one() -> None:
    assert scalars(spec("constant", weight_decay=0.0), 50) == (0x3F000000, 0x3F800000)


def test_the_last_change_is_in_force_and_stretches_the_shape() -> None:
    def change(steps: int, rate: float) -> Reschedule:
        return Reschedule(RunId("ab" * 16), 0, 1, steps, float32_bits(rate), Digest(b"d" * 32))

    first = ScheduleSpec(steps=100, warmup_steps=0)
    found = in_force(first, [change(200, 0.5), change(300, 0.25)])
    assert (found.steps, found.learning_rate) == (300, 0.25)
    assert found.shape == first.shape
    assert in_force(first, []) == first

"""Every byte is a scale, scales ascend with their codes, and a size finds the nearest one."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec.scales import codes_of, exponents, mantissas, scales_of

ALL = np.arange(256, dtype=np.uint8)


def test_codes_are_quarters_of_powers_of_two_in_ascending_order() -> None:
    scales = scales_of(ALL)
    exact = [Fraction(4 + code % 4, 4) * Fraction(2) ** (code // 4 - 56) for code in range(256)]
    assert [Fraction(float(scale)) for scale in scales] == exact
    assert (np.diff(scales) > 0).all()
    assert scales[[0, 224, 255]].tolist() == [2.0**-56, 1.0, 224.0]


def test_a_scale_is_its_mantissa_in_quarters_of_its_power() -> None:
    found = mantissas(ALL) * 2.0 ** (exponents(ALL) - 2)
    np.testing.assert_array_equal(found, scales_of(ALL))


def test_each_scale_is_the_nearest_of_itself() -> None:
    np.testing.assert_array_equal(codes_of(scales_of(ALL)), ALL)


@given(st.floats(2.0**-56, 250, width=32))
def test_no_scale_is_nearer_to_a_size_than_the_one_found(size: float) -> None:
    found = int(codes_of(np.array([size], np.float32))[0])
    distances = np.abs(scales_of(ALL).astype(np.float64) - size)
    assert distances[found] == distances.min()


@pytest.mark.parametrize(
    ("size", "code"),
    [(0.0, -1), (2.0**-57, -1), (float("nan"), -1), (-1.0, -1), (1e30, 255), (float("inf"), 255)],
)
def test_sizes_beyond_all_scales_have_the_largest_or_none(size: float, code: int) -> None:
    assert codes_of(np.array([size], np.float32)).tolist() == [code]

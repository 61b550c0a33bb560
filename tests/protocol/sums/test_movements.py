"""How movements count: weights, bounds and sizes, in whole numbers and in any order of authors."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec.payload import Coefficients
from protocol.codec.scales import scales_of
from protocol.errors import LocalProtocolError
from protocol.limits import VOTE_SUM_MAX
from protocol.sums.movements import (
    MANTISSA_MAX,
    Counted,
    Movement,
    beside_median,
    changes_of,
    code_max,
    range_bits,
    scaled_weights,
)


def bounds_of(said: Sequence[tuple[int, int]]) -> list[int]:
    """The codes of authors as they count beside the median, from (weight, code) of each, in whole
    numbers.
    """
    if not said:
        return []
    ranked = sorted(said, key=lambda each: (each[1], each[0]))
    sums = list(itertools.accumulate(weight for weight, _ in ranked))
    weight, code = ranked[next(n for n, below in enumerate(sums) if 2 * below > sums[-1])]
    found = []
    for other, own in said:
        most = Fraction(3, 2) * scale(code) * max(Fraction(1), Fraction(other, weight))
        found.append(max(c for c in range(own + 1) if c == 0 or scale(c) <= most))
    return found


def scale(code: int) -> Fraction:
    return Fraction(4 + code % 4, 4) * Fraction(2) ** (code // 4 - 56)


@given(
    st.lists(st.tuples(st.integers(0, 255), st.integers(0, 9)), min_size=1, max_size=9),
    st.randoms(use_true_random=False),
)
def test_the_bound_beside_the_median_is_that_of_whole_numbers_in_any_order(
    said: list[tuple[int, int]], chance: random.Random
) -> None:
    codes = np.array([[code] for code, _ in said], np.uint8)
    weights = np.array([[weight] for _, weight in said])
    found = beside_median(codes, weights)[:, 0]
    there = [(weight, code) for code, weight in said if weight]
    assert found[weights[:, 0] > 0].tolist() == bounds_of(there)
    order = list(range(len(said)))
    chance.shuffle(order)
    assert (beside_median(codes[order], weights[order])[:, 0] == found[order]).all()


@given(st.lists(st.integers(1, VOTE_SUM_MAX), min_size=1, max_size=4096))
def test_no_sum_reaches_what_float32_cannot_count(samples: list[int]) -> None:
    weights = scaled_weights(samples)
    assert min(weights) >= 1
    bits = range_bits(sum(weights))
    assert 9 <= bits <= 12
    assert sum(weights) * MANTISSA_MAX << bits <= VOTE_SUM_MAX
    assert (np.diff(np.array(weights)[np.argsort(samples, kind="stable")]) >= 0).all()


def test_4096_authors_with_any_samples_are_counted_exactly() -> None:
    assert range_bits(sum(scaled_weights([1] * 4096))) == 9
    assert range_bits(sum(scaled_weights([8] * 73))) == 12


@given(st.floats(2.0**-30, 10, width=32), st.integers(1, 10_000), st.integers(1, 4096))
def test_the_cap_is_the_largest_scale_that_the_steps_could_have_made(
    rate: float, steps: int, top_k: int
) -> None:
    scales = scales_of(np.arange(256, dtype=np.uint8)).astype(np.float64)
    reach = 64 * rate * steps / np.sqrt(top_k)
    found = code_max(rate, steps, top_k)
    assert found == 255 or scales[found + 1] > reach * (1 - 1e-12)
    assert found == -1 or scales[found] <= reach * (1 + 1e-12)


@pytest.mark.parametrize("rate", [0.0, -0.0, -1.0])
def test_without_a_rate_nothing_could_have_moved(rate: float) -> None:
    assert code_max(rate, 5, 192) == -1


@given(
    st.lists(
        st.tuples(
            st.integers(1, 900), st.integers(0, 200), st.integers(0, 9), st.integers(-1, 220)
        ),
        max_size=7,
    )
)
def test_signs_of_two_scales_count_as_whole_numbers_say(
    said: list[tuple[int, int, int, int]],
) -> None:
    """Each author says +1 of its scale at place 0, and -1 of the larger one, if any, at 1."""
    movements = [
        Movement(samples, cap, _said(code, code + more if more else 0))
        for samples, code, more, cap in said
    ]
    counted = Counted(movements, 1)
    there = [
        (min(code, cap), min(code + more, cap), more) for _, code, more, cap in said if cap >= 0
    ]
    weights = scaled_weights([samples for samples, _, _, cap in said if cap >= 0])
    bounds = [
        bounds_of(list(zip(weights, column, strict=True)))
        for column in ([code for code, _, _ in there], [code for _, code, _ in there])
    ]
    largest = max((code // 4 - 56 for column in bounds for code in column), default=-56)
    found, exponents = counted.sizes(0, 1)
    assert exponents.tolist() == [largest]
    for number, (weight, *codes) in enumerate(zip(weights, *bounds, strict=True)):
        expected = [
            weight * (4 + code % 4 << counted.range_bits - far)
            if (far := largest - code // 4 + 56) <= counted.range_bits
            else 0
            for code in codes
        ]
        assert found[number, 0].tolist() == expected
        sent = counted.within(number, 0, 1)
        signed = changes_of(sent.values, sent.counts, found[number]).tolist()
        assert signed == [expected[0], -expected[1] if there[number][2] else -expected[0]]


def _said(code: int, larger: int) -> Coefficients:
    places, values = np.arange(2, dtype=np.uint16), np.array([1, -2 if larger else -1], np.int16)
    scales = np.array([[code, larger]], np.uint8)
    return Coefficients(np.full(1, 2, np.uint16), places, values, scales)


def test_authors_of_one_scale_and_of_two_are_not_counted_together() -> None:
    one = replace(_said(9, 0), scales=np.array([9], np.uint8))
    with pytest.raises(LocalProtocolError, match="counts and scales"):
        Counted([Movement(1, 255, _said(9, 0)), Movement(1, 255, one)], 1)
    with pytest.raises(LocalProtocolError, match="expected signs"):
        Counted([Movement(1, 255, replace(one, values=np.array([1, 2], np.int16)))], 1)

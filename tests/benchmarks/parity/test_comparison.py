"""Differences are paired by seed, with Student's interval; an exchange counts every payload per
receiver.
"""

from dataclasses import replace

import pytest

from tests.benchmarks.parity.cells import Cell, Task
from tests.benchmarks.parity.comparison import Difference, difference, volume
from tests.benchmarks.parity.results import Point, Result

CELL = Cell("demo", 0.01, 5)


def ended(seed: int, bits_per_byte: float) -> Result:
    points = Point(0, 0, 8.0, 0, 0), Point(5, 100, bits_per_byte, 1000, 3000)
    return Result(replace(CELL, seed=seed), Task(), "c0", 10_000, 1.0, "a machine", points)


def test_differences_are_of_equal_seeds_whatever_their_order() -> None:
    found = difference(
        [ended(0, 2.0), ended(1, 3.0), ended(7, 9.0)], [ended(1, 2.5), ended(0, 1.0)]
    )
    assert found.by_seed == (1.0, 0.5)
    assert found.mean == 0.75


def test_the_interval_of_three_is_four_point_three_standard_errors() -> None:
    found = Difference((1.0, 2.0, 3.0))
    low, high = found.interval or (0.0, 0.0)
    assert low == pytest.approx(2 - 4.303 / 3**0.5)
    assert high == pytest.approx(2 + 4.303 / 3**0.5)


def test_one_seed_has_no_interval_and_none_is_refused() -> None:
    assert difference([ended(0, 2.0)], [ended(0, 1.0)]).interval is None
    with pytest.raises(ValueError, match="expected a shared seed"):
        difference([ended(0, 2.0)], [ended(1, 1.0)])


def test_an_exchange_sends_each_payload_to_every_other_node() -> None:
    found = volume(8, parameters=1000, payload_bytes=10.0)
    assert found.exchange_bytes == 70.0
    assert found.times_less_than_dense == pytest.approx(2000 / 70)
    assert found.ring_bytes == pytest.approx(2 * 7 / 8 * 2000)


@pytest.mark.parametrize("nodes", [2, 3, 8, 64])
def test_the_saving_against_a_ring_falls_as_two_over_the_nodes(nodes: int) -> None:
    found = volume(nodes, parameters=1000, payload_bytes=10.0)
    assert found.times_less_than_ring == pytest.approx(2 / nodes * 2000 / 10)


def test_a_lone_node_exchanges_nothing() -> None:
    with pytest.raises(ValueError, match="at least 2 nodes, got 1"):
        volume(1, parameters=1000, payload_bytes=10.0)

"""Ranges of chunks: together all of them, each once, as equal as can be."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError
from protocol.limits import CHUNKS_MAX, MEMBERS_MAX
from protocol.sums.ranges import RANGES_MAX, Range, range_count, ranges_of


@given(st.integers(1, CHUNKS_MAX), st.integers(1, RANGES_MAX))
def test_ranges_are_all_chunks_in_shares_that_differ_by_one(chunks: int, count: int) -> None:
    ranges = ranges_of(chunks, min(count, chunks))
    assert (ranges[0].first, ranges[-1].stop) == (0, chunks)
    assert all(one.stop == other.first for one, other in pairwise(ranges))
    assert max(each.chunks for each in ranges) - min(each.chunks for each in ranges) <= 1
    assert min(each.chunks for each in ranges) >= 1


def test_the_number_of_ranges_follows_the_crowd() -> None:
    crowds = [0, 1, 16, 31, 32, 63, 64, 65, MEMBERS_MAX]
    assert [range_count(10**6, crowd) for crowd in crowds] == [16] * 4 + [32] * 2 + [64] * 3
    assert [range_count(chunks, 64) for chunks in (1, 5, 63, 64, 65)] == [1, 5, 63, 64, 64]


@pytest.mark.parametrize(("chunks", "count"), [(10, 0), (10, 11), (1000, 65), (0, 1), (10, -1)])
def test_other_numbers_of_ranges_are_our_own_fault(chunks: int, count: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"ranges of {chunks} chunks, got {count}"):
        ranges_of(chunks, count)


def test_a_range_knows_its_chunks_and_its_place() -> None:
    assert (Range(3, 7).chunks, list(range(10))[Range(3, 7).slice]) == (4, [3, 4, 5, 6])

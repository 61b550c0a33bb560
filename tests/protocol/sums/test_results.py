"""Results as all nodes read them: total, and no further than the authors could have moved."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.commit_sums import AuthorSet
from protocol.codec.payload import decode
from protocol.codec.sums import COARSE, LEVEL_MAX, Levels, decode_sums, encode_sums
from protocol.limits import CHUNK_ENTRIES, MEMBERS_MAX, VOTE_SUM_MAX
from protocol.sums.adding import Author, levels_of
from protocol.sums.movements import Counted, Movement, range_bits, scaled_weights
from protocol.sums.parts import within
from protocol.sums.ranges import ranges_of
from protocol.sums.results import author_set, read_results, within_reach
from tests.protocol.sums.test_adding import added, crowd, peer, shape_for
from tests.protocol.sums.test_movements import scale
from tests.support.votes import signs, two_scales


def lone(level: int, *, unit: int = 56, step: int = 0, count: int = 1) -> Levels:
    """One chunk of `count` equal levels."""
    return Levels(
        np.array([unit], np.uint8),
        np.array([step], np.uint8),
        np.array([count], np.uint16),
        np.arange(count, dtype=np.uint16),
        np.full(count, level, np.int8),
    )


@settings(max_examples=60, deadline=None)
@given(
    samples=st.lists(st.integers(1, VOTE_SUM_MAX), min_size=1, max_size=6),
    cap=st.integers(150, 255),
    seed=st.integers(0, 99),
    value_bits=st.sampled_from([1, 2]),
    coarse=st.sampled_from(COARSE),
)
def test_no_result_of_movements_is_beyond_reach(
    samples: list[int], cap: int, seed: int, value_bits: int, coarse: int
) -> None:
    """Even where all say the same, at the bound of their steps."""
    sent = (two_scales if value_bits == 2 else signs)(5, 60, seed)
    assert sent.scales is not None
    for scales in (sent.scales, np.where(sent.scales > 0, 255, 0).astype(np.uint8)):
        movements = [Movement(count, cap, replace(sent, scales=scales)) for count in samples]
        levels = levels_of(Counted(movements, 5), 5, coarse)
        authors = [Author(peer(each), count, cap) for each, count in enumerate(samples)]
        assert within_reach(levels, author_set(authors), 60).all()


@given(
    level=st.integers(1, LEVEL_MAX),
    unit=st.integers(0, 63),
    step=st.integers(0, 18),
    cap=st.integers(-1, 255),
    weight_sum=st.integers(1, 4608),
    top_k=st.integers(1, CHUNK_ENTRIES),
    count=st.integers(1, 100),
)
def test_the_reach_is_that_of_whole_numbers(
    level: int, unit: int, step: int, cap: int, weight_sum: int, top_k: int, count: int
) -> None:
    authors = AuthorSet(3, 3, weight_sum, cap)
    found = within_reach(lone(-level, unit=unit, step=step, count=count), authors, top_k)
    # l * 2^t in units of 2^(E - r - 2), of the weighted sum
    moved = level * Fraction(2) ** (step + unit - 56 - range_bits(weight_sum) - 2) / weight_sum
    most = top_k * scale(cap) ** 2 if cap >= 0 else 0
    assert found.tolist() == [moved**2 * count <= 4 * most]


def test_a_lone_level_of_twice_the_largest_scale_is_in_reach_and_no_more() -> None:
    authors, one = author_set([Author(peer(0), 8, 56 * 4)]), 8 * 4 << 12
    assert authors == AuthorSet(1, 1, 8, 56 * 4)
    assert within_reach(lone(1, step=18), authors, 1).tolist() == [True]
    assert 2 * one == 1 << 18, "twice the sum of one movement of scale 1"
    assert within_reach(lone(2, step=18), authors, 1).tolist() == [False]
    assert within_reach(lone(2, step=18), authors, 4).tolist() == [True]
    assert within_reach(lone(2, step=18), replace(authors, code_max=57 * 4), 1).tolist() == [True]
    assert within_reach(lone(1, unit=57, step=18), authors, 1).tolist() == [False]


def test_without_authors_that_count_nothing_is_in_reach() -> None:
    nobody = author_set([Author(peer(0), 8, -1)])
    assert nobody == AuthorSet(1, 0, 1, -1)
    assert author_set([]) == AuthorSet(0, 0, 1, -1)
    assert within_reach(lone(1, unit=0), nobody, 192).tolist() == [False]
    assert within_reach(lone(1, count=0, unit=0), nobody, 192).tolist() == [True]


def test_the_set_of_a_commit_weighs_as_its_sum_does() -> None:
    samples = [1, 600, VOTE_SUM_MAX, 5]
    authors = [Author(peer(each), count, 180 + each) for each, count in enumerate(samples)]
    found = author_set([*authors, Author(peer(9), 10**9, -1)])
    assert found == AuthorSet(5, 4, sum(scaled_weights(samples)), 183)
    most = author_set([Author(peer(each), 1, 0) for each in range(MEMBERS_MAX)])
    assert (most.weight_sum, range_bits(most.weight_sum)) == (MEMBERS_MAX, 9)


def test_results_of_ranges_are_read_as_one_and_bad_ones_as_nothing() -> None:
    shape = shape_for(7)
    authors, payloads = crowd(shape, [8, 3])
    whole = decode_sums(added(authors, payloads, shape).blob, 7)
    ranges = ranges_of(7, 3)
    movements = [
        Movement(each.samples, each.code_max, decode(payloads[each.peer], shape)[1])
        for each in authors
    ]
    blobs = []
    for among in ranges:
        parts = [replace(each, coefficients=within(each.coefficients, among)) for each in movements]
        blobs.append(encode_sums(levels_of(Counted(parts, among.chunks), among.chunks, 4)))
    read, refused = read_results(blobs, ranges)
    assert encode_sums(read) == encode_sums(whole)
    assert not refused
    for wrong in (b"", blobs[1] + b"\0", blobs[2]):
        read, refused = read_results([blobs[0], wrong, blobs[2]], ranges)
        assert list(refused) == [1]
        among = ranges[1]
        assert not read.counts[among.slice].any()
        assert read.counts.sum() == whole.counts.sum() - whole.counts[among.slice].sum()
        assert encode_sums(read)

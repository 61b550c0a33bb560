"""The result of a range: one digest whoever adds, and all ranges are the whole."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.payload import Coefficients, Header, PayloadShape, decode, encode
from protocol.codec.sums import Levels, concatenated, decode_sums, encode_sums, sums_of
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId, RunId
from protocol.limits import MEMBERS_MAX, VOTE_SUM_MAX
from protocol.sums.adding import (
    COARSE,
    STRIP_CHUNKS,
    Author,
    Result,
    exact_sums,
    levels_of,
    result_of,
)
from protocol.sums.movements import Counted, Movement
from protocol.sums.parts import cut, shape_of
from protocol.sums.ranges import ranges_of
from tests.protocol.sums.test_movements import scale
from tests.support.votes import signs, two_scales

RUN = RunId("ab" * 16)
ROUND = 7

GOLDEN = {1: "f34312b0ca", 2: "d0aa58b47a"}
"""First bytes of the digest of three authors' result, by the bits of a value."""


def peer(number: int) -> PeerId:
    return PeerId(f"{number:032x}")


def shape_for(chunks: int, value_bits: int = 1, top_k: int = 60) -> PayloadShape:
    return PayloadShape(chunks, top_k, value_bits, scaled=True)


def said(shape: PayloadShape, seed: int) -> Coefficients:
    return (two_scales if shape.value_bits == 2 else signs)(shape.chunks, shape.top_k, seed)


def payload(shape: PayloadShape, number: int, round: int = ROUND) -> bytes:
    return encode(Header(RUN, round, peer(number)), said(shape, number), shape)


def crowd(shape: PayloadShape, samples: Sequence[int]) -> tuple[list[Author], dict[PeerId, bytes]]:
    """Authors of these samples, whose bounds cut some of them, and their payloads."""
    authors = [Author(peer(each), count, 175 + each) for each, count in enumerate(samples)]
    return authors, {peer(each): payload(shape, each) for each in range(len(samples))}


def added(
    authors: Sequence[Author], parts: Mapping[PeerId, bytes], shape: PayloadShape, coarse: int = 4
) -> Result:
    return result_of(RUN, ROUND, authors, parts, shape, coarse)


def same(one: Levels, other: Levels) -> bool:
    return encode_sums(one) == encode_sums(other)


def fixed(shape: PayloadShape, number: int) -> bytes:
    """A payload that needs no chance."""
    slots = np.tile(np.arange(shape.top_k), shape.chunks)
    turns = np.arange(len(slots)) * (number + 3)
    values = np.where(turns % 7 < 3, -1, 1) * np.where(slots % shape.scale_count == 1, 2, 1)
    codes = 180 + (np.arange(shape.chunks) * 5 + number) % 13
    scales = codes[:, None] + np.array([0, 3])
    sent = Coefficients(
        np.full(shape.chunks, shape.top_k, np.uint16),
        (slots * 60 + turns % 60).astype(np.uint16),
        values.astype(np.int16),
        (scales if shape.scale_count == 2 else scales[:, 0]).astype(np.uint8),
    )
    return encode(Header(RUN, ROUND, peer(number)), sent, shape)


@pytest.mark.parametrize("value_bits", GOLDEN)
def test_the_result_of_three_authors_is_that_written_down(value_bits: int) -> None:
    shape = shape_for(5, value_bits)
    authors = [Author(peer(number), 8 + number, 190) for number in range(3)]
    parts = {peer(number): fixed(shape, number) for number in range(3)}
    assert added(authors, parts, shape).digest.hex()[:10] == GOLDEN[value_bits]


@settings(max_examples=40, deadline=None)
@given(
    chunks=st.integers(1, 12),
    count=st.integers(1, 12),
    value_bits=st.sampled_from([1, 2]),
    samples=st.lists(st.integers(1, VOTE_SUM_MAX), min_size=1, max_size=6),
    coarse=st.sampled_from([1, 4]),
)
def test_the_results_of_all_ranges_are_that_of_the_whole(
    chunks: int, count: int, value_bits: int, samples: list[int], coarse: int
) -> None:
    shape = shape_for(chunks, value_bits)
    authors, payloads = crowd(shape, samples)
    whole = added(authors, payloads, shape, coarse)
    ranges = ranges_of(chunks, min(count, chunks))
    parts = {author: cut(each, shape, len(ranges)) for author, each in payloads.items()}
    results = [
        added(
            authors,
            {who: each[number] for who, each in parts.items()},
            shape_of(shape, among),
            coarse,
        )
        for number, among in enumerate(ranges)
    ]
    read = [
        decode_sums(result.blob, among.chunks)
        for result, among in zip(results, ranges, strict=True)
    ]
    assert encode_sums(concatenated(read)) == whole.blob
    assert not whole.refused


@settings(max_examples=40, deadline=None)
@given(
    value_bits=st.sampled_from([1, 2]),
    samples=st.lists(st.integers(1, 600), min_size=1, max_size=8),
    chance=st.randoms(use_true_random=False),
)
def test_neither_order_nor_grouping_of_authors_changes_a_bit(
    value_bits: int, samples: list[int], chance: random.Random
) -> None:
    shape = shape_for(5, value_bits)
    authors, parts = crowd(shape, samples)
    expected = added(authors, parts, shape)
    shuffled = chance.sample(authors, len(authors))
    assert added(shuffled, dict(reversed(parts.items())), shape).digest == expected.digest

    counted = Counted(
        [
            Movement(each.samples, each.code_max, decode(parts[each.peer], shape)[1])
            for each in shuffled
        ],
        shape.chunks,
    )
    together, units = exact_sums(counted, range(len(authors)), 0, shape.chunks)
    some = set(chance.sample(range(len(authors)), chance.randint(0, len(authors))))
    groups = some, {*range(len(authors))} - some
    grouped = [exact_sums(counted, group, 0, shape.chunks) for group in groups]
    np.testing.assert_array_equal(sum(sums for sums, _ in grouped), together)
    assert all((own == units).all() for _, own in grouped)


def test_strips_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_for(11, 2)
    authors, parts = crowd(shape, [3, 5, 8])
    expected = added(authors, parts, shape).blob
    assert shape.chunks < STRIP_CHUNKS
    for size in (1, 4):
        monkeypatch.setattr("protocol.sums.adding.STRIP_CHUNKS", size)
        assert added(authors, parts, shape).blob == expected


def one_place(shape: PayloadShape, code: int, sign: int = 1) -> Coefficients:
    ones = np.ones(shape.chunks, np.uint16)
    codes = np.full(shape.chunks, code, np.uint8)
    return Coefficients(ones, ones * 0, np.full(shape.chunks, sign, np.int16), codes)


def test_4096_authors_of_the_largest_weights_are_added_exactly() -> None:
    shape = shape_for(1, top_k=1)
    same_place = one_place(shape, 200)
    authors = [Author(peer(each), VOTE_SUM_MAX, 255) for each in range(MEMBERS_MAX)]
    parts = {
        each.peer: encode(Header(RUN, ROUND, each.peer), same_place, shape) for each in authors
    }
    sums, _ = exact_sums(
        Counted([Movement(each.samples, 255, same_place) for each in authors], 1), range(4096), 0, 1
    )
    assert sums[0, 0] == 4096 * (4 << 9) <= VOTE_SUM_MAX, "each weighs 1, in 9 bits of range"
    found = sums_of(decode_sums(added(authors, parts, shape).blob, 1))
    assert found[0, 0] == 2 * sums[0, 0], "half of a step, the sum of which is one"
    with pytest.raises(LocalProtocolError, match="parts of 4097 authors, at most 4096"):
        added([*authors, Author(peer(4096), 1, 255)], parts, shape)


def test_an_author_counts_for_little_more_than_the_median_in_a_range_alone() -> None:
    shape, one = shape_for(2, top_k=1), 56 * 4
    honest = [Movement(8, 255, one_place(shape, one)) for _ in range(3)]
    boasting = Movement(8, 255, one_place(shape, 255, -1))
    sums, units = exact_sums(Counted([*honest, boasting], 2), range(4), 0, 2)
    assert (sums[:, 0] == (3 * 4 - 6) * 8 << 12).all(), "1.5 times, of 3 times 1"
    assert (units == 56).all()
    assert not sums[:, 1:].any()


def test_of_two_scales_each_is_beside_its_own_median() -> None:
    shape, one = shape_for(1, 2, top_k=4), 56 * 4

    def author(lower: int, larger: int, sign: int = 1) -> Movement:
        values = np.array([1, 1, 2, 2], np.int16) if larger else np.ones(4, np.int16)
        scales = np.array([[lower, larger]], np.uint8)
        places = np.arange(4, dtype=np.uint16)
        sent = Coefficients(np.full(1, 4, np.uint16), places, values * np.int16(sign), scales)
        assert encode(Header(RUN, ROUND, peer(0)), sent, shape)
        return Movement(1, 255, sent)

    honest = [author(one, one + 4) for _ in range(3)]
    alone, _ = exact_sums(Counted(honest, 1), range(3), 0, 1)
    for other, lower, larger in (
        (author(one, 255, -1), 1, 3),  # 1.5 times 2
        (author(254, 255, -1), 1.5, 3),
        (author(254, 0, -1), 1.5, 1.5),
        (author(one, 0, -1), 1, 1),
    ):
        counted = Counted([*honest, other], 1)
        sums, units = exact_sums(counted, range(4), 0, 1)
        scale = 4 * 2.0 ** (12 + 56 - int(units[0]))
        assert (sums[0, :4] / scale).tolist() == [3 - lower] * 2 + [6 - larger] * 2
    assert alone[0, 2] == 2 * alone[0, 0]


@settings(max_examples=12, deadline=None)
@given(
    count=st.sampled_from([9, 16]),
    many=st.booleans(),
    value_bits=st.sampled_from([1, 2]),
    boast=st.integers(230, 254),
    seed=st.integers(0, 99),
)
def test_authors_that_boast_move_no_more_than_the_bound_says_be_they_one_or_a_third(
    count: int, many: bool, value_bits: int, boast: int, seed: int
) -> None:
    hostile, shape = count // 3 if many else 1, shape_for(3, value_bits)
    sent = [said(shape, seed + number) for number in range(count)]

    def counted(code: int) -> Counted:
        """All authors, of whom the hostile ones say this of every value."""
        scales = [each.scales for each in sent]
        for number in range(hostile):
            scales[number] = np.full_like(scales[number], code)
        return Counted(
            [
                Movement(8, 255, replace(each, scales=own))
                for each, own in zip(sent, scales, strict=True)
            ],
            shape.chunks,
        )

    boasting = counted(boast)
    found = encode_sums(levels_of(boasting, shape.chunks, COARSE))
    assert found == encode_sums(levels_of(counted(255), shape.chunks, COARSE)), "and not further"
    sums, units = exact_sums(boasting, range(hostile), 0, shape.chunks)
    for chunk in range(shape.chunks):
        speak = [bool(each.counts[chunk]) for each in sent]
        liars = sum(speak[:hostile])
        if 2 * liars >= sum(speak):
            continue  # of those that speak in this chunk the honest are no majority
        largest = max(int(np.max(each.scales[chunk])) for each in sent[hostile:])
        unit = Fraction(2) ** (int(units[chunk]) - 56 - 2 - boasting.range_bits)
        moved = int(np.abs(sums[chunk]).max()) * unit / boasting.weights[0]
        assert 0 < moved <= liars * Fraction(3, 2) * scale(largest) or not liars


def test_a_part_that_says_nothing_weighs_all_the_same() -> None:
    shape = shape_for(4)
    authors, parts = crowd(shape, [600, 700, 800])
    silent = signs(4, 60)
    silent = replace(
        silent,
        counts=silent.counts * 0,
        indices=silent.indices[:0],
        values=silent.values[:0],
        scales=np.zeros(4, np.uint8),
    )
    nothing = {**parts, peer(1): encode(Header(RUN, ROUND, peer(1)), silent, shape)}
    expected = added(authors, nothing, shape)
    assert not expected.refused
    for wrong in (
        b"",
        parts[peer(1)][:-1],
        parts[peer(1)] + b"\0",
        parts[peer(2)],
        payload(shape, 1, round=8),
        payload(shape_for(5), 1),
        payload(shape_for(4, 2), 1),
    ):
        found = added(authors, {**parts, peer(1): wrong}, shape)
        assert found.blob == expected.blob != added(authors, parts, shape).blob
        assert list(found.refused) == [peer(1)]
    apart = {each: part for each, part in parts.items() if each != peer(1)}
    silent = result_of(RUN, ROUND, authors, apart, shape, silent=[peer(1)])
    assert silent.blob == expected.blob
    assert not silent.refused


def test_authors_without_a_bound_and_no_author_at_all_move_nothing() -> None:
    shape = shape_for(3)
    authors, parts = crowd(shape, [8, 8])
    lone = added(authors[:1], {peer(0): parts[peer(0)]}, shape)
    muted = [authors[0], replace(authors[1], code_max=-1)]
    assert added(muted, parts, shape).blob == lone.blob
    assert not decode_sums(added([], {}, shape).blob, 3).values.size
    assert same(levels_of(Counted([], 3), 3, 4), decode_sums(added([], {}, shape).blob, 3))


def test_another_set_of_parts_is_our_own_fault() -> None:
    shape = shape_for(3)
    authors, parts = crowd(shape, [8, 8])
    for who, what in (
        (authors, {peer(0): parts[peer(0)]}),
        (authors[:1], parts),
        ([authors[0], authors[0]], parts),
    ):
        with pytest.raises(LocalProtocolError, match="expected the parts of"):
            added(who, what, shape)
    with pytest.raises(LocalProtocolError, match="expected the parts of 1 authors"):
        result_of(RUN, ROUND, authors, parts, shape, silent=[peer(1)])
    with pytest.raises(LocalProtocolError, match="a rounding of"):
        added(authors, parts, shape, coarse=2)

"""Planes of bits and gaps: each direction undoes the other, and no other bytes are read."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.bits import (
    BLOCK,
    INDEX_MAX,
    Numbers,
    gaps_of,
    indices_of,
    pack,
    pack_unary,
    plane_bytes,
    rice_parameter,
    unpack,
    unpack_unary,
)
from protocol.errors import LocalProtocolError, RemoteProtocolError

bounded = settings(max_examples=150)


def numbers(*items: int) -> Numbers:
    return np.array(items, np.uint16)


def plane(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), np.uint8)


def rice_bits_per_index(top_k: int, parameter: int) -> float:
    """Expected bits per index of uniformly drawn sets: a gap is at least g in comb(4096 - g, k) of
    the sets.
    """
    sets = comb(4096, top_k)
    at_least = (
        comb(4096 - gap, top_k) / sets for gap in range(1 << parameter, 4096, 1 << parameter)
    )
    return parameter + 1 + sum(at_least)


@pytest.mark.parametrize(
    ("top_k", "parameter"), [(4, 9), (8, 8), (32, 6), (64, 5), (1, 10), (4096, 0)]
)
def test_the_rice_parameter_of_known_top_k(top_k: int, parameter: int) -> None:
    assert rice_parameter(top_k) == parameter


@pytest.mark.parametrize("top_k", [*range(1, 70), 90, 100, 128, 256, 1000, 1500, 2048, 4096])
def test_no_rice_parameter_beats_the_fixed_one_by_more_than_three_hundredths_of_a_bit(
    top_k: int,
) -> None:
    best = min(rice_bits_per_index(top_k, parameter) for parameter in range(12))
    assert rice_bits_per_index(top_k, rice_parameter(top_k)) < best + 0.03


def test_the_rice_parameter_never_grows_with_top_k() -> None:
    parameters = [rice_parameter(top_k) for top_k in range(1, 4097)]
    assert parameters == sorted(parameters, reverse=True)


def test_a_plane_holds_the_lowest_bit_of_every_number_first() -> None:
    assert pack(numbers(3, 0, 2), 2).tobytes() == bytes([0b001, 0b101])


def test_a_unary_plane_is_zeros_and_a_one_from_the_lowest_bit() -> None:
    assert pack_unary(numbers(0, 1, 7)).tobytes() == bytes([0b101, 0b100])


@bounded
@given(st.data(), st.integers(0, 16))
def test_numbers_of_any_width_come_back_from_their_plane(data: st.DataObject, width: int) -> None:
    items = numbers(*data.draw(st.lists(st.integers(0, 2**width - 1), max_size=40)))
    packed = pack(items, width)
    assert packed.size == plane_bytes(items.size, width)
    np.testing.assert_array_equal(unpack(packed, items.size, width), items)


@bounded
@given(st.data(), st.integers(1, 16), st.integers(0, 20))
def test_a_plane_that_unpacks_is_the_plane_of_its_numbers(
    data: st.DataObject, width: int, count: int
) -> None:
    size = plane_bytes(count, width)
    found = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    try:
        items = unpack(found, count, width)
    except RemoteProtocolError:
        assert count % 8
        return
    assert pack(items, width).tobytes() == found.tobytes()


@bounded
@given(st.lists(st.integers(0, 4095), max_size=40))
def test_quotients_come_back_from_their_unary_plane(items: list[int]) -> None:
    quotients = numbers(*items)
    np.testing.assert_array_equal(unpack_unary(pack_unary(quotients), len(items), 4095), quotients)


@bounded
@given(st.binary(max_size=8), st.integers(0, 12), st.integers(0, 40))
def test_a_unary_plane_that_unpacks_is_the_plane_of_its_quotients(
    blob: bytes, count: int, most: int
) -> None:
    ones = int.from_bytes(blob, "little").bit_count()
    for expected in {count, ones}:
        try:
            quotients = unpack_unary(np.frombuffer(blob, np.uint8), expected, most)
        except RemoteProtocolError:
            continue
        assert quotients.size == expected
        assert quotients.max(initial=0) <= most
        assert pack_unary(quotients).tobytes() == blob


def test_planes_longer_than_a_block_come_back() -> None:
    generator = np.random.default_rng(1)
    quotients = generator.geometric(0.02, 3 * BLOCK + 5).astype(np.uint16) - 1
    np.testing.assert_array_equal(
        unpack_unary(pack_unary(quotients), quotients.size, 4095), quotients
    )
    np.testing.assert_array_equal(unpack(pack(quotients, 16), quotients.size, 16), quotients)


def test_a_gap_may_span_whole_blocks_of_a_unary_plane() -> None:
    blank = np.zeros(2 * BLOCK, np.uint8)
    with pytest.raises(RemoteProtocolError, match=f"at most 4095, got {16 * BLOCK}"):
        unpack_unary(np.append(blank, np.uint8(1)), 1, 4095)


@pytest.mark.parametrize("width", [-1, 17])
def test_a_width_outside_0_to_16_is_our_error(width: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"0 to 16 bits, got {width}"):
        pack(numbers(0), width)


def test_a_number_too_wide_for_its_plane_is_our_error() -> None:
    with pytest.raises(LocalProtocolError, match="at most 3 bits, got 8"):
        pack(numbers(7, 8), 3)


def test_a_plane_of_another_length_says_how_many_bytes() -> None:
    with pytest.raises(
        RemoteProtocolError, match="expected 4 bytes for 9 numbers of 2 bits, got 3"
    ):
        unpack(plane("000000"), 9, 2)


def test_a_padding_bit_in_any_row_of_a_plane_is_refused() -> None:
    for row in range(3):
        rows = pack(numbers(1, 2, 3), 3)
        rows[row] |= 0b1000
        with pytest.raises(RemoteProtocolError, match="zero padding after 3 bits, got 0x1"):
            unpack(rows, 3, 3)


@pytest.mark.parametrize(
    ("text", "count", "reason"),
    [
        ("05", 9, "9 ones in a unary plane, got only 8 bits"),
        ("05", 3, "3 ones in a unary plane, got 2"),
        ("05", 1, "1 ones in a unary plane, got 2"),
        ("0500", 2, "a unary plane of 1 bytes, got 2"),
        ("00", 0, "a unary plane of 0 bytes, got 1"),
        ("0501", 3, "quotients of at most 4, got 5"),
    ],
)
def test_a_unary_plane_that_is_not_canonical_says_why(text: str, count: int, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        unpack_unary(plane(text), count, 4)


@bounded
@given(st.lists(st.sets(st.integers(0, 4095), max_size=12), min_size=1, max_size=5))
def test_indices_of_any_sets_come_back_from_their_gaps(sets: list[set[int]]) -> None:
    counts = numbers(*map(len, sets))
    indices = numbers(*(index for chosen in sets for index in sorted(chosen)))
    gaps = gaps_of(indices, counts)
    assert int(gaps.sum()) + indices.size == sum(max(chosen) + 1 for chosen in sets if chosen)
    np.testing.assert_array_equal(indices_of(gaps, counts), indices)


def test_gaps_of_two_chunks_start_anew() -> None:
    gaps = gaps_of(numbers(3, 1000, 0, 1, 4095), numbers(2, 0, 3))
    np.testing.assert_array_equal(gaps, [3, 996, 0, 0, 4093])


@pytest.mark.parametrize("pair", [(5, 5), (6, 5), (4095, 0)])
def test_an_index_that_does_not_ascend_is_our_error(pair: tuple[int, int]) -> None:
    with pytest.raises(
        LocalProtocolError, match=f"ascend within a chunk, got {pair[0]} then {pair[1]}"
    ):
        gaps_of(numbers(9, *pair), numbers(1, 2))


def test_an_index_beyond_the_chunk_is_our_error() -> None:
    with pytest.raises(LocalProtocolError, match="indices up to 4095, got 4096"):
        gaps_of(numbers(4096), numbers(1))


@bounded
@given(st.lists(st.integers(0, 4095), min_size=1, max_size=40))
def test_gaps_that_run_past_the_chunk_are_refused_however_far(items: list[int]) -> None:
    last = sum(items) + len(items) - 1
    if last <= INDEX_MAX:
        assert indices_of(numbers(*items), numbers(len(items)))[-1] == last
    else:
        with pytest.raises(RemoteProtocolError, match="expected indices up to 4095"):
            indices_of(numbers(*items), numbers(len(items)))


def test_gaps_whose_sum_wraps_to_a_legal_index_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="expected indices up to 4095"):
        indices_of(numbers(*[4095] * 16, 7), numbers(17))

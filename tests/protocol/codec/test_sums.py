"""A round's sums in whole steps: the rule by which they are rounded, and their bytes."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.bits import rice_parameter, rice_parameters
from protocol.codec.sums import (
    LEVEL_MAX,
    LEVELS_MAX,
    Levels,
    decode_sums,
    encode_sums,
    rounded,
    sums_of,
)
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.limits import CHUNK_ENTRIES, VOTE_SUM_MAX
from tests.support.votes import votes

Sums = npt.NDArray[np.int32]

FIELDS = ("exponents", "steps", "counts", "indices", "values")


def units(chunks: int) -> npt.NDArray[np.uint8]:
    return np.arange(1, chunks + 1, dtype=np.uint8)


def same(one: Levels, other: Levels) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


def chunk(**places: int) -> Sums:
    """One chunk's sums; the names of `places` begin with a letter."""
    sums = np.zeros((1, CHUNK_ENTRIES), np.int32)
    for name, value in places.items():
        sums[0, int(name[1:])] = value
    return sums


@pytest.mark.parametrize("coarse", [1, 4])
def test_the_step_is_the_least_that_the_root_mean_square_allows(coarse: int) -> None:
    sums = votes(3)
    found = rounded(sums, units(3), coarse)
    for row, step in zip(sums.astype(np.int64), found.steps.tolist(), strict=True):
        mean_square = (row**2).sum() / np.count_nonzero(row)
        assert 2 ** (2 * step - 1) <= coarse * mean_square < 2 ** (2 * step + 1)


def test_halves_go_away_from_zero_and_both_signs_alike() -> None:
    sums = votes(1)
    found, other = rounded(sums, units(1), 1), rounded(-sums, units(1), 1)
    assert (sums_of(found) == -sums_of(other)).all()
    exact = np.abs(sums) / 2.0 ** found.steps[:, None]
    assert (np.abs(sums_of(found)) >> found.steps[:, None] == np.floor(exact + 0.5)).all()


def test_chunks_without_a_vote_or_with_ones_alone_stay_as_they_are() -> None:
    sums = np.concatenate([chunk(), chunk(a0=1, b7=-1, c4095=1)])
    found = rounded(sums, units(2), 1)
    assert (sums_of(found) == sums).all()
    assert found.exponents.tolist() == [0, 2]


def test_the_largest_levels_that_rounding_makes_are_those_that_are_allowed() -> None:
    spread = np.full((1, CHUNK_ENTRIES), VOTE_SUM_MAX // 128, np.int32)
    lone = np.ones((1, CHUNK_ENTRIES), np.int32)
    lone[0, 0] = 5792  # just below 64 steps of a root mean square of 90.5
    for sums in (spread, lone, np.full((1, CHUNK_ENTRIES), VOTE_SUM_MAX, np.int32)):
        for step in range(9):
            found = rounded(sums >> step, units(1), 1)
            assert np.abs(found.values.astype(int)).max() <= LEVEL_MAX
            assert np.abs(found.values.astype(int)).sum() <= LEVELS_MAX
            assert same(decode_sums(encode_sums(found), 1), found)


@pytest.mark.parametrize("coarse", [0, 2])
def test_another_rounding_is_refused(coarse: int) -> None:
    with pytest.raises(LocalProtocolError, match=r"a rounding of \(1, 4\)"):
        rounded(votes(1), units(1), coarse)


def test_rice_parameters_are_those_of_whole_chunks() -> None:
    counts = np.arange(1, CHUNK_ENTRIES + 1)
    expected = [rice_parameter(int(count)) for count in counts]
    assert rice_parameters(counts, np.full_like(counts, CHUNK_ENTRIES)).tolist() == expected


@settings(deadline=None, max_examples=60)
@given(
    density=st.sampled_from([0.0, 0.001, 0.1, 0.6, 0.97, 1.0]),
    size=st.sampled_from([1, 3, 1000, 500_000]),
    chunks=st.integers(1, 5),
    coarse=st.sampled_from([1, 4]),
    seed=st.integers(0, 1000),
)
def test_what_is_written_is_read_and_nothing_else_writes_it(
    density: float, size: int, chunks: int, coarse: int, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    sums = chance.integers(-size, size, (chunks, CHUNK_ENTRIES), endpoint=True)
    sums *= chance.random(sums.shape) < density
    found = rounded(sums.astype(np.int32), units(chunks), coarse)
    container = encode_sums(found)
    assert same(decode_sums(container, chunks), found)
    place, bit = int(chance.integers(len(container))), 1 << int(chance.integers(8))
    damaged = bytearray(container)
    damaged[place] ^= bit
    try:
        read = decode_sums(damaged, chunks)
    except RemoteProtocolError:
        return
    assert not same(read, found)
    assert encode_sums(read) == damaged


def test_cut_and_longer_bytes_and_other_numbers_of_chunks_are_refused() -> None:
    container = encode_sums(rounded(votes(2), units(2), 4))
    for end in (0, 3, 5, 20, len(container) - 1):
        with pytest.raises(RemoteProtocolError):
            decode_sums(container[:end], 2)
    with pytest.raises(RemoteProtocolError, match="no more bytes"):
        decode_sums(container + b"\0", 2)
    with pytest.raises(RemoteProtocolError, match="a head of 3 chunks, got 2"):
        decode_sums(container, 3)


def test_levels_that_no_rounding_makes_are_not_written() -> None:
    found = rounded(chunk(a3=100, b9=-100), units(1), 1)
    wrong = {
        "without levels": Levels(
            units(1), found.steps, found.counts * 0, found.indices[:0], found.values[:0]
        ),
        "levels of 1 to": replace(found, values=found.values * 0),
        "units of at most 63": replace(found, exponents=found.exponents * 0 + 64),
        "steps of at most": replace(found, steps=found.steps * 0 + 30),
        "sums below 2": replace(found, steps=found.steps * 0 + 24, values=found.values * 3),
        "2 indices and values": replace(found, values=found.values[:1]),
    }
    for sentence, levels in wrong.items():
        with pytest.raises(LocalProtocolError, match=sentence):
            encode_sums(levels)
    full = Levels(
        units(1),
        np.zeros(1, np.uint8),
        np.full(1, CHUNK_ENTRIES, np.uint16),
        np.arange(CHUNK_ENTRIES, dtype=np.uint16),
        np.full(CHUNK_ENTRIES, 3, np.int8),
    )
    with pytest.raises(LocalProtocolError, match="in a chunk's sum"):
        encode_sums(full)

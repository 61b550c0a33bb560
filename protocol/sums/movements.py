"""How the movements of a round's authors count: their weights, and the size of each sign.

What a node moved comes as signs q_i of scales s_i = m_i / 4 * 2^e_i in each chunk, m_i from 4 to 7
(protocol/codec/scales.py); with values of two bits a sign has one of two scales of its chunk.

    w_i   samples trained; where they exceed 512 together, scaled down to that, each at least 1
    W     = sum_i w_i, of all authors that count, those with nothing in a chunk included
    E     the largest e_i of a chunk
    S     = sum_i w_i * (m_i << r - (E - e_i)) * q_i         e_i < E - r: nothing

r is the largest number up to 12 with 7 * W * 2^r < 2^24, so that float32 counts every sum of S
exactly, in any order.

No author moves a chunk further than h steps could (`code_max`): a larger scale is cut to that. Nor
much further than the others of the round: what is above 1.5 times their median is cut to that
(`beside_median`), so that who boasts adds little more than others do. Of two scales each is beside
its own median; where no value has the larger one, it counts as large as the other.

Every chunk stands alone: what counts in it follows from the scales of all authors there, and from
their samples. So whoever adds a range of chunks needs to see no other.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.codec.bits import bounds_of
from protocol.codec.payload import TWO_SCALES, Coefficients
from protocol.codec.scales import (
    CODE_MAX,
    EXPONENT_MIN,
    Codes,
    exponents,
    mantissas,
    scales_of,
)
from protocol.errors import LocalProtocolError
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE, VOTE_SUM_MAX, WEIGHTS_MAX
from protocol.sections.algorithm import AlgorithmSpec

RANGE_BITS: Final = 12
"""r at most: scales below 2^-12 of a chunk's largest are less than a step can tell from nothing."""

MANTISSA_MAX: Final = 7

ABOVE_MEDIAN: Final = 1.5
"""Times the scale of a chunk's median author that another's counts at most. Honest authors of equal
steps are within 1.25 of it in 99 of 100 chunks (docs/results/attack.md)."""

_MEDIAN_CHUNKS: Final = 1024
"""Chunks whose medians are found at a time."""

_SCALES: Final = scales_of(np.arange(CODE_MAX + 1, dtype=np.uint8)).astype(np.float64)
"""Those of all codes, ascending."""


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """The movement of one author of a commit."""

    samples: int
    """Samples that the commit counts for the author, at least 1."""

    code_max: int
    """Code of the largest scale that counts: `code_max`; below 0 nothing does."""

    coefficients: Coefficients
    """Signs with scales, or values of two scales."""


class Counted:
    """The movements of one commit as they count in these chunks, strip by strip."""

    def __init__(self, movements: Sequence[Movement], chunks: int) -> None:
        """`LocalProtocolError` if they do not fit the chunks, or each other."""
        self.authors = [movement for movement in movements if movement.code_max >= 0]
        """Those that count."""
        for author in self.authors:
            _require_fit(author, chunks, _columns(self.authors))
        self.weights = scaled_weights([author.samples for author in self.authors])
        """w_i of each."""
        self.weight_sum = max(1, sum(self.weights))
        """W"""
        self.range_bits = range_bits(self.weight_sum)
        """r"""
        self._starts = [bounds_of(author.coefficients.counts) for author in self.authors]
        self._codes = _counted(self.authors, chunks)

    def sizes(self, first: int, stop: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """(w * (m << r - (E - e)) of each author and scale, [R, n, 1 or 2], and E, [n]) in the n
        chunks from `first` up to `stop`.
        """
        codes = self._codes[:, first:stop]
        powers = exponents(codes)
        largest = powers.max(axis=(0, 2), initial=EXPONENT_MIN)
        distances = largest[:, None] - powers
        found = np.where(distances <= self.range_bits, mantissas(codes), np.int32(0))
        found <<= np.clip(self.range_bits - distances, 0, RANGE_BITS)
        found *= np.array(self.weights, np.int32)[:, None, None]
        return found, largest

    def within(self, number: int, first: int, stop: int) -> Coefficients:
        """What an author, by its number, says in these chunks, as views."""
        sent, starts = self.authors[number].coefficients, self._starts[number]
        here = slice(starts[first], starts[stop])
        return Coefficients(sent.counts[first:stop], sent.indices[here], sent.values[here])


def changes_of(
    values: npt.NDArray[np.int16], counts: npt.NDArray[np.uint16], sizes: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """What values add to S, int32 [m]: signs times their sizes, [n, 1 or 2], in n chunks that have
    `counts` of the values.
    """
    lower, *larger = (np.repeat(column, counts) for column in sizes.T)
    said: npt.NDArray[np.int32] = np.where(values & 1, lower, larger[0]) if larger else lower
    signs: npt.NDArray[np.int32] = np.sign(values).astype(np.int32)
    return said * signs


def code_max(learning_rate: float, steps: int, top_k: int) -> int:
    """Code of the largest scale of an author that made this many steps; -1 if none is small enough.

    A step moves no entry further than the learning rate, and so a chunk no further than 64 times
    that, in the norm that the transform keeps. k signs of scale s move it by s * sqrt(k). So the
    bound is s^2 * k <= (64 * steps * learning_rate)^2, compared in fractions.
    """
    reach = Fraction(learning_rate) * CHUNK_SIDE * steps
    if reach <= 0:
        return -1
    most = reach * reach / top_k
    return bisect_right(range(CODE_MAX + 1), most, key=_square) - 1


def code_max_of(samples: int, learning_rate: float, algorithm: AlgorithmSpec) -> int:
    """`code_max` of an author of this many samples."""
    steps = -(-samples // algorithm.local_samples)
    return code_max(learning_rate, steps, algorithm.top_k)


def counted_codes(movements: Sequence[Movement], chunks: int) -> Codes:
    """[R, chunks] or, of two scales, [R, chunks, 2]: the scales of authors as the step counts them,
    0 of empty chunks and of authors that do not count. Places and signs are not looked at.
    """
    found = np.zeros((len(movements), chunks, _columns(movements)), np.uint8)
    counts = [movement.code_max >= 0 for movement in movements]
    found[counts] = _counted([each for each in movements if each.code_max >= 0], chunks)
    return found if found.shape[2] > 1 else found[:, :, 0]


def _counted(authors: Sequence[Movement], chunks: int) -> Codes:
    """[R, chunks, 1 or 2]: the same, of authors that count."""
    columns = _columns(authors)
    found = np.zeros((len(authors), chunks, columns), np.uint8)
    weights = np.array(scaled_weights([each.samples for each in authors]), np.int64)
    for first in range(0, chunks if authors else 0, _MEDIAN_CHUNKS):
        part = slice(first, first + _MEDIAN_CHUNKS)
        codes = np.stack([_cut_codes(each, part, columns) for each in authors])
        there = np.stack([each.coefficients.counts[part] for each in authors]) > 0
        beside = np.repeat(weights[:, None] * there, columns, axis=1)
        found[:, part] = beside_median(codes.reshape(beside.shape), beside).reshape(codes.shape)
    return found


def beside_median(codes: Codes, weights: npt.NDArray[np.int64]) -> Codes:
    """Scales of authors, [R, n], none of them far above the median of its chunk.

    The median author is the one in the middle of the weights, [R, n], which are 0 where an author
    has nothing to say. A scale counts for at most `ABOVE_MEDIAN` times its scale, and for as many
    times more as its author's weight is larger: more steps move further. Every number is a float64
    that IEEE 754 says, whatever the order of the authors.
    """
    order = np.lexsort((weights, codes), axis=0)
    sums = np.take_along_axis(weights, order, 0).cumsum(axis=0)
    middle = (2 * sums > sums[-1]).argmax(axis=0)
    median = np.take_along_axis(order, middle[None], 0)  # [1, n]
    scales = _SCALES[np.take_along_axis(codes, median, 0)]
    heavier = weights / np.maximum(1, np.take_along_axis(weights, median, 0))
    most = ABOVE_MEDIAN * scales * np.maximum(1.0, heavier)
    bounds = np.searchsorted(_SCALES, most, side="right") - 1
    return np.minimum(codes, bounds).astype(np.uint8)


def scaled_weights(samples: Sequence[int]) -> list[int]:
    """w_i of authors by their samples, in the same order: the samples themselves, or their shares
    of WEIGHTS_MAX, rounded down, and at least 1.
    """
    total = sum(samples)
    if total <= WEIGHTS_MAX:
        return list(samples)
    return [max(1, count * WEIGHTS_MAX // total) for count in samples]


def range_bits(weight_sum: int) -> int:
    """The bits r for a sum of weights: those by which the scales of a chunk may differ."""
    return min(RANGE_BITS, (VOTE_SUM_MAX // (MANTISSA_MAX * weight_sum)).bit_length() - 1)


def _columns(movements: Sequence[Movement]) -> int:
    """Scales of a chunk: 1 or 2."""
    scales = movements[0].coefficients.scales if movements else None
    return 1 if scales is None or scales.ndim == 1 else TWO_SCALES


def _cut_codes(movement: Movement, part: slice, columns: int) -> Codes:
    """[n, columns]: the codes of an author, none above its own bound; the larger scale is the other
    one where no value has it.
    """
    assert movement.coefficients.scales is not None, "movements have scales"
    codes = movement.coefficients.scales[part].reshape(-1, columns)
    return np.minimum(np.maximum(codes, codes[:, :1]), movement.code_max).astype(np.uint8)


def _square(code: int) -> Fraction:
    """The square of a scale."""
    return Fraction(float(scales_of(np.array([code], np.uint8))[0])) ** 2


def _require_fit(movement: Movement, chunks: int, columns: int) -> None:
    """`LocalProtocolError` for a movement that does not fit the chunks, or has other scales."""
    sent = movement.coefficients
    if sent.scales is None:
        raise LocalProtocolError("expected movements with scales, got none")
    total = int(sent.counts.sum(dtype=np.int64))
    scales = (chunks,) if columns == 1 else (chunks, columns)
    found = (sent.counts.shape, sent.scales.shape, sent.indices.shape, sent.values.shape)
    if found != ((chunks,), scales, (total,), (total,)):
        raise LocalProtocolError(
            f"expected {chunks} counts and scales, {total} indices and values, got {found}"
        )
    if movement.samples < 1:
        raise LocalProtocolError(f"expected at least 1 sample, got {movement.samples}")
    sizes = np.abs(sent.values)
    is_sized = 1 <= sizes.min(initial=1) <= sizes.max(initial=1) <= columns
    if sent.indices.max(initial=0) >= CHUNK_ENTRIES or not is_sized:
        raise LocalProtocolError(f"expected signs at places below {CHUNK_ENTRIES}, got others")

"""A round's exact sums, rounded to a coarse step, and what they weigh as bytes.

    n, V   count of non-zero S of the chunk; sum of S^2
    t      least whole t >= 0 with coarse * V < n * 2^(2t+1)
    l      sign(S) * ((|S| + 2^(t-1)) >> t)                    halves away from zero

With `coarse` 1 a step is about the root mean square of what is not zero, with 4 about twice that:
a vote of a single author becomes +-1, votes that agree become more, and what is small goes.

A chunk is coded as its exponent and t, a sign for each l that is not zero, and its sizes in layers:
which of the 4096 are above 0, which of those above 1, of those above 2, until none is. A layer is
its count, and Rice's code of the gaps between its ones, or between its zeros where these are fewer.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.limits import CHUNK_ENTRIES

Whole = npt.NDArray[np.int64]

COUNT_BITS = 13
"""Of a count of 0 to 4096."""

EXPONENT_BITS, STEP_BITS = 8, 5
"""Of the unit in which a chunk counts, and of t."""


class Rounded(NamedTuple):
    """Sums of chunks, rounded."""

    levels: Whole
    """l, [chunks, 4096]."""

    steps: Whole
    """t, [chunks]."""

    @property
    def sums(self) -> Whole:
        """What takes the place of the exact sums: l * 2^t, [chunks, 4096]."""
        return self.levels << self.steps[:, None]


def rounded(sums: Whole, coarse: int) -> Rounded:
    """Round exact sums, [chunks, 4096] and below 2^24 each."""
    squares = (sums**2).sum(axis=1)
    counts = np.count_nonzero(sums, axis=1)
    steps = np.zeros(len(sums), np.int64)
    while (short := coarse * squares >= counts << (2 * steps + 1)).any():
        short &= counts > 0
        if not short.any():
            break
        steps += short
    halves = np.where(steps > 0, 1 << np.maximum(steps - 1, 0), 0)[:, None]
    return Rounded(np.sign(sums) * ((np.abs(sums) + halves) >> steps[:, None]), steps)


def coded_bits(levels: Whole) -> Whole:
    """Bits of each chunk in the code of this module."""
    return np.array([_chunk_bits(np.abs(row)) for row in levels], np.int64)


def _chunk_bits(sizes: Whole) -> int:
    bits, layer = 0, sizes > 0
    if layer.any():
        bits += EXPONENT_BITS + STEP_BITS + int(layer.sum())
    left, size = sizes, 0
    while layer.any():
        bits += COUNT_BITS + _rice_bits(layer)
        left, size = left[layer], size + 1
        layer = left > size
    return bits + COUNT_BITS  # of the layer that has none


def _rice_bits(layer: npt.NDArray[np.bool_]) -> int:
    (places,) = np.nonzero(layer if 2 * layer.sum() <= len(layer) else ~layer)
    gaps = np.diff(places, prepend=-1) - 1
    return min(int(((gaps >> k) + 1 + k).sum()) for k in range(12))


def entropy_bits(levels: Whole) -> float:
    """Bits of all chunks, where each place is drawn alone with its chunk's own frequencies."""
    bits = 0.0
    for row in levels:
        _, counts = np.unique(row, return_counts=True)
        bits += float((counts * np.log2(CHUNK_ENTRIES / counts)).sum())
    return bits

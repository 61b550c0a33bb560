"""The kernel that takes the largest coefficients out of what is unsaid."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from node.exact.kernels.compile import (
    CHUNKS,
    ENTRIES,
    FLAGS,
    MAGNITUDE,
    MATRIX,
    NUMBER,
    PLACES,
    SIDE,
    WORD,
    inner,
    kernel,
)

PEAKS = 256
_F4, _I4 = np.float32, np.int32


def _count_trailing_zeros(_: Any, bits: types.Integer) -> Any:
    """Place of the lowest bit among 64 bits that are not all zero."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


_trailing_zeros: Any = intrinsic(_count_trailing_zeros)


@inner
def _kth_largest(bits, count, rank):
    """The `rank`-th largest of the first `count` whole numbers, none of them negative."""
    found = _I4(0)
    for bit in range(30, -1, -1):
        tried = found | _I4(1 << bit)
        reached = 0
        for place in range(count):
            reached += bits[place] >= tried
        if reached >= rank:
            found = tried
    return found


@inner
def _mark_largest(bits, marks, spare, top_k):
    """Set the bits of the `top_k` largest magnitudes, in `marks` [64], one word of columns per row.

    Any of equals. As in `top_k.largest`: the k-th largest of 256 maxima is at most the k-th largest
    entry, and few entries more reach it. `bits` is [16, 256], `spare` int32 [3, 4096].
    """
    peaks, reached, places = spare[0], spare[1], spare[2]
    threshold = _I4(0)
    for group in range(PEAKS):
        peaks[group] = 0
    for line in range(ENTRIES // PEAKS):
        for group in range(PEAKS):
            peaks[group] = max(peaks[group], bits[line, group] & MAGNITUDE)
    if top_k < PEAKS:
        threshold = _kth_largest(peaks, PEAKS, top_k)
    count = 0
    for group in range(PEAKS):
        if peaks[group] >= threshold:
            for line in range(ENTRIES // PEAKS):
                reached[count] = bits[line, group] & MAGNITUDE
                places[count] = line * PEAKS + group
                count += reached[count] >= threshold
    least = _kth_largest(reached, count, top_k)
    equals = top_k
    for candidate in range(count):
        equals -= reached[candidate] > least
    for row in range(SIDE):
        marks[row] = 0
    for candidate in range(count):
        if reached[candidate] > least or (reached[candidate] == least and equals > 0):
            equals -= reached[candidate] == least
            column, row = divmod(places[candidate], SIDE)
            marks[row] |= np.uint64(1) << np.uint64(column)


@kernel(CHUNKS, (WORD, WORD), (NUMBER, FLAGS), (PLACES, MATRIX))
def extract(unsaid, place, leaving, out):
    """`Backend.extract`: alpha of the k largest leaves chunks that are active."""
    first, stop = place
    alpha, active = leaving
    places, previous = out
    spare = np.empty((3, ENTRIES), _I4)
    marks = np.empty(SIDE, np.uint64)
    for number in range(first, stop):
        chunk = unsaid[number]
        _mark_largest(
            chunk.view(_I4).reshape(ENTRIES // PEAKS, PEAKS), marks, spare, places.shape[1]
        )
        share = alpha if active[number] else _F4(0)
        slot = 0
        for row in range(SIDE):
            left = marks[row]
            while left:
                column = np.int64(_trailing_zeros(left))
                left &= left - np.uint64(1)
                kept = chunk[column, row]
                places[number, slot] = row * SIDE + column
                previous[number, slot] = kept
                chunk[column, row] = kept - kept * share
                slot += 1

"""The kernels with a transform: coefficients from gradients, and parameters from votes."""

import numpy as np

from node.exact.kernels.compile import (
    CHUNKS,
    ENTRIES,
    FLAGS,
    MAGNITUDE,
    MATRIX,
    NUMBER,
    SIDE,
    TOOLS,
    VOTES,
    WORD,
    inner,
    kernel,
)
from node.exact.kernels.constants import OPERAND_MAX
from node.exact.kernels.matmul import fold, matmul_dct, matmul_inverse_dct, matmul_tn

SCRATCH = 3
"""Chunks that a kernel needs to work in, besides its arguments."""

_F4, _I4 = np.float32, np.int32

_ABOVE_OPERAND = int(_F4(OPERAND_MAX + 0.5).view(_I4))
"""Bits of the least magnitude that rounds above the bound; an octave is added for every halving."""
_OCTAVE = 1 << 23


# ---- steps within a chunk


@inner
def _forward(given, chunk, spare, matrix):
    """(D X D^T)^T of X, `given`, which may be `chunk` itself.

    `matrix` is `cpu_kernels._forward_matrix`, `spare` two more chunks.
    """
    fold(given, spare[0])
    matmul_dct(spare[0], matrix, spare[1])  # X^T D^T
    fold(spare[1], spare[0])
    for first, step in ((0, 4), (2, 4), (1, 2)):
        matmul_tn(matrix[first::step, : SIDE // step], spare[0, first::step], chunk[first::step])


@inner
def _shift(chunk):
    """`dct.shift_` of one chunk: halve it, to nearest-even, until |.| is below OPERAND_MAX."""
    bits, peak = chunk.reshape(ENTRIES).view(_I4), _I4(0)
    for place in range(ENTRIES):
        magnitude = _I4(bits[place] & MAGNITUDE)  # ordered as the floats are
        peak = magnitude if magnitude > peak else peak
    power, bound = _F4(1), _ABOVE_OPERAND
    while peak >= bound:
        power *= _F4(0.5)
        bound += _OCTAVE
    if power < _F4(1):
        for i in range(SIDE):
            for j in range(SIDE):
                chunk[i, j] = np.rint(chunk[i, j] * power)


@inner
def _mix(out, share, other, other_share):
    """Out <- out * share + other * other_share."""
    flat, flat_other = (
        out.reshape(ENTRIES),
        other.reshape(ENTRIES),
    )  # one loop: numba asks for each if they overlap
    for place in range(ENTRIES):
        flat[place] = flat[place] * share + flat_other[place] * other_share


@inner
def _to_signs(chunk, spare, matrix):
    """`dct.inverse_signs_` of one chunk, not transposed; `matrix` is T."""
    _shift(chunk)
    matmul_inverse_dct(chunk, matrix, spare)  # S^T T
    _shift(spare)
    matmul_inverse_dct(spare, matrix, chunk)
    for i in range(SIDE):
        for j in range(SIDE):
            chunk[i, j] = min(max(chunk[i, j], _F4(-1)), _F4(1))  # the sign of a whole number


@inner
def _region(matrix, number, width):
    """View of one chunk of a matrix.

    Counted from 0 like this, numba knows that no index is negative, and takes many entries at a
    time.
    """
    row, column = divmod(number, width)
    return matrix[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]


@inner
def _add_votes(chunk, number, votes):
    """Fill S of one chunk; returns whether there are any votes at all."""
    bounds, indices, values, weights = votes
    chunk[:] = 0
    found = False
    for author in range(bounds.shape[0]):
        weight = weights[author]
        for place in range(bounds[author, number], bounds[author, number + 1]):
            index = np.int64(indices[place])
            chunk[index >> 6, index & SIDE - 1] += weight * _F4(values[place])
            found = True
    return found


@inner
def _change(matrix, place, chunk, rates):
    """P <- P * decay - rate * U, each rounded, of one chunk.

    Row by row, since numba knows that a row has no gaps.
    """
    number, width = place
    rate, decay = rates
    row, column = divmod(number, width)
    for i in range(min(SIDE, matrix.shape[0] - row * SIDE)):
        line, update = matrix[row * SIDE + i, column * SIDE : (column + 1) * SIDE], chunk[i]
        for j in range(line.size):
            change = update[j] * rate
            line[j] = line[j] * decay - change


# ---- what cpu_kernels.py calls, for the chunks `first` to `stop` of a matrix or of `unsaid`


@kernel(MATRIX, (WORD, WORD, WORD), CHUNKS, (NUMBER, FLAGS), TOOLS)
def accumulate(gradient, place, unsaid, decaying, tools):
    """`Backend.accumulate` for chunks of one matrix, those that `unsaid` and `active` hold."""
    width, first, stop = place
    decay, active = decaying
    matrix, scratch = tools
    chunk = scratch[0]
    for number in range(first, stop):
        if active[number - first]:
            region = _region(gradient, number, width)
            if region.size == ENTRIES:
                _forward(region, chunk, scratch[1:], matrix)
            else:
                chunk[:] = 0
                for i in range(region.shape[0]):
                    for j in range(region.shape[1]):
                        chunk[i, j] = region[i, j]
                _forward(chunk, chunk, scratch[1:], matrix)
            _mix(unsaid[number - first], decay, chunk, _F4(1))


@kernel(MATRIX, (WORD, WORD, WORD, WORD), VOTES, (NUMBER, NUMBER), TOOLS)
def update(parameter, place, votes, rates, tools):
    """`Backend.update` for one matrix, whose chunk 0 has the number `offset` in `votes`."""
    width, first, stop, offset = place
    matrix, scratch = tools
    chunk = scratch[0]
    for number in range(first, stop):
        if _add_votes(chunk, offset + number, votes):  # else zeros, which are their own update
            _to_signs(chunk, scratch[1], matrix)
        _change(parameter, (number, width), chunk, rates)

"""The kernels with a transform: momentum from gradients, parameters from votes, and a guess."""

import numpy as np

from node.demo.kernels.compile import (
    BYTES,
    CHUNKS,
    ENTRIES,
    FLAG,
    FLAGS,
    MAGNITUDE,
    MATRIX,
    NUMBER,
    PLACES,
    SIDE,
    TOOLS,
    VOTES,
    WORD,
    inner,
    kernel,
)
from node.demo.kernels.constants import (
    ENTRY_MAX,
    GUESS_MAX,
    GUESS_ONE,
    ITERATIONS,
    ONE_BITS,
    OPERAND_MAX,
    ORTHOGONAL_GUESS,
    SENT_WEIGHT,
    SIZE_LEAST,
    STAYED_MAX,
    STAYED_WEIGHT,
    STEP_MAX,
    UPDATE_SCALE,
    A,
    B,
    C,
)
from node.demo.kernels.matmul import fold, matmul_dct, matmul_inverse_dct, matmul_nn, matmul_tn

SCRATCH = 3
"""Chunks that a kernel needs to work in, besides its arguments."""

_F4, _I4 = np.float32, np.int32

# Numbers of the type that the kernels calculate in.
_ENTRY_MAX, _STEP_MAX, _UPDATE_SCALE = map(_F4, (ENTRY_MAX, STEP_MAX, UPDATE_SCALE))
_A, _B, _C = map(_F4, (A, B, C))
_SENT_WEIGHT, _STAYED_WEIGHT = _F4(SENT_WEIGHT), _F4(STAYED_WEIGHT)
_SIZE_LEAST, _STAYED_MAX = _F4(SIZE_LEAST), _F4(STAYED_MAX)
_ORTHOGONAL_GUESS, _GUESS_ONE, _GUESS_MAX = map(_F4, (ORTHOGONAL_GUESS, GUESS_ONE, GUESS_MAX))
_ONE, _PER_ONE, _PER_HALF = map(_F4, (2.0**ONE_BITS, 2.0**-ONE_BITS, 2.0 ** (1 - ONE_BITS)))

_ABOVE_OPERAND, _ABOVE_ENTRY = (
    int(_F4(bound + 0.5).view(_I4)) for bound in (OPERAND_MAX, ENTRY_MAX)
)
"""Bits of the least magnitude that rounds above a bound; an octave is added for every halving."""
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
def _inverse(chunk, spare, matrix, whole):
    """D^T M D in place of M, as it is, not transposed; `matrix` is D.

    With `whole` numbers and T in place of D it is `dct.integer_inverse`. Returns 2^t, or else 1.
    """
    matmul_inverse_dct(chunk, matrix, spare)  # M^T D
    power = _shift(spare, _ABOVE_OPERAND) if whole else _F4(1)
    matmul_inverse_dct(spare, matrix, chunk)
    return power


@inner
def _size(chunk):
    """Root mean square of a chunk."""
    squares = np.zeros(SIDE, _F4)
    for i in range(SIDE):
        for j in range(SIDE):
            squares[j] += chunk[i, j] * chunk[i, j]
    return np.sqrt(squares.sum() / _F4(ENTRIES))


@inner
def _share(size):
    """Votes per unit of the coefficients that stayed in a chunk of this root mean square: finite,
    and 0 for NaN.
    """
    if size >= _SIZE_LEAST:
        return _STAYED_WEIGHT / size
    return _STAYED_WEIGHT / _SIZE_LEAST if size >= _F4(0) else _F4(0)


@inner
def _shift(chunk, bound):
    """`dct.shift_` of one chunk: halve it, to nearest-even, until |.| is below `bound`.

    `bound` is given as the bits of a float. Returns 2^t for t halvings.
    """
    bits, peak = chunk.reshape(ENTRIES).view(_I4), _I4(0)
    for place in range(ENTRIES):
        magnitude = _I4(bits[place] & MAGNITUDE)  # ordered as the floats are
        peak = magnitude if magnitude > peak else peak
    power = _F4(1)
    while peak >= bound:
        power *= _F4(2)
        bound += _OCTAVE
    if power > _F4(1):
        _round(chunk, _F4(1) / power, _F4(np.inf))
    return power


@inner
def _round(chunk, scale, bound):
    """Scale by a power of two, round to nearest-even, bound; in place."""
    for i in range(SIDE):
        for j in range(SIDE):
            value = np.rint(chunk[i, j] * scale)
            value = bound if value > bound else value
            chunk[i, j] = -bound if value < -bound else value


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
def _orthogonalise(found, square, fourth):
    """`orthogonalise.orthogonalised` of one chunk, not transposed, in place of `found`.

    `square` and `fourth` are chunks to work in.
    """
    _shift(found, _ABOVE_ENTRY)
    squares = np.int64(0)
    for i in range(SIDE):
        for j in range(SIDE):
            entry = np.int64(found[i, j])
            squares += entry * entry
    scale, limit = _ONE, np.int64(1)
    while squares > limit:
        scale *= _F4(0.5)
        limit *= 4
    _round(found, scale, _ENTRY_MAX)
    for _ in range(ITERATIONS):
        matmul_tn(found, found, square)
        _round(square, _PER_ONE, _ENTRY_MAX)
        matmul_tn(square, square, fourth)
        _round(fourth, _PER_ONE, _ENTRY_MAX)
        _mix(square, _B, fourth, _C)
        _round(square, _PER_HALF, _STEP_MAX)
        matmul_nn(found, square, fourth)
        _mix(found, _A, fourth, _F4(1))
        _round(found, _PER_HALF, _ENTRY_MAX)


@inner
def _to_orthogonal(chunk, spare, matrix):
    """`orthogonalise.inverse_orthogonal_` of one chunk."""
    _orthogonalise(chunk, spare[0], spare[1])
    scale = _inverse(chunk, spare[0], matrix, True) * _UPDATE_SCALE
    for i in range(SIDE):
        for j in range(SIDE):
            chunk[i, j] *= scale  # never -0, for sums that begin with +0 do not end there


@inner
def _to_signs(chunk, spare, matrix):
    """`dct.inverse_signs_` of one chunk."""
    _shift(chunk, _ABOVE_OPERAND)
    _inverse(chunk, spare, matrix, True)
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


# ---- what cpu_kernels.py calls, for the chunks `first` to `stop` of a matrix or of a momentum


@kernel(MATRIX, (WORD, WORD, WORD), CHUNKS, (NUMBER, FLAGS), TOOLS)
def accumulate(gradient, place, momentum, decaying, tools):
    """`Backend.accumulate` for one matrix, whose chunks `momentum` and `active` hold."""
    width, first, stop = place
    decay, active = decaying
    matrix, scratch = tools
    chunk = scratch[0]
    for number in range(first, stop):
        if active[number]:
            region = _region(gradient, number, width)
            if region.size == ENTRIES:
                _forward(region, chunk, scratch[1:], matrix)
            else:
                chunk[:] = 0
                for i in range(region.shape[0]):
                    for j in range(region.shape[1]):
                        chunk[i, j] = region[i, j]
                _forward(chunk, chunk, scratch[1:], matrix)
            _mix(momentum[number], decay, chunk, _F4(1))


@kernel(MATRIX, (WORD, WORD, WORD, WORD), VOTES, ((NUMBER, NUMBER), FLAG), TOOLS)
def update(parameter, place, votes, rule, tools):
    """`Backend.update` for one matrix, whose chunk 0 has the number `offset` in `votes`."""
    width, first, stop, offset = place
    rates, orthogonal = rule
    matrix, scratch = tools
    chunk = scratch[0]
    for number in range(first, stop):
        if _add_votes(chunk, offset + number, votes):  # else zeros, which are their own update
            if orthogonal:
                _to_orthogonal(chunk, scratch[1:], matrix)
            else:
                _to_signs(chunk, scratch[1], matrix)
        _change(parameter, (number, width), chunk, rates)


@kernel(CHUNKS, (WORD, WORD), (PLACES, PLACES), (BYTES, FLAG), TOOLS)
def guess(momentum, place, sent, guessed, tools):
    """`Backend.guess` for chunks of matrices."""
    first, stop = place
    indices, values = sent
    guesses, orthogonal = guessed
    matrix, scratch = tools
    chunk = scratch[0]
    for number in range(first, stop):
        stayed = momentum[number]
        share = _share(_size(stayed))
        for i in range(SIDE):
            for j in range(SIDE):
                vote = stayed[i, j] * share
                chunk[j, i] = vote if abs(vote) <= _STAYED_MAX else _F4(0)  # not of a NaN either
        for slot in range(indices.shape[1]):
            index = np.int64(indices[number, slot])
            chunk[index >> 6, index & SIDE - 1] += _SENT_WEIGHT * _F4(np.sign(values[number, slot]))
        if orthogonal:
            _round(chunk, _F4(1), _ENTRY_MAX)
            _to_orthogonal(chunk, scratch[1:], matrix)
            _round(chunk, _ORTHOGONAL_GUESS * _GUESS_ONE, _GUESS_MAX)
        else:
            _inverse(chunk, scratch[1], matrix, False)
            for i in range(SIDE):
                for j in range(SIDE):
                    chunk[i, j] = np.sign(chunk[i, j]) * _GUESS_ONE
        out, whole = guesses[number].reshape(ENTRIES), chunk.reshape(ENTRIES)
        for entry in range(ENTRIES):
            out[entry] = np.int8(whole[entry])  # never NaN, as no vote is, and within 127

"""The kernels that go through the transform: gradients into momentum, votes into parameters, momentum into a guess."""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from node.demo.kernels.kernel import (
    BYTES,
    CHUNKS,
    FLAG,
    FLAGS,
    MATRIX,
    NUMBER,
    PLACES,
    TOOLS,
    VOTES,
    WORD,
    inner,
    kernel,
)

SIDE, HALF, ENTRIES = 64, 32, 4096
SCRATCH = 3
"""Chunks that a kernel works in besides its arguments."""

_F4, _I4 = np.float32, np.int32

# Of the whole-number arithmetic: transform.py, orthogonal.py.
_ENTRY_MAX, _STEP_MAX, _A, _B, _C = map(_F4, (511, 500, 441, -306, 130))
_ITERATIONS, _UPDATE_SCALE = 3, _F4(2.0**-24)
_ABOVE_OPERAND, _ABOVE_ENTRY = (int(_F4(bound + 0.5).view(_I4)) for bound in (2047, 511))
"""Bits of the least magnitude that rounds above a bound; one octave more of each for every halving."""
_MAGNITUDE, _OCTAVE = 0x7FFFFFFF, 1 << 23

# Of a guess: engine.py, aggregate.py.
_SENT_WEIGHT, _STAYED_WEIGHT, _ORTHOGONAL_GUESS, _GUESS_ONE, _GUESS_MAX = map(_F4, (200, 40, 1.25, 16, 127))


# ---- products of chunks, in LLVM's words: numba has none for vectors that stay in registers

_LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
_ROWS, _VECTORS = (8, 2) if _LANES == 16 else (4, 2)
_COLUMNS = _LANES * _VECTORS
"""A block of so many rows and columns keeps its sums in the registers of AVX-512, or else of AVX2."""

_PAIRED = ("folded", "unfolded", "mirrored")
"""Kinds of product whose sums are added and subtracted in pairs, so that half of the rows, or of the columns, make all
of them."""

_VECTOR, _WORD, _LANE = ir.VectorType(ir.FloatType(), _LANES), ir.IntType(64), ir.IntType(32)


def _block(kind: str) -> Any:
    """A part of a product, from (row, column) on, as wide as _COLUMNS, from _ROWS sums s[r]:

    "turned"    s[r] = sum over k of left[k, r] * right[k]          out[r] = s[r]
    "straight"  s[r] = sum over k of left[r, k] * right[k]          out[r] = s[r]
    "folded"    s[r] as if turned, for r and for 63 - r             out[r], out[32 + r] = s[r] +- s[63 - r]
    "unfolded"  s[r] as if turned, over even k, and over odd ones   out[r], out[63 - r] = the former +- the latter
    "mirrored"  s[r] as if straight, over even k, and over odd ones
                out[r] = the former + the latter, and from the right edge on leftwards the former - the latter
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, right, out = (
            context.make_array(of)(context, builder, each)
            for of, each in zip(signature.args[:3], arguments[:3], strict=True)
        )
        top, edge = (builder.extract_value(arguments[3], index) for index in (0, 1))
        paired = kind in _PAIRED
        rows = [_plus(builder, top, index) for index in range(_ROWS // 2 if paired else _ROWS)]
        opposite = [builder.sub(ir.Constant(_WORD, SIDE - 1), row) for row in rows]
        lower = [_plus(builder, row, HALF) for row in rows]
        asked = {"folded": [[*rows, *opposite]], "unfolded": [rows, rows], "mirrored": [rows, rows]}.get(kind, [rows])
        sums = [*chain(*_sums(builder, (left, right), edge, asked, straight=kind in ("straight", "mirrored")))]
        if paired:
            both = [*zip(sums[: len(rows)], sums[len(rows) :], strict=True)]
            sums = [_each(builder.fadd, *lines) for lines in both] + [_each(builder.fsub, *lines) for lines in both]
            rows += {"folded": lower, "unfolded": opposite, "mirrored": rows}[kind]
        edges = [edge] * len(rows)
        if kind == "mirrored":
            half = len(rows) // 2
            edges[half:] = [builder.sub(ir.Constant(_WORD, SIDE - _COLUMNS), edge)] * half
            sums[half:] = [_mirror(builder, line) for line in sums[half:]]
        for row, start, line in zip(rows, edges, sums, strict=True):
            for place, value in zip(_vectors(builder, out, row, start), line, strict=True):
                builder.store(value, place, align=4)
        return context.get_dummy_value()

    @intrinsic
    def block(_: Any, left: Any, right: Any, out: Any, place: Any) -> Any:
        return types.void(left, right, out, types.UniTuple(types.int64, 2)), generate

    return block


def _sums(
    builder: Any, operands: tuple[Any, Any], edge: Any, lists: Sequence[list[Any]], *, straight: bool = False
) -> list[list[list[Any]]]:
    """s[r] of the rows in each list: with one list over all k, with two over the even k and over the odd ones."""
    left, right = operands
    before, loop, after = builder.block, *(builder.append_basic_block(name) for name in ("depth", "sums"))
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_WORD)
    sums = [[[builder.phi(_VECTOR) for _ in range(_VECTORS)] for _ in rows] for rows in lists]
    grown: list[list[list[Any]]] = []
    for step, (rows, totals) in enumerate(zip(lists, sums, strict=True)):
        at = _plus(builder, k, step)
        values = [builder.load(place, align=4) for place in _vectors(builder, right, at, edge)]
        grown.append([])
        for row, total in zip(rows, totals, strict=True):
            scalar = builder.load(_entry(builder, left, *((row, at) if straight else (at, row))))
            grown[-1].append(_each(partial(_plus_product, builder, scalar), total, values))
    following = _plus(builder, k, len(lists))
    for phi, value in [(k, following), *zip(*(chain(*chain(*each)) for each in (sums, grown)), strict=True)]:
        phi.add_incoming(ir.Constant(phi.type, None), before)
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, builder.extract_value(right.shape, 0)), loop, after)
    builder.position_at_end(after)
    return grown


def _each(operation: Any, *lines: Sequence[Any]) -> list[Any]:
    return [operation(*values) for values in zip(*lines, strict=True)]


def _plus_product(builder: Any, scalar: Any, total: Any, values: Any) -> Any:
    """total + scalar * values, rounded once where the processor can."""
    nothing, lanes = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.VectorType(_LANE, _LANES), [0] * _LANES)
    lowest = builder.insert_element(nothing, scalar, ir.Constant(_LANE, 0))
    spread = builder.shuffle_vector(lowest, nothing, lanes)
    return builder.fadd(total, builder.fmul(spread, values, flags=("contract",)), flags=("contract",))


def _mirror(builder: Any, line: Sequence[Any]) -> list[Any]:
    """The vectors of a line from its last entry to its first."""
    order = ir.Constant(ir.VectorType(_LANE, _LANES), [*reversed(range(_LANES))])
    return [builder.shuffle_vector(values, ir.Constant(_VECTOR, ir.Undefined), order) for values in reversed(line)]


def _plus(builder: Any, number: Any, addend: int) -> Any:
    return builder.add(number, ir.Constant(_WORD, addend))


def _entry(builder: Any, view: Any, row: Any, column: Any) -> Any:
    """Where an entry of an array lies."""
    start = builder.mul(row, builder.extract_value(view.strides, 0))
    return builder.gep(cgutils.pointer_add(builder, view.data, start), [column])


def _vectors(builder: Any, view: Any, row: Any, column: Any) -> list[Any]:
    """Where the vectors of a block lie in a row."""
    start = builder.bitcast(_entry(builder, view, row, column), _VECTOR.as_pointer())
    return [builder.gep(start, [ir.Constant(_WORD, place)]) for place in range(_VECTORS)]


def _product(kind: str) -> Any:
    """A whole product, block by block."""
    block, parts = _block(kind), 2 if kind in _PAIRED else 1
    down, width = (1, HALF) if kind == "mirrored" else (parts, SIDE)

    @inner
    def product(left, right, out):
        for row in range(0, out.shape[0] // down, _ROWS // parts):
            for column in range(0, width, _COLUMNS):
                block(left, right, out, (row, column))

    return product


_turned, _straight, _folded, _unfolded, _mirrored = map(
    _product, ("turned", "straight", "folded", "unfolded", "mirrored")
)


# ---- steps within a chunk


@inner
def _forward(given, chunk, spare, matrix):
    """(D X D^T)^T of X, `given`, which may be `chunk` itself; `matrix` is `_forward_matrices` of fused.py."""
    _folded(given, matrix[:SIDE], spare)  # X^T D^T; an even row of D reads alike from both ends
    _turned(matrix[SIDE:, :HALF], spare[:HALF], chunk[0::2])
    _turned(matrix[SIDE:, HALF:], spare[HALF:], chunk[1::2])


@inner
def _inverse(chunk, spare, matrix, whole):
    """D^T M D in place of M, as it is, not transposed; `matrix` is D.

    With `whole` numbers and T in place of D, `transform.integer_inverse`: returns 2^t, else 1."""
    _unfolded(matrix, chunk, spare)
    power = _shift(spare, _ABOVE_OPERAND) if whole else _F4(1)
    _mirrored(spare, matrix, chunk)
    return power


@inner
def _size(chunk):
    """Root mean square."""
    squares = np.zeros(SIDE, _F4)
    for i in range(SIDE):
        for j in range(SIDE):
            squares[j] += chunk[i, j] * chunk[i, j]
    return np.sqrt(squares.sum() / _F4(ENTRIES))


@inner
def _shift(chunk, bound):
    """`transform.shift_` of one chunk: halve to nearest-even until |.| is below `bound`, bits of a float; 2^t."""
    bits, peak = chunk.reshape(ENTRIES).view(_I4), _I4(0)
    for place in range(ENTRIES):
        magnitude = _I4(bits[place] & _MAGNITUDE)  # ordered as the floats are
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
    """out <- out * share + other * other_share."""
    flat, flat_other = out.reshape(ENTRIES), other.reshape(ENTRIES)  # one loop: numba asks for each if they overlap
    for place in range(ENTRIES):
        flat[place] = flat[place] * share + flat_other[place] * other_share


@inner
def _orthogonalise(found, square, fourth):
    """`orthogonal.orthogonalised` of one chunk, not transposed, in place of `found`; the others are spare."""
    _shift(found, _ABOVE_ENTRY)
    squares = np.int64(0)
    for i in range(SIDE):
        for j in range(SIDE):
            entry = np.int64(found[i, j])
            squares += entry * entry
    scale, limit = _F4(256), np.int64(1)
    while squares > limit:
        scale *= _F4(0.5)
        limit *= 4
    _round(found, scale, _ENTRY_MAX)
    for _ in range(_ITERATIONS):
        _turned(found, found, square)
        _round(square, _F4(1 / 256), _ENTRY_MAX)
        _turned(square, square, fourth)
        _round(fourth, _F4(1 / 256), _ENTRY_MAX)
        _mix(square, _B, fourth, _C)
        _round(square, _F4(1 / 128), _STEP_MAX)
        _straight(found, square, fourth)
        _mix(found, _A, fourth, _F4(1))
        _round(found, _F4(1 / 128), _ENTRY_MAX)


@inner
def _to_orthogonal(chunk, spare, matrix):
    """`orthogonal.inverse_orthogonal_` of one chunk."""
    _orthogonalise(chunk, spare[0], spare[1])
    scale = _inverse(chunk, spare[0], matrix, True) * _UPDATE_SCALE
    for i in range(SIDE):
        for j in range(SIDE):
            chunk[i, j] *= scale  # never -0, for sums that begin with +0 do not end there


@inner
def _to_signs(chunk, spare, matrix):
    """`transform.inverse_signs_` of one chunk."""
    _shift(chunk, _ABOVE_OPERAND)
    _inverse(chunk, spare, matrix, True)
    for i in range(SIDE):
        for j in range(SIDE):
            chunk[i, j] = _F4(chunk[i, j] > 0) - _F4(chunk[i, j] < 0)


@inner
def _region(matrix, number, width):
    """What of a matrix stands in one of its chunks. Counted from 0 like this, numba knows that no index is negative,
    and takes many entries at a time."""
    row, column = divmod(number, width)
    return matrix[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]


@inner
def _add_votes(chunk, number, votes):
    """Fill S of one chunk; whether there are any votes at all."""
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
def _change(region, chunk, rates):
    """P <- P * decay - rate * U, each rounded, of one chunk."""
    rate, decay = rates
    for i in range(region.shape[0]):
        for j in range(region.shape[1]):
            change = chunk[i, j] * rate
            region[i, j] = region[i, j] * decay - change


# ---- what fused.py calls, for the chunks `first` to `stop` of a matrix or of a momentum


@kernel(MATRIX, (WORD, WORD, WORD), CHUNKS, (NUMBER, FLAGS), TOOLS)
def accumulate(gradient, place, momentum, decaying, tools):
    """`Engine.accumulate` for one matrix, whose chunks `momentum` and `active` hold."""
    width, first, stop = place
    decay, active = decaying
    matrix, scratch = tools
    chunk = scratch[0]
    for number in range(first, stop):
        if active[number]:
            region = _region(gradient, number, width)
            if region.size == ENTRIES:
                _forward(region, chunk, scratch[1], matrix)
            else:
                chunk[:] = 0
                for i in range(region.shape[0]):
                    for j in range(region.shape[1]):
                        chunk[i, j] = region[i, j]
                _forward(chunk, chunk, scratch[1], matrix)
            _mix(momentum[number], decay, chunk, _F4(1))


@kernel(MATRIX, (WORD, WORD, WORD, WORD), VOTES, ((NUMBER, NUMBER), FLAG), TOOLS)
def update(parameter, place, votes, rule, tools):
    """`aggregate.update` for one matrix, whose chunk 0 has the number `offset` in `votes`."""
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
        _change(_region(parameter, number, width), chunk, rates)


@kernel(CHUNKS, (WORD, WORD), (PLACES, PLACES), (BYTES, FLAG), TOOLS)
def guess(momentum, place, sent, guessed, tools):
    """`Engine.guess`, for chunks of matrices."""
    first, stop = place
    indices, values = sent
    guesses, orthogonal = guessed
    matrix, scratch = tools
    chunk = scratch[0]
    for number in range(first, stop):
        stayed = momentum[number]
        share = _STAYED_WEIGHT / max(_size(stayed), _F4(1e-37))
        for i in range(SIDE):
            for j in range(SIDE):
                chunk[j, i] = stayed[i, j] * share
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
        for place in range(ENTRIES):
            out[place] = np.int8(whole[place])

"""Products of chunks and of the DCT's matrix, in LLVM's words: numba has none for vectors that stay in registers."""

from functools import partial
from itertools import chain
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from node.demo.kernels.compile import HALF, QUARTER, SIDE, inner

_FEATURES = cpu_target.target_context.codegen().magic_tuple()[2]
"""Of the processor that numba compiles for: this one, if its settings (NUMBA_CPU_NAME) name no other."""

_LANES = 16 if "+avx512f" in _FEATURES else 8
_SUMS = 16 if _LANES == 16 else 8
"""Vectors of sums in a block, which stay in the registers of AVX-512, or else of AVX2."""

_VECTOR, _WORD, _LANE = ir.VectorType(ir.FloatType(), _LANES), ir.IntType(64), ir.IntType(32)
_PLACE = types.UniTuple(types.int64, 2)


def _block(kind: str) -> Any:
    """A part of a product: some rows, of two vectors each from a column on, or of four.

    "turned"    out[r] = sum over k of left[k, r] * right[k]
    "straight"  out[r] = sum over k of left[r, k] * right[k]

    An even row of the DCT reads alike from both ends, and every other one of those from both ends of its half. So there
    are two kinds with 24 of 64 multiply-adds, of sums as if turned: a over k = 0, 4, 8..., b over k = 2, 6, 10..., each
    as wide as a quarter, and o over odd k, as wide as half:

    "woven"     out[r, 4 c] = a[c]    out[r, 4 c + 2] = b[c]    out[r, 2 c + 1] = o[c]
    "mirrored"  e[c], e[31 - c] = a[c] +- b[c]    out[r, c], out[r, 63 - c] = e[c] +- o[c]
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (left, right, out), (top, edge) = _given(context, builder, signature, arguments)
        at = partial(_linear, builder, edge)
        columns, end = [edge, at(1, _LANES)], None
        taken: list[list[Any]] = [columns]
        if kind == "woven":
            columns, end = [at(4, place * _LANES) for place in range(4)], _woven
            taken = _by_fours(edge, [at(2, 0), at(2, _LANES)])
        elif kind == "mirrored":
            columns, end = [edge, at(-1, HALF - _LANES), at(1, HALF), at(-1, SIDE - _LANES)], _mirrored
            taken = _by_fours(edge, columns[:2])
        rows = [_linear(builder, top, 1, index) for index in range(_SUMS // len(columns))]
        for row, sums in zip(
            rows, _sums(builder, (left, right), rows, taken, straight=kind == "straight"), strict=True
        ):
            for column, vector in zip(columns, end(builder, *sums) if end else sums, strict=True):
                builder.store(vector, _vector(builder, out, row, column), align=4)
        return context.get_dummy_value()

    @intrinsic
    def block(_: Any, left: Any, right: Any, out: Any, place: Any) -> Any:
        return types.void(left, right, out, _PLACE), generate

    return block


def _folded(_: Any, rows: Any, out: Any, place: Any) -> Any:
    """`fold` of rows k, 31 - k, 32 + k and 63 - k, a vector of each, from a column on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (rows, out), (k, column) = _given(context, builder, signature, arguments)
        first, second, third, last = (
            builder.load(_vector(builder, rows, _linear(builder, k, *row), column), align=4)
            for row in ((1, 0), (-1, HALF - 1), (1, HALF), (-1, SIDE - 1))
        )
        ends, middle = builder.fadd(first, last), builder.fadd(second, third)
        folded = {
            (4, 0): builder.fadd(ends, middle),
            (4, 2): builder.fsub(ends, middle),
            (2, 1): builder.fsub(first, last),
            (-2, SIDE - 1): builder.fsub(second, third),
        }
        for row, vector in folded.items():
            builder.store(vector, _vector(builder, out, _linear(builder, k, *row), column), align=4)
        return context.get_dummy_value()

    return types.void(rows, out, _PLACE), generate


_fold_vectors: Any = intrinsic(_folded)


def _given(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[list[Any], list[Any]]:
    """Arrays, and the numbers of the place that follows them."""
    *arrays, place = zip(signature.args, arguments, strict=True)
    views = [context.make_array(of)(context, builder, each) for of, each in arrays]
    return views, [builder.extract_value(place[1], index) for index in (0, 1)]


def _by_fours(edge: Any, odd: list[Any]) -> list[list[Any]]:
    """Columns that a, b and both vectors of o take of four successive rows."""
    return [[edge, None, None, None], [None, None, *odd], [None, edge, None, None], [None, None, *odd]]


def _sums(
    builder: Any, operands: tuple[Any, Any], rows: list[Any], taken: list[list[Any]], *, straight: bool
) -> list[list[Any]]:
    """Vectors of sums, each row's; `taken` are, for some successive k, what columns of right[k] each of them takes."""
    left, right = operands
    before, loop, after = builder.block, *(builder.append_basic_block(name) for name in ("depth", "sums"))
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_WORD)
    sums = [[builder.phi(_VECTOR) for _ in taken[0]] for _ in rows]
    grown = [[*line] for line in sums]
    for step, columns in enumerate(taken):
        at = _linear(builder, k, 1, step)
        values = {
            place: builder.load(_vector(builder, right, at, column), align=4)
            for place, column in enumerate(columns)
            if column is not None
        }
        for row, line in zip(rows, grown, strict=True):
            scalar = builder.load(_entry(builder, left, *((row, at) if straight else (at, row))))
            for place, value in values.items():
                line[place] = _plus_product(builder, scalar, line[place], value)
    following = _linear(builder, k, 1, len(taken))
    for phi, value in [(k, following), *zip(chain(*sums), chain(*grown), strict=True)]:
        phi.add_incoming(ir.Constant(phi.type, None), before)
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, builder.extract_value(right.shape, 0)), loop, after)
    builder.position_at_end(after)
    return grown


def _plus_product(builder: Any, scalar: Any, total: Any, values: Any) -> Any:
    """total + scalar * values, rounded once where the processor can."""
    lowest = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, ir.Constant(_LANE, 0))
    spread = _shuffled(builder, lowest, lowest, [0] * _LANES)
    return builder.fadd(total, builder.fmul(spread, values, flags=("contract",)), flags=("contract",))


def _woven(builder: Any, a: Any, b: Any, *odd: Any) -> list[Any]:
    even = _weave(builder, a, b)
    return [*chain(*(_weave(builder, *pair) for pair in zip(even, odd, strict=True)))]


def _mirrored(builder: Any, a: Any, b: Any, *odd: Any) -> list[Any]:
    even = builder.fadd(a, b), _mirror(builder, builder.fsub(a, b))
    both = [*zip(even, odd, strict=True)]
    near, far = ([operation(*pair) for pair in both] for operation in (builder.fadd, builder.fsub))
    return [*near, *(_mirror(builder, each) for each in reversed(far))]


def _weave(builder: Any, first: Any, second: Any) -> list[Any]:
    """Two vectors with the entries of two in turn."""
    order = [*chain(*zip(range(_LANES), range(_LANES, 2 * _LANES), strict=True))]
    return [_shuffled(builder, first, second, part) for part in (order[:_LANES], order[_LANES:])]


def _mirror(builder: Any, vector: Any) -> Any:
    """From its last entry to its first."""
    return _shuffled(builder, vector, vector, [*reversed(range(_LANES))])


def _shuffled(builder: Any, first: Any, second: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_LANE, _LANES), order))


def _linear(builder: Any, number: Any, times: int, start: int) -> Any:
    """number * times + start."""
    return builder.add(builder.mul(number, ir.Constant(_WORD, times)), ir.Constant(_WORD, start))


def _entry(builder: Any, view: Any, row: Any, column: Any) -> Any:
    """Where an entry of an array lies."""
    start = builder.mul(row, builder.extract_value(view.strides, 0))
    return builder.gep(cgutils.pointer_add(builder, view.data, start), [column])


def _vector(builder: Any, view: Any, row: Any, column: Any) -> Any:
    """Where a vector of an array lies."""
    return builder.bitcast(_entry(builder, view, row, column), _VECTOR.as_pointer())


def _product(kind: str) -> Any:
    """A whole product, block by block."""
    block = _block(kind)
    rows, width, stop = (
        (_SUMS // 4, _LANES, QUARTER) if kind in ("woven", "mirrored") else (_SUMS // 2, 2 * _LANES, SIDE)
    )

    @inner
    def product(left, right, out):
        for row in range(0, out.shape[0], rows):
            for column in range(0, stop, width):
                block(left, right, out, (row, column))

    return product


turned, straight, woven, mirrored = map(_product, ("turned", "straight", "woven", "mirrored"))
"""Products of float32 arrays, left and right, into `out`, of 64 columns; what each is says `_block`."""


@inner
def fold(rows, out):
    """Sums and differences of the rows that the DCT's rows read alike, as `woven` and `turned` take them: those for its
    rows 0, 4, 8..., for its rows 2, 6, 10... and for its odd ones, in these places."""
    for k in range(QUARTER):
        for column in range(0, SIDE, _LANES):
            _fold_vectors(rows, out, (k, column))

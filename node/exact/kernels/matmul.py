"""Products of 64 x 64 chunks, of which two know the DCT's matrix and make 24 of 64 multiply-adds.

    matmul_tn             out = L^T R
    matmul_dct            out = X^T D^T    from X folded: `fold` first
    matmul_inverse_dct    out = M^T D      (or T in place of D: dct.py)

Even rows of the DCT's matrix D read alike from both ends, odd rows with the sign turned. The even
ones, cut in half, are a DCT of half the length, so that every other one reads alike from both ends
of its half. An 8-point DCT y = D x is folded twice like this:

    fold                                        multiply
    f0 = (x0 + x7) + (x3 + x4)                  y0 = D00 f0 + D01 f4      rows 0, 4: two of D's
    f4 = (x1 + x6) + (x2 + x5)                  y4 = D40 f0 + D41 f4
    f2 = (x0 + x7) - (x3 + x4)                  y2 = D20 f2 + D21 f6      columns; rows 2, 6: two
    f6 = (x1 + x6) - (x2 + x5)                  y6 = D60 f2 + D61 f6
    f1 = x0 - x7    f3 = x1 - x6                y1 = D10 f1 + D11 f3 + D12 f5 + D13 f7
    f5 = x2 - x5    f7 = x3 - x4                y3, y5, y7 likewise       odd rows: four

These are 4 * 2 + 4 * 4 = 24 multiply-adds in place of 64. A third folding would save two more, but
its sums are half a vector wide. The inverse x = D^T y is the same read backwards:

    multiply                                    unfold
    a0 = D00 y0 + D40 y4    a1 = D01 y0 + D41 y4    e0, e3 = a0 + b0, a0 - b0    x0, x7 = e0 +- o0
    b0 = D20 y2 + D60 y6    b1 = D21 y2 + D61 y6    e1, e2 = a1 + b1, a1 - b1    x1, x6 = e1 +- o1
    o0 = D10 y1 + D30 y3 + D50 y5 + D70 y7          o1, o2, o3 likewise          x2, x5 = e2 +- o2
                                                                                 x3, x4 = e3 +- o3

With 64 points a quarter is 16 long and a half 32. Of each row of `out` the sums a and b are as wide
as a quarter and o as wide as a half, and the folded rows stand in the order of D's rows that take
them: fold's f4 at row 4.

This is written in LLVM's own words, since numba has none for vectors that stay in registers. The
products in numpy, entry by entry, are in tests/node/exact/kernels/test_matmul.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from node.exact.kernels.compile import HALF, QUARTER, SIDE, inner

_FEATURES = cpu_target.target_context.codegen().magic_tuple()[2]
"""Features of the processor that numba compiles for: this one, unless NUMBA_CPU_NAME or
NUMBA_CPU_FEATURES name another."""

_LANES = 16 if "+avx512f" in _FEATURES else 8
"""Entries of a vector."""

_SUMS = 16 if _LANES == 16 else 8
"""Vectors of sums in a block: they stay in the registers of AVX-512, or else of AVX2."""

_VECTOR, _WORD, _LANE = ir.VectorType(ir.FloatType(), _LANES), ir.IntType(64), ir.IntType(32)
_PLACE = types.UniTuple(types.int64, 2)

_Column = tuple[int, int]
"""(times, start): the column times * edge + start, of a block at column `edge`."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Some rows of a product, from a column `edge` on, whose sums stay in registers."""

    out: list[_Column]
    """Where the vectors of one row of `out` go."""

    taken: list[list[_Column | None]]
    """For successive k, which columns of right[k] are multiplied and added to each sum of a row."""

    finish: Callable[..., list[Any]] | None = None
    """Makes the vectors of `out` of a row's sums; without it they are the sums."""

    stop: int = SIDE
    """The edges are 0, `width` ... up to this."""

    @property
    def rows(self) -> int:
        return _SUMS // len(self.out)

    @property
    def width(self) -> int:
        """Columns of the sums over one k."""
        return _LANES if self.finish else 2 * _LANES


def _quarters_and_half(odd: list[_Column]) -> list[list[_Column | None]]:
    """Columns that the sums (a, b, o, o) take of four successive k: a of the first, b of the third,
    both vectors of o, at the columns `odd`, of the others.
    """
    quarter = (1, 0)
    odds: list[_Column | None] = [None, None, *odd]
    return [[quarter, None, None, None], odds, [None, quarter, None, None], odds]


def _interleaved(builder: Any, a: Any, b: Any, *odd: Any) -> list[Any]:
    """a0 o0 b0 o1 a1 o2 b1 o3 ...: the order of the DCT's rows."""
    even = _zipped(builder, a, b)
    pairs = zip(even, odd, strict=True)
    return [*chain(*(_zipped(builder, *pair) for pair in pairs))]


def _unfolded(builder: Any, a: Any, b: Any, *odd: Any) -> list[Any]:
    """Sums and differences of a, b and o, the latter from the last to the first."""
    even = builder.fadd(a, b), _reversed(builder, builder.fsub(a, b))
    both = [*zip(even, odd, strict=True)]
    near, far = ([operation(*pair) for pair in both] for operation in (builder.fadd, builder.fsub))
    return [*near, *(_reversed(builder, each) for each in reversed(far))]


_SIDE_BY_SIDE: list[_Column] = [(1, 0), (1, _LANES)]
_TN = _Block(_SIDE_BY_SIDE, [[*_SIDE_BY_SIDE]])
_DCT = _Block(
    [(4, place * _LANES) for place in range(4)],
    _quarters_and_half([(2, 0), (2, _LANES)]),
    _interleaved,
    stop=QUARTER,
)
_INVERSE_DCT = _Block(
    [(1, 0), (-1, HALF - _LANES), (1, HALF), (-1, SIDE - _LANES)],
    _quarters_and_half([(1, 0), (-1, HALF - _LANES)]),
    _unfolded,
    stop=QUARTER,
)


# ---- the code of a block


def _intrinsic(block: _Block) -> Any:
    """A function that kernels call: (left, right, out, (first row, edge)) -> None."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (left, right, out), (top, edge) = _given(context, builder, signature, arguments)
        rows = [_linear(builder, top, 1, index) for index in range(block.rows)]
        taken = [
            [column and _linear(builder, edge, *column) for column in columns]
            for columns in block.taken
        ]
        for row, sums in zip(rows, _sums(builder, (left, right), rows, taken, block), strict=True):
            vectors = block.finish(builder, *sums) if block.finish else sums
            for column, vector in zip(block.out, vectors, strict=True):
                place = _vector(builder, out, row, _linear(builder, edge, *column))
                builder.store(vector, place, align=4)
        return context.get_dummy_value()

    @intrinsic
    def work(_: Any, left: Any, right: Any, out: Any, place: Any) -> Any:
        return types.void(left, right, out, _PLACE), generate

    return work


def _sums(
    builder: Any, operands: tuple[Any, Any], rows: list[Any], taken: list[list[Any]], block: _Block
) -> list[list[Any]]:
    """The vectors of sums of each row, over all k of right[k]: a loop of len(taken) k at a time."""
    left, right = operands
    before = builder.block
    loop, after = (builder.append_basic_block(name) for name in ("depth", "sums"))
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
            scalar = builder.load(_entry(builder, left, at, row))
            for place, value in values.items():
                line[place] = _plus_product(builder, scalar, line[place], value)
    following = _linear(builder, k, 1, len(taken))
    for phi, value in [(k, following), *zip(chain(*sums), chain(*grown), strict=True)]:
        phi.add_incoming(ir.Constant(phi.type, None), before)
        phi.add_incoming(value, loop)
    more = builder.icmp_signed("<", following, builder.extract_value(right.shape, 0))
    builder.cbranch(more, loop, after)
    builder.position_at_end(after)
    return grown


def _folded(_: Any, rows: Any, out: Any, place: Any) -> Any:
    """`fold` of rows k, 31 - k, 32 + k and 63 - k, one vector of each; `place` is (k, column)."""

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
            place = _vector(builder, out, _linear(builder, k, *row), column)
            builder.store(vector, place, align=4)
        return context.get_dummy_value()

    return types.void(rows, out, _PLACE), generate


_fold_vectors: Any = intrinsic(_folded)


def _given(
    context: Any, builder: Any, signature: Any, arguments: Any
) -> tuple[list[Any], list[Any]]:
    """Arrays, and the numbers of the place that follows them."""
    *arrays, place = zip(signature.args, arguments, strict=True)
    views = [context.make_array(kind)(context, builder, array) for kind, array in arrays]
    return views, [builder.extract_value(place[1], index) for index in (0, 1)]


def _plus_product(builder: Any, scalar: Any, total: Any, values: Any) -> Any:
    """Total + scalar * values, rounded once where the processor can."""
    lowest = builder.insert_element(
        ir.Constant(_VECTOR, ir.Undefined), scalar, ir.Constant(_LANE, 0)
    )
    spread = _shuffled(builder, lowest, lowest, [0] * _LANES)
    product = builder.fmul(spread, values, flags=("contract",))
    return builder.fadd(total, product, flags=("contract",))


def _zipped(builder: Any, first: Any, second: Any) -> list[Any]:
    """Two vectors with the entries of two in turn."""
    order = [*chain(*zip(range(_LANES), range(_LANES, 2 * _LANES), strict=True))]
    halves = (order[:_LANES], order[_LANES:])
    return [_shuffled(builder, first, second, half) for half in halves]


def _reversed(builder: Any, vector: Any) -> Any:
    """From its last entry to its first."""
    return _shuffled(builder, vector, vector, [*reversed(range(_LANES))])


def _shuffled(builder: Any, first: Any, second: Any, order: list[int]) -> Any:
    lanes = ir.Constant(ir.VectorType(_LANE, _LANES), order)
    return builder.shuffle_vector(first, second, lanes)


def _linear(builder: Any, number: Any, times: int, start: int) -> Any:
    """Number * times + start."""
    product = builder.mul(number, ir.Constant(_WORD, times))
    return builder.add(product, ir.Constant(_WORD, start))


def _entry(builder: Any, view: Any, row: Any, column: Any) -> Any:
    """Address of an entry of an array."""
    start = builder.mul(row, builder.extract_value(view.strides, 0))
    return builder.gep(cgutils.pointer_add(builder, view.data, start), [column])


def _vector(builder: Any, view: Any, row: Any, column: Any) -> Any:
    """Address of a vector of an array."""
    return builder.bitcast(_entry(builder, view, row, column), _VECTOR.as_pointer())


# ---- whole products


def _product(block: _Block) -> Any:
    """(left, right, out) -> None, of float32 arrays; out has 64 columns."""
    work = _intrinsic(block)
    rows, width, stop = block.rows, block.width, block.stop

    @inner
    def product(left, right, out):
        for row in range(0, out.shape[0], rows):
            for edge in range(0, stop, width):
                work(left, right, out, (row, edge))

    return product


matmul_tn, matmul_dct, matmul_inverse_dct = map(_product, (_TN, _DCT, _INVERSE_DCT))


@inner
def fold(rows, out):
    """Sums and differences of the 64 rows, as the module describes: those for D's rows 0, 4, 8...,
    for its rows 2, 6, 10... and for its odd rows, in these places of `out`, which is not `rows`.
    """
    for k in range(QUARTER):
        for column in range(0, SIDE, _LANES):
            _fold_vectors(rows, out, (k, column))

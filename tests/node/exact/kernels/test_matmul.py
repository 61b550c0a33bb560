"""Each product of the kernels against the same one in numpy, entry by entry."""

import numpy as np
import pytest

from node.exact.cpu_kernels import _forward_matrix
from tests.node.exact.reference import D, Floats, T

pytest.importorskip("numba")

from node.exact.kernels import matmul

Doubles = np.ndarray


def whole(seed: int, shape: tuple[int, int] = (64, 64), bound: int = 2047) -> Floats:
    """Whole numbers, whose products float32 holds exactly where they stay below 2^24."""
    numbers = np.random.default_rng(seed).integers(-bound, bound + 1, shape)
    return numbers.astype(np.float32)


def product(left: Floats, right: Floats) -> Doubles:
    """L^T R in double precision: one multiply-add after the other."""
    rows = left.T
    out = np.zeros((len(rows), right.shape[1]))
    for row in range(len(rows)):
        for k in range(len(right)):
            out[row] += float(rows[row, k]) * right[k].astype(float)
    return out


def folded(x: Doubles) -> Doubles:
    """F of the rows x, as the module has them for 8 points."""
    side = len(x)
    half, quarter = side // 2, side // 4
    f = np.zeros_like(x)
    for k in range(quarter):
        ends, middle = x[k] + x[side - 1 - k], x[half - 1 - k] + x[half + k]
        f[4 * k], f[4 * k + 2] = ends + middle, ends - middle
    for k in range(half):
        f[2 * k + 1] = x[k] - x[side - 1 - k]
    return f


def dct_of_folded(f: Doubles, matrix: Doubles) -> Doubles:
    """Y = D x from f: 24 of 64 multiply-adds."""
    y = np.zeros_like(f)
    for first, step in ((0, 4), (2, 4), (1, 2)):
        for row in range(first, len(f), step):
            for k in range(len(f) // step):
                y[row] += matrix[row, k] * f[first + step * k]
    return y


def inverse_of_quarters(y: Doubles, matrix: Doubles) -> Doubles:
    """X = D^T y from a, b and o: 24 of 64 multiply-adds."""
    side = len(y)
    half, quarter = side // 2, side // 4
    a, b, o = (
        np.zeros((quarter, *y.shape[1:])),
        np.zeros((quarter, *y.shape[1:])),
        np.zeros((half, *y.shape[1:])),
    )
    for sums, first, step in ((a, 0, 4), (b, 2, 4), (o, 1, 2)):
        for c in range(len(sums)):
            for row in range(first, side, step):
                sums[c] += matrix[row, c] * y[row]
    e = np.concatenate([a + b, (a - b)[::-1]])
    return np.concatenate([e + o, (e - o)[::-1]])


def dct_matrix(side: int) -> Doubles:
    rows, columns = np.arange(side)[:, None], np.arange(side)
    matrix = np.cos(np.pi * (2 * columns + 1) * rows / (2 * side)) * np.sqrt(2 / side)
    matrix[0] /= np.sqrt(2)
    return matrix


@pytest.mark.parametrize("side", [8, 64])
def test_the_dct_folded_twice_is_the_dct_and_read_backwards_its_inverse(side: int) -> None:
    x, matrix = np.random.default_rng(side).normal(size=(side, 3)), dct_matrix(side)
    assert np.allclose(dct_of_folded(folded(x), matrix), matrix @ x)
    assert np.allclose(inverse_of_quarters(x, matrix), matrix.T @ x)


def test_products_of_whole_numbers_are_exact() -> None:
    left, right = whole(1, bound=511), whole(2, bound=511)
    out = np.full((64, 64), np.nan, np.float32)
    matmul.matmul_tn(left, right, out)
    assert np.array_equal(out, product(left, right))


def test_a_product_takes_only_the_rows_of_a_view_and_leaves_the_others() -> None:
    left, right = whole(3, (16, 16), 511), whole(4, (16, 64), 511)
    out = np.full((64, 64), np.nan, np.float32)
    matmul.matmul_tn(left, right, out[0::4])
    assert np.array_equal(out[0::4], product(left, right))
    assert all(np.isnan(out[first::4]).all() for first in (1, 2, 3))


def test_rows_are_folded_as_by_hand() -> None:
    rows, out = whole(5), np.full((64, 64), np.nan, np.float32)
    matmul.fold(rows, out)
    assert np.array_equal(out, folded(rows))


def test_the_dct_of_folded_rows_is_the_plain_product() -> None:
    rows = np.random.default_rng(6).normal(size=(64, 64)).astype(np.float32)
    out, spare = (np.full((64, 64), np.nan, np.float32) for _ in range(2))
    matmul.fold(rows, spare)
    matmul.matmul_dct(spare, _forward_matrix(), out)
    assert np.allclose(out, dct_of_folded(spare.astype(float), D).T, rtol=1e-5, atol=1e-5)
    assert np.allclose(out, rows.T.astype(float) @ D.T, rtol=1e-5, atol=1e-5)


def test_the_inverse_dct_of_whole_numbers_is_exact() -> None:
    coefficients, out = whole(7), np.full((64, 64), np.nan, np.float32)
    matmul.matmul_inverse_dct(coefficients, T.astype(np.float32), out)
    assert np.array_equal(out, inverse_of_quarters(coefficients.astype(float), T.astype(float)).T)
    assert np.array_equal(out, coefficients.T.astype(np.int64) @ T)

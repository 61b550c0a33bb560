"""The orthogonalised update of matrices in whole numbers: the same bits everywhere, as for the
sign.

Muon (Jordan et al., 2024) replaces a matrix's update by the nearest orthogonal matrix, so that all
its directions move alike. Here this is done chunk by chunk to the vote sums themselves: the DCT is
orthogonal, so to orthogonalise coefficients is to orthogonalise the update that they stand for. The
sums are small whole numbers, which need no rounding to begin with. Three Newton-Schulz iterations
X <- a X + X (b A + c A^2) with A = X^T X, in fixed point:

    X0 = S * 2^e, to nearest-even             per chunk the largest e with |X0|_F <= 1
    A  = X^T X,  A2 = A A                     64 * 511^2 < 2^24
    B  = b A + c A2                           |306 A + 130 A2| < 2^18
    X' = X B + a X                            64 * 500 * 511 + 441 * 511 < 2^24
    Y  = T^T X3,  Y' = Y >> t,  Z = Y' T      as for the sign: dct.py; |Y| <= 5243 * 511 < 2^24
    U  = Z * 2^(t - 24)                       8 times orthogonal: the root mean square is about 1,
                                              if S has all 64 directions

X and A count in 1/256, B in 1/128. They are rounded to nearest-even after every product and bounded
by 511 (B by 500). Every product and partial sum is a whole number below 2^24, exact in float32 in
any order; operands have nine bits. U is a whole number times a power of two, so it is exact too.
Zero chunks stay zero. In the code everything is transposed.

A step is equally long in each direction, and not on the whole: few votes have few directions, so
that the root mean square of U is 0.26 with 8 random votes, 0.46 with 32, 0.82 with 128. It is left
so. Steps that were all made as long as the rate trained worse: docs/results/step-length.md.
"""

from functools import cache

import torch
from torch import Tensor

from node.demo.dct import integer_inverse, powers_of_two, shift_
from node.demo.kernels.constants import (
    ENTRY_MAX,
    ITERATIONS,
    ONE_BITS,
    STEP_MAX,
    UPDATE_SCALE,
    A,
    B,
    C,
)


def inverse_orthogonal_(sums: Tensor, *, may_look: bool = True) -> Tensor:
    """Replace transposed vote sums S^T [n, 64, 64], contiguous, by U, exactly, and return it.

    `sums` holds whole numbers below 2^24 as float32; `may_look` is that of `dct.shift_`. Call it
    under `exact_products`.
    """
    found = orthogonalised(sums, may_look=may_look)
    whole, powers = integer_inverse(found, may_look=may_look)
    update = torch.mul(whole, powers * UPDATE_SCALE, out=sums)
    return update.add_(0.0)  # no -0: see `inverse_signs_`


def orthogonalised(sums: Tensor, *, may_look: bool = True) -> Tensor:
    """X3^T in 1/256, whole numbers as float32 [n, 64, 64], from transposed sums; changes them."""
    shift_(sums, ENTRY_MAX, may_look=may_look)
    found = _rounded_(sums * _scales(sums), 0)
    for _ in range(ITERATIONS):
        found = _iterated(found)
    return found


def _rounded_(values: Tensor, bits: int, bound: int = ENTRY_MAX) -> Tensor:
    """Divide by 2^bits, round to nearest-even, bound; in place."""
    return values.mul_(2.0**-bits).round_().clamp_(-bound, bound)


def _iterated(found: Tensor) -> Tensor:
    square = _rounded_(torch.bmm(found, found.mT), ONE_BITS)
    fourth = _rounded_(torch.bmm(square, square), ONE_BITS)
    step = _rounded_(square.mul_(B).add_(fourth, alpha=C), ONE_BITS - 1, STEP_MAX)
    return _rounded_(torch.baddbmm(found, step, found, beta=A), ONE_BITS - 1)


def _scales(entries: Tensor) -> Tensor:
    """2^e, float32 [n, 1, 1], for whole entries up to 511. The sum of their squares, up to 2^30, is
    counted in int64, from sums of rows that float32 still holds exactly.
    """
    squares = entries.square().sum(2).long().sum(1)  # [n]
    halvings = torch.bucketize(squares, _squares(entries.device))
    return powers_of_two(-1, entries.device)[halvings, None, None] * 2.0**ONE_BITS


@cache
def _squares(device: torch.device) -> Tensor:
    """int64 [16]: 4^i, the squares of the norms up to 2^i."""
    return 4 ** torch.arange(16, device=device)

"""The transform of chunks: a float32 DCT of what is a node's own, an exact integer inverse for what
all nodes have equal.

D is the orthonormal 64-point DCT-II: D[k, n] = sqrt(2/64) * cos(pi * (2n + 1) * k / 128), row 0
divided by sqrt(2). The forward transform serves what is a node's own, whose precision no other
node depends on.

The inverse decides what the parameters become, so it must give the same bits everywhere. Video
codecs met this problem (a decoder drifts from its encoder when each rounds its float inverse DCT in
its own way) and solved it in integers, as here:

    T  = round(128 * sqrt(32) * D)       |T| <= 128; no entry is nearer than 0.009 to a half
    S' = S >> s, to nearest-even         per chunk the least s with |S'| <= 2047
    Y  = T^T S'                          |Y| <= 5243 * 2047 < 2^24
    Y' = Y >> t, to nearest-even         per chunk the least t with |Y'| <= 2047
    Z  = Y' T                            |Z| <= 5243 * 2047 < 2^24
    U  = sign(Z)

5243 is the largest sum of |T| down a column. All tensors are float32 and hold integers: below 2^24
float32 is exact, and so is every product and every partial sum, in whatever order a library adds.
Operands of 11 significant bits also survive TF32. They do not survive bf16, to which a user may
have permitted float32 products to fall (`torch.set_float32_matmul_precision("medium")`, autocast);
`exact_products` rules that out.

Every stage is one plain product over all chunks of a strip. None needs a transposing copy, because
coefficients are kept transposed, column before row: C^T = (D X^T) D^T. The product of D with the
chunks' rows [n * 64, 64], transposed, comes out as [64 columns, n * 64 rows], which is [64 * n, 64]
for the next one; and so back.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

from node.exact.kernels.constants import OPERAND_MAX
from protocol.limits import CHUNK_SIDE

_SIDE_BITS = CHUNK_SIDE.bit_length() - 1

Indices = TypeVar("Indices", Tensor, npt.NDArray[Any])

_SHIFTS = 14
"""The most halvings that an integer below 2^24 needs to come to OPERAND_MAX."""

_HAS_BACKEND_PRECISION = hasattr(torch.backends, "fp32_precision")
"""Since torch 2.9 each backend has its own setting, and reading the old global one may raise."""


def forward(chunks: Tensor) -> Tensor:
    """Coefficients (D X D^T)^T of contiguous chunks X [n, 64, 64]: a view [n, 64, 64] in
    `forward_dtype`.
    """
    dtype = forward_dtype(chunks.device)
    matrix = dct_matrix(chunks.device).to(dtype)
    columns = product(
        matrix, _rows(chunks.to(dtype))
    )  # D X^T of all chunks side by side: [64, n * 64]
    return _by_chunk(product(_rows(columns), matrix))


def forward_dtype(device: torch.device) -> torch.dtype:
    """Float32, or bfloat16 on a processor that multiplies bfloat16 faster: it keeps eight bits, and
    a gradient is known far less well than that.
    """
    return torch.bfloat16 if device.type == "cpu" and bfloat16_is_faster() else torch.float32


def inverse_signs_(sums: Tensor, sum_max: int, *, may_look: bool = True) -> Tensor:
    """Replace transposed vote sums S^T [n, 64, 64], contiguous, by U in {-1, 0, +1}; returns it.

    `sums` holds integers of magnitude up to `sum_max`, below 2^24, as float32. `may_look` is that
    of `shift_`. Call it under `exact_products`.
    """
    if sum_max > OPERAND_MAX:
        shift_(sums, may_look=may_look)
    torch.clamp(
        integer_inverse(sums, may_look=may_look)[0], -1, 1, out=sums
    )  # the sign of whole numbers
    # A library may leave -0 or +0 where Z is zero; adding +0 makes both +0, so that parameters
    # that are -0 keep their bits.
    return sums.add_(0.0)


def integer_inverse(operands: Tensor, *, may_look: bool = True) -> tuple[Tensor, Tensor]:
    """(Z, 2^t), [n, 64, 64] and [n, 1, 1], of transposed whole numbers up to 2047, contiguous
    [n, 64, 64].
    """
    matrix = integer_matrix(operands.device).T
    halfway = product(matrix, _rows(operands))  # Y = T^T S of all chunks side by side: [64, n * 64]
    powers = shift_(_by_chunk(halfway), may_look=may_look)
    return _by_chunk(product(_rows(halfway), matrix)), powers


def transposed(indices: Indices) -> Indices:
    """Indices of the same entries in the transposed chunk; an index is row * 64 + column."""
    return (indices & CHUNK_SIDE - 1) << _SIDE_BITS | indices >> _SIDE_BITS


def product(left: Tensor, right: Tensor) -> Tensor:
    """The product left @ right.T of [m, 64] and [n, 64] of one dtype: contiguous [m, n]."""
    linear = _linear_of_onednn() if left.device.type == "cpu" else None
    if linear is None:
        return torch.mm(left, right.T)
    found: Tensor = linear(left, right, None, "none", [], "")
    return found


@cache
def _linear_of_onednn() -> Callable[..., Tensor] | None:
    """Product x @ w.T of oneDNN, where it should be faster than torch.mm and is there and right.

    On an AVX-512 processor that is not Intel's, torch.mm, which is MKL's, reached half the rate of
    oneDNN, which torch contains as well. Its operator is not public, so it is tried first, and left
    if it has changed. Whole numbers come out the same of either.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    matrix = integer_matrix(torch.device("cpu"))
    try:
        with exact_products(matrix.device):
            right = operator is not None and torch.equal(
                operator(matrix, matrix, None, "none", [], ""), matrix @ matrix.T
            )
    except (RuntimeError, TypeError):
        return None
    return operator if right else None


@cache
def bfloat16_is_faster() -> bool:
    """Whether this processor has instructions for bfloat16, and oneDNN's product, which uses them,
    is available.
    """
    capabilities: dict[str, Any] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # older torch cannot tell
    return _linear_of_onednn() is not None and bool(capabilities.get("avx512_bf16"))


@cache
def dct_matrix(device: torch.device) -> Tensor:
    """D, float32 [64, 64]."""
    matrix = torch.tensor(_cosines(), dtype=torch.float64, device="cpu") / math.sqrt(CHUNK_SIDE / 2)
    return matrix.to(device, torch.float32)


@cache
def integer_matrix(device: torch.device) -> Tensor:
    """T, integers as float32 [64, 64].

    128 * sqrt(32) * D is 128 times the cosines. A double's error of 1e-14 cannot move one across
    a half.
    """
    rounded = [[float(round(128 * cosine)) for cosine in row] for row in _cosines()]
    return torch.tensor(rounded, dtype=torch.float32, device=device)


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast, and float32 products in float32; the user's settings come back
    afterwards.
    """
    with torch.no_grad(), torch.autocast(device.type, enabled=False), _FULL_PRECISION:
        yield


class _FullPrecision:
    """Holds torch's process-wide precision setting at its highest while any thread is inside."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._before: tuple[str, ...] = ()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = _precision()
                _set_precision(("ieee", "ieee") if _HAS_BACKEND_PRECISION else ("highest",))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                _set_precision(self._before)


_FULL_PRECISION = _FullPrecision()


def _precision() -> tuple[str, ...]:
    """The setting of float32 products in torch."""
    if _HAS_BACKEND_PRECISION:
        return tuple(matmul.fp32_precision for matmul in _backends())
    return (torch.get_float32_matmul_precision(),)


def _set_precision(precision: tuple[str, ...]) -> None:
    """Make `_precision()` return this; a backend that would inherit it inherits again."""
    if not _HAS_BACKEND_PRECISION:
        torch.set_float32_matmul_precision(*precision)
        return
    for matmul, wanted in zip(_backends(), precision, strict=True):
        matmul.fp32_precision = "none"
        if matmul.fp32_precision != wanted:
            matmul.fp32_precision = wanted


def _backends() -> tuple[Any, Any]:
    """The backends whose float32 products have a setting; torch's types do not know it."""
    return torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def shift_(integers: Tensor, *, may_look: bool = True) -> Tensor:
    """Halve each chunk of [n, 64, 64] the least number t of times that brings it to
    |.| <= OPERAND_MAX.

    Returns 2^t, float32 [n, 1, 1]. Halves round to even; the bound is odd, so that a tie at it goes
    to the even 2048. With `may_look` a look at the values spares work where nothing has to be
    halved; on an accelerator it would wait for the device.
    """
    if may_look and _within(integers, OPERAND_MAX):
        return torch.ones(len(integers), 1, 1, dtype=torch.float32, device=integers.device)
    peak = torch.maximum(integers.amax((1, 2)), -integers.amin((1, 2)))  # [n]
    # (2047 + 1/2) 2^s is the least magnitude that s halvings still round above the bound.
    least = _constants(
        tuple((OPERAND_MAX + 0.5) * 2.0**shift for shift in range(_SHIFTS)), integers.device
    )
    shift = torch.bucketize(peak, least, right=True)
    integers.mul_(_powers_of_two(-1, integers.device)[shift, None, None]).round_()
    return _powers_of_two(1, integers.device)[shift, None, None]


def _within(integers: Tensor, bound: int) -> bool:
    """Whether no magnitude exceeds the bound. torch.aminmax would take twice the time of both
    looks.
    """
    return bool(integers.amax() <= bound and integers.amin() >= -bound)


def _powers_of_two(sign: int, device: torch.device) -> Tensor:
    """2^(sign * i) for i up to _SHIFTS, float32."""
    return _constants(tuple(2.0 ** (sign * power) for power in range(_SHIFTS + 1)), device)


@cache
def _constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """float32 [len(values)] on a device, made once."""
    return torch.tensor(values, dtype=torch.float32, device=device)


def _cosines() -> list[list[float]]:
    """sqrt(32) * D in double precision."""
    rows = [
        [math.cos(math.pi * (2 * n + 1) * k / (2 * CHUNK_SIDE)) for n in range(CHUNK_SIDE)]
        for k in range(1, CHUNK_SIDE)
    ]
    return [[math.sqrt(0.5)] * CHUNK_SIDE, *rows]


def _rows(contiguous: Tensor) -> Tensor:
    """Anything contiguous as [n * 64, 64]: one large product instead of n small ones."""
    return contiguous.view(-1, CHUNK_SIDE)


def _by_chunk(side_by_side: Tensor) -> Tensor:
    """View [n, 64, 64] of a contiguous tensor as [64, n, 64]."""
    return side_by_side.view(CHUNK_SIDE, -1, CHUNK_SIDE).transpose(0, 1)

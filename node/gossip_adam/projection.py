"""The projection of a node's parameters onto the few numbers of its report.

Each parameter is added, with a sign, to one of the numbers; both are drawn by a hash of its place,
so every node has the same projection and nothing is stored (Charikar, Chen, Farach-Colton, "Finding
frequent items in data streams", 2002: a count sketch of one row). The expected square of the result
is the square of the input: the signs cancel all cross terms.
"""

import torch
from torch import Tensor

from protocol.mixing.consensus import PROJECTION_SIZE

_PIECE = 1 << 20
"""Parameters hashed at once, which bounds the memory."""

_MULTIPLIERS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""Those of SplitMix64 as signed numbers (Steele, Lea, Flood, 2014)."""


def project(values: Tensor) -> Tensor:
    """float64 [PROJECTION_SIZE] on the CPU. values: [numbers], of a float dtype."""
    flat = values.detach().flatten()
    result = torch.zeros(PROJECTION_SIZE, dtype=torch.float64, device=flat.device)
    for first in range(0, len(flat), _PIECE):
        piece = flat[first : first + _PIECE].double()
        hashed = _hash(torch.arange(first, first + len(piece), device=flat.device))
        signs = (hashed >> 32 & 1) * 2 - 1
        result.index_add_(0, hashed & PROJECTION_SIZE - 1, piece * signs)
    return result.cpu()


def _hash(places: Tensor) -> Tensor:
    """SplitMix64 of each place; int64, whose products wrap around."""
    step, first, second = _MULTIPLIERS
    mixed = (places + 1) * step
    mixed = (mixed ^ _shifted(mixed, 30)) * first
    mixed = (mixed ^ _shifted(mixed, 27)) * second
    return mixed ^ _shifted(mixed, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shifted to the right as if unsigned."""
    return (values >> bits) & ((1 << 64 - bits) - 1)

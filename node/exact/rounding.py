"""float32 to bfloat16 at random: up or down, so that the mean stays.

bfloat16 is the upper half of float32, so the lower half says how near the upper neighbour is: a
random number of 16 bits is added, and what does not carry is cut off. A number that bfloat16 has
stays as it is. To the nearest, a sum of many small changes would stand still at the first one below
half a step; rounded at random it moves by all of them, on average.

What is kept in bfloat16 is one node's own, and no two nodes need the same random bits.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

STRIP_ENTRIES = 2**20
"""Entries that are worked on at a time where float32 copies of a long tensor would be large."""


def strips_of(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of the same entries of contiguous tensors of one size, STRIP_ENTRIES at a time."""
    yield from zip(*(torch.split(each.view(-1), STRIP_ENTRIES) for each in tensors), strict=True)


def row_strips_of(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same of matrices with as many rows, the first one the widest: whole rows."""
    rows = max(1, STRIP_ENTRIES // tensors[0].shape[1])
    yield from zip(*(torch.split(each, rows) for each in tensors), strict=True)


class Rounding:
    """Random bits on one device, from a seed."""

    def __init__(self, device: torch.device | str, seed: int = 0) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)

    def into(self, target: Tensor, exact: Tensor) -> None:
        """Write float32 `exact`, contiguous, which it takes to pieces, to a bfloat16 tensor of its
        shape. A float32 one gets it as it is; it may be the same memory.
        """
        if target.dtype == torch.float32:
            target.copy_(exact)
            return
        entries = exact.numel()
        words = torch.empty(-(-entries // 4), dtype=torch.int64, device=exact.device)
        noise = words.random_(-(2**63), None, generator=self._generator).view(torch.int16)[:entries]
        bits = exact.view(torch.int32)
        bits.add_(noise.view(bits.shape)).add_(1 << 15).bitwise_right_shift_(16)
        target.view(torch.int16).copy_(bits)

"""float32 to bfloat16 at random: up or down, so that the mean stays.

bfloat16 is the upper half of float32, so the lower half says how near the upper neighbour is: a
random number of 16 bits is added, and what does not carry is cut off. A number that bfloat16 has
stays as it is. To the nearest, a sum of many small changes would stand still at the first one below
half a step; rounded at random it moves by all of them, on average.

What is kept in bfloat16 is one node's own, and no two nodes need the same random bits. They are a
function of a seed, of what is rounded and of the place in it, so it does not matter in which order
things are rounded, in which parts, or by which of a node's ranks: the sum of a key and a place goes
through a mixing function of 64 bits (after Steele, Lea, Flood, OOPSLA 2014).
"""

import hashlib
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
        self._device, self._seed = torch.device(device), seed

    def into(
        self, target: Tensor, exact: Tensor, *what: int | str, rows: Tensor | None = None
    ) -> None:
        """Write float32 `exact`, contiguous, which it takes to pieces, to a bfloat16 tensor of its
        shape. A float32 one gets it as it is; it may be the same memory.

        `what` names what is rounded, another one each time. `rows`, int64 [n], are the places of
        its rows in that, where it is not the whole; rows then have a multiple of four entries.
        """
        if target.dtype == torch.float32:
            target.copy_(exact)
            return
        bits = exact.view(torch.int32)
        noise = self._noise(exact.numel(), what, rows).view(bits.shape)
        bits.add_(noise).add_(1 << 15).bitwise_right_shift_(16)
        target.view(torch.int16).copy_(bits)

    def _noise(self, entries: int, what: tuple[int | str, ...], rows: Tensor | None) -> Tensor:
        """int16 [entries], four of each mixed word."""
        digest = hashlib.sha256(repr((self._seed, *what)).encode()).digest()
        key = int.from_bytes(digest[:8], "little", signed=True)
        if rows is None:
            words = torch.arange(-(-entries // 4), device=self._device)
        else:
            width = entries // 4 // max(1, len(rows))
            words = rows[:, None] * width + torch.arange(width, device=self._device)
        words.mul_(_STEP).add_(key)
        for shift, factor in _MIXES:  # torch's shifts keep the sign
            words.bitwise_xor_((words >> shift).bitwise_and_(2 ** (64 - shift) - 1)).mul_(factor)
        return words.view(torch.int16).view(-1)[:entries]


def _signed(word: int) -> int:
    """The same 64 bits as torch has them."""
    return word - 2**64 if word >= 2**63 else word


_STEP = _signed(0x9E3779B97F4A7C15)
_MIXES = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)), (31, 1))
"""Shifts and factors of splitmix64."""

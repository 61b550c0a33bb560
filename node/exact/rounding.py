"""float32 to bfloat16 at random: up or down, so that the mean stays.

bfloat16 is the upper half of float32, so the lower half says how near the upper neighbour is: a
random number of 16 bits is added, and what does not carry is cut off. A number that bfloat16 has
stays as it is. To the nearest, a sum of many small changes would stand still at the first one below
half a step; rounded at random it moves by all of them, on average.

What is kept in bfloat16 is one node's own, and no two nodes need the same random bits. They are a
function of a seed, of what is rounded and of the place in it, so it does not matter in which order
things are rounded, or by which of a node's ranks: the sum of a key and a place goes through a
mixing function of 64 bits (after Steele, Lea, Flood, OOPSLA 2014).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from node.exact.backend import is_accelerator

STRIP_ENTRIES = 2**20
"""Entries that are worked on at a time where float32 copies of a long tensor would be large."""

CARD_STRIP_ENTRIES = 2**22
"""The same on a card, which is done with fewer before the host can tell it the next ones."""


def strips_of(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of the same entries of contiguous tensors of one size, as many as a strip has."""
    entries = _strip_entries(tensors[0])
    yield from zip(*(torch.split(each.view(-1), entries) for each in tensors), strict=True)


def row_strips_of(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same of matrices with as many rows, the first one the widest: whole rows."""
    rows = max(1, _strip_entries(tensors[0]) // tensors[0].shape[1])
    yield from zip(*(torch.split(each, rows) for each in tensors), strict=True)


def _strip_entries(tensor: Tensor) -> int:
    return CARD_STRIP_ENTRIES if is_accelerator(tensor.device) else STRIP_ENTRIES


class Rounding:
    """Random bits on one device, from a seed."""

    def __init__(self, device: torch.device | str, seed: int = 0) -> None:
        self._device, self._seed = torch.device(device), seed
        self._generator = torch.Generator(self._device)

    def into(
        self, target: Tensor, exact: Tensor, *what: int | str, rows: Tensor | None = None
    ) -> None:
        """Write float32 `exact`, contiguous, which it takes to pieces, to a bfloat16 tensor of its
        shape. A float32 one gets it as it is; it may be the same memory.

        `what` names what is rounded, another one each time. `rows`, int64 [n], are the places of
        its rows in that, where it is not the whole; rows then have a multiple of four entries.
        """
        if not _is_exact(target, exact):
            _cut(target, exact, self._noise(exact.numel(), what, rows))

    def into_each(self, pairs: Sequence[tuple[Tensor, Tensor]], *what: int | str) -> None:
        """The same of several pairs of target and exact, which have one name."""
        light = [pair for pair in pairs if not _is_exact(*pair)]
        sizes = [exact.numel() for _, exact in light]
        noise = self._noise(sum(sizes), what, None)
        for (target, exact), part in zip(light, torch.split(noise, sizes), strict=True):
            _cut(target, exact, part)

    def places(self, sizes: Mapping[str, int]) -> Tensor:
        """int64 [entries]: a word for each entry of small tensors, by name, one behind the other.
        An entry's does not depend on the tensors beside its own.
        """
        words = [
            torch.arange(size, device=self._device).mul_(_STEP).add_(self._key((name,)))
            for name, size in sizes.items()
        ]
        return torch.cat(words)

    def into_at(
        self, pairs: Sequence[tuple[Tensor, Tensor]], places: Tensor, *what: int | str
    ) -> None:
        """The same of at most four pairs of `places`' size, an entry of each by one word."""
        lanes = _mixed(places + self._key(what)).view(torch.int16).view(-1, 4)
        for lane, (target, exact) in enumerate(pairs):
            if not _is_exact(target, exact):
                _cut(target, exact, lanes[:, lane])

    def _key(self, what: tuple[int | str, ...]) -> int:
        digest = hashlib.sha256(repr((self._seed, *what)).encode()).digest()
        return int.from_bytes(digest[:8], "little", signed=True)

    def _noise(self, entries: int, what: tuple[int | str, ...], rows: Tensor | None) -> Tensor:
        """int16 [entries], four of each mixed word; of a card's own generator where the tensor is
        whole, as one kernel in place of fourteen.
        """
        if rows is None and is_accelerator(self._device):
            drawn = torch.empty(entries, dtype=torch.int16, device=self._device)
            self._generator.manual_seed(self._key(what))
            return drawn.random_(-(2**15), 2**15, generator=self._generator)
        if rows is None:
            words = torch.arange(-(-entries // 4), device=self._device)
        else:
            width = entries // 4 // max(1, len(rows))
            words = rows[:, None] * width + torch.arange(width, device=self._device)
        words.mul_(_STEP).add_(self._key(what))
        return _mixed(words).view(torch.int16).view(-1)[:entries]


def _is_exact(target: Tensor, exact: Tensor) -> bool:
    """Whether a target is float32; then it gets it as it is."""
    if target.dtype == torch.float32:
        target.copy_(exact)
    return target.dtype == torch.float32


def _cut(target: Tensor, exact: Tensor, noise: Tensor) -> None:
    """Write `exact`, plus noise below a step of bfloat16, cut off."""
    bits = exact.view(torch.int32)
    bits.add_(noise.view(bits.shape)).add_(1 << 15).bitwise_right_shift_(16)
    target.view(torch.int16).copy_(bits)


def _mixed(words: Tensor) -> Tensor:
    """The same words, each mixed."""
    for shift, factor in _MIXES:  # torch's shifts keep the sign
        words.bitwise_xor_((words >> shift).bitwise_and_(2 ** (64 - shift) - 1))
        if factor:
            words.mul_(factor)
    return words


def _signed(word: int) -> int:
    """The same 64 bits as torch has them."""
    return word - 2**64 if word >= 2**63 else word


_STEP = _signed(0x9E3779B97F4A7C15)
_MIXES = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)), (31, None))
"""Shifts and factors of splitmix64."""

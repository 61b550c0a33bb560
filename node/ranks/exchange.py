"""Exchanges of tensors between the ranks, in place, one after the other or all at once."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from node.ranks.line import RankLine


class TensorExchange:
    """One rank's exchanges. All ranks make the same ones in the same order."""

    def __init__(
        self, line: RankLine, device: torch.device, wait: Callable[[Iterable[Any]], None]
    ) -> None:
        """`wait` begins each of torch's exchanges, and waits until all have ended."""
        self._line, self._device, self._wait = line, device, wait

    @property
    def rank(self) -> int:
        return self._line.place.rank

    @property
    def ranks(self) -> int:
        """Ranks of the node."""
        return self._line.place.count

    def spread(self, tensors: Iterable[tuple[Tensor, int]]) -> None:
        """Send each tensor of a rank to all, which receive it in place."""
        self._wait(self._line.broadcast(tensor, source) for tensor, source in tensors)

    def add_up(self, tensors: Iterable[tuple[Tensor, int]]) -> None:
        """Add everybody's tensors to those of a rank each; on the others they are spent."""
        self._wait(self._line.reduce(tensor, target) for tensor, target in tensors)

    def tell(self, tensor: Tensor, source: int) -> Tensor:
        """Send a rank's tensor, of any type and on any device, to all, which have one like it."""
        if tensor.numel():
            held = tensor.contiguous()
            raw = held.view(-1).view(torch.uint8)
            there = raw.to(self._device)
            self.spread([(there, source)])
            if self.rank != source and there.data_ptr() != raw.data_ptr():
                raw.copy_(there)
        return tensor

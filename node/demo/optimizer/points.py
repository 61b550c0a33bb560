"""Gradients of parameters with fewer than two dimensions, made even: of all of them at once.

`gradient_scaling` judges the entries of such a tensor one by one, and works on one tensor after the
other. A model may have thousands of them, of a few entries each. Here they lie end to end in one
line, and every step of the formula is one operation on the line:

    r <- b r + (1 - b) * G^2             of each entry
    c <- b c + (1 - b) * mean of G^2     of each parameter, as are mean(r) and t
    G <- G / sqrt(r * c / mean(r) / (1 - b^t))
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from node.demo.gradient_scaling import MEAN_LEAST, MEMORY, ROW_LEAST, Scale


class PointScaling:
    """The scaling of one author's gradients of small parameters that lie end to end."""

    def __init__(self, scale: Scale, lengths: Sequence[int], device: torch.device) -> None:
        """lengths: entries of each parameter."""
        self._scale = scale
        parameters, entries = len(lengths), sum(lengths)
        remembered = [parameters, parameters, entries] if scale == "even" else [0, 0, 0]
        self.state = torch.zeros(sum(remembered), dtype=torch.float32, device=device)
        """float32: the counts of all parameters' gradients, their mean squares, and the squares of
        each entry; empty but with "even"."""
        self._seen, self._means, self._squares = torch.split(self.state, remembered)
        self._lengths = torch.tensor(lengths, dtype=torch.int64, device=device)
        owners = torch.arange(parameters, device=device)
        self._owners = torch.repeat_interleave(owners, self._lengths, output_size=entries)
        """int64 [entries]: to which parameter each entry belongs."""

    def scale_(self, line: Tensor, present: Tensor | None) -> None:
        """Scale a step's gradients, float32 [entries], in place, and remember their sizes.

        present: bool [parameters], which of them have a gradient; None: all.
        """
        if self._scale == "even":
            self._even_out_(line, present)

    def pieces(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Views of what is remembered of each parameter; none but with "even"."""
        if self._scale != "even":
            return []
        squares = torch.split(self._squares, self._lengths.tolist())
        each = torch.split(self._seen, 1), torch.split(self._means, 1), squares
        return [*zip(*each, strict=True)]

    def _even_out_(self, line: Tensor, present: Tensor | None) -> None:
        squares = line.square()
        if present is None:
            self._seen.add_(1)
            self._means.lerp_(self._mean(squares), 1 - MEMORY)
            self._squares.lerp_(squares, 1 - MEMORY)
        else:
            share = present * (1 - MEMORY)  # 0 leaves all as it is
            self._seen.add_(present)
            self._means.lerp_(self._mean(squares), share)
            self._squares.lerp_(squares, share[self._owners])
        middle = self._mean(self._squares).clamp_min_(MEAN_LEAST)
        sizes = (self._means / (1 - MEMORY ** self._seen.clamp_min(1))).clamp_min_(MEAN_LEAST)
        shares = (self._squares / middle[self._owners]).clamp_min_(ROW_LEAST)
        line.mul_(shares.rsqrt_()).mul_(sizes.rsqrt_()[self._owners])

    def _mean(self, line: Tensor) -> Tensor:
        """float32 [parameters]: the mean of each one's entries."""
        sums = torch.zeros(len(self._lengths), dtype=torch.float32, device=line.device)
        return sums.index_add_(0, self._owners, line).div_(self._lengths)

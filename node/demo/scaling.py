"""How gradients enter the momentum: as they come, each tensor scaled to one size, or made even by row and column.

Momentum adds up gradients, so whatever is large in them rules what is sent. With "unit" each tensor has a root mean
square of one, so that no step weighs more than another. Within a tensor too some rows are always large, others hardly
ever come up. Adam divides each entry by the root of its recent mean square, which takes a second tensor of the
parameter's size; Adafactor (Shazeer, Stern, arXiv 1804.04235) keeps the recent means of rows and columns alone, and
"even" does so:

    r <- b r + (1 - b) * mean of G^2 along each row         c the same along each column
    v_ij = r_i c_j / mean(r) / (1 - b^t)                    after t gradients of this tensor
    G_ij <- G_ij / sqrt(v_ij)

A tensor of one dimension is a matrix of one column, so its entries are judged one by one. All this is a node's own
business: nothing here needs equal bits on two nodes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from node.demo.engine import GradientError
from protocol.errors import LocalProtocolError

Scale = Literal["plain", "unit", "even"]
"""How each author's gradients enter its momentum."""

SCALES: tuple[Scale, ...] = get_args(Scale)

MEMORY = 0.95
"""b. Without memory (b = 0) a network learned worse: docs/results/parity.md."""

MEAN_LEAST, ROW_LEAST = 1e-30, 1e-8
"""Least column mean, and least share that a row has of the mean of all: nothing is blown up from next to nothing."""


SQUARED_MAX = 1e15
"""Largest entry whose squares have a finite mean, in tensors of any size."""


@dataclass(frozen=True, slots=True)
class _Means:
    """Views of one tensor's part of the state."""

    seen: Tensor
    """[1]: how many gradients there were of it."""

    rows: Tensor
    columns: Tensor


class GradientScaling:
    """One author's: with "even" it remembers the recent mean squares of every parameter's gradients."""

    def __init__(self, scale: Scale, shapes: Mapping[str, tuple[int, ...]], device: torch.device | str) -> None:
        self._scale = scale
        remembered = sorted(shapes.items()) if scale == "even" else []
        lengths = [length for _, shape in remembered for length in (1, shape[0] if shape else 1, math.prod(shape[1:]))]
        self.state = torch.zeros(sum(lengths), device=device)
        """float32 [n]: of each parameter, by name, how many gradients there were, the means of rows and of columns;
        nothing but with "even"."""
        views = iter(torch.split(self.state, lengths))
        self._means = {name: _Means(next(views), next(views), next(views)) for name, _ in remembered}

    def scale_(self, gradients: Mapping[str, Tensor | None]) -> None:
        """Scale a step's gradients in place, and take note of them; None is left out, zeros stay zero.

        `GradientError`, before anything changed, for one whose squares have no finite mean. Waits for the device
        once, or never with "plain"."""
        named = {name: tensor.detach() for name, tensor in gradients.items() if tensor is not None and tensor.numel()}
        match self._scale:
            case "unit":
                _to_unit_(named)
            case "even":
                self._even_out_(named)

    def load(self, state: Tensor) -> None:
        """Take over the state of an earlier process; `LocalProtocolError` for that of another model."""
        if state.shape != self.state.shape:
            raise LocalProtocolError(f"expected gradient sizes of {len(self.state)} numbers, got {tuple(state.shape)}")
        self.state.copy_(state)

    def _even_out_(self, gradients: Mapping[str, Tensor]) -> None:
        found = {name: _mean_squares(tensor) for name, tensor in gradients.items()}
        _require_finite({name: rows.mean() for name, (rows, _) in found.items()})
        for name, tensor in gradients.items():
            means, (new_rows, new_columns) = self._means[name], found[name]
            means.seen.add_(1)
            means.rows.lerp_(new_rows, 1 - MEMORY)
            means.columns.lerp_(new_columns, 1 - MEMORY)
            share = means.rows / means.rows.mean().clamp_min(MEAN_LEAST)
            columns = (means.columns / (1 - MEMORY**means.seen)).clamp_min(MEAN_LEAST)
            rows, columns = share.clamp_min(ROW_LEAST).rsqrt_(), columns.rsqrt_()
            if tensor.ndim:
                tensor.mul_(rows.view(-1, *[1] * (tensor.ndim - 1))).mul_(columns.view(tensor.shape[1:]))
            else:
                tensor.mul_(rows[0] * columns[0])


def _to_unit_(gradients: Mapping[str, Tensor]) -> None:
    norms = {name: torch.linalg.vector_norm(tensor.float()) for name, tensor in gradients.items()}
    for tensor, norm in zip(gradients.values(), _require_finite(norms), strict=True):
        tensor.mul_(math.sqrt(tensor.numel()) / norm if norm else 0.0)


def _mean_squares(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows and of columns."""
    squares = gradient.float().reshape(len(gradient) if gradient.ndim else 1, -1).square()
    return squares.mean(1), squares.mean(0)


def _require_finite(sizes: Mapping[str, Tensor]) -> list[float]:
    """The size of each gradient, a scalar on the device."""
    found = torch.stack(list(sizes.values())).tolist() if sizes else []
    for name, size in zip(sizes, found, strict=True):
        if not math.isfinite(size):
            raise GradientError(f"expected gradients whose squares have a finite mean, got {name} with {size}")
    return found

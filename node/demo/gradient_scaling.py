"""How gradients enter the momentum: plain, or made even.

Momentum adds up gradients, so large ones decide what is sent: those of a few steps, and within a
tensor those of a few rows, which are always large while others rarely are. Adam divides each entry
by the root of its recent mean square, which takes a second tensor of the parameter's size.
Adafactor (Shazeer, Stern, arXiv 1804.04235) keeps the recent means of rows and columns alone, and
so does "even":

    r <- b r + (1 - b) * mean of G^2 along each row         c the same along each column
    v_ij = r_i c_j / mean(r) / (1 - b^t)                    after t gradients of this tensor
    G_ij <- G_ij / sqrt(v_ij)

A tensor of one dimension is a matrix of one column, so its entries are judged one by one. On an
accelerator tensors of one shape are scaled together, so that a deep model takes no more operations
than a shallow one. Nothing here needs equal bits on two nodes.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from node.demo.backend import is_accelerator
from node.demo.engine import GradientError
from protocol.errors import LocalProtocolError

Scale = Literal["plain", "even"]
"""Ways in which an author's gradients enter its momentum."""

SCALES: tuple[Scale, ...] = get_args(Scale)

MEMORY = 0.95
"""b. Without memory (b = 0) a network learned worse: docs/results/notes."""

MEAN_LEAST, ROW_LEAST = 1e-30, 1e-8
"""Least column mean, and least share that a row has of the mean of all rows: tiny gradients are not
blown up."""

TOGETHER_PARTS = 4
"""Bound on the entries that are scaled together, as a fraction of all: they and their squares are
copied."""

SQUARED_MAX = 1e15
"""Largest entry whose squares have a finite mean, in tensors of any size."""


class GradientScaling:
    """The scaling of one author's gradients; with "even" it remembers the recent mean squares of
    every parameter's gradients.
    """

    def __init__(
        self,
        scale: Scale,
        shapes: Mapping[str, tuple[int, ...]],
        device: torch.device | str,
        *,
        together: bool | None = None,
    ) -> None:
        """together: whether tensors of one kind are scaled in one launch, as on an accelerator."""
        self._scale = scale
        remembered = sorted(shapes.items()) if scale == "even" else []
        lengths = [
            length
            for _, shape in remembered
            for length in (1, shape[0] if shape else 1, math.prod(shape[1:]))
        ]
        self.state = torch.zeros(sum(lengths), dtype=torch.float32, device=device)
        """float32 [n]: for each parameter, by name, the count of its gradients and the means of its
        rows and columns; empty but with "even"."""
        views = iter(torch.split(self.state, lengths))
        self._means = {name: (next(views), next(views), next(views)) for name, _ in remembered}
        together = is_accelerator(self.state.device) if together is None else together
        self._alike = _by_kind if together else _one_by_one

    def scale_(self, gradients: Mapping[str, Tensor | None]) -> None:
        """Scale a step's gradients in place, and remember their sizes; None is left out, zeros stay
        zero.

        `GradientError`, before anything changed, for a gradient whose squares have no finite mean.
        Waits for the device once, or never with "plain".
        """
        named = {
            name: tensor.detach()
            for name, tensor in gradients.items()
            if tensor is not None and tensor.numel()
        }
        if self._scale == "even":
            self._even_out_(named)

    def load(self, state: Tensor) -> None:
        """Take over the state of an earlier process; `LocalProtocolError` for that of another
        model.
        """
        if state.shape != self.state.shape:
            raise LocalProtocolError(
                f"expected gradient sizes of {len(self.state)} numbers, got {tuple(state.shape)}"
            )
        self.state.copy_(state)

    def carry_over(self, earlier: "GradientScaling") -> None:
        """Remember what an earlier scaling knew of the tensors that both have by one name."""
        for name in self._means.keys() & earlier._means.keys():
            for own, known in zip(self._means[name], earlier._means[name], strict=True):
                own.copy_(known)

    def _even_out_(self, gradients: Mapping[str, Tensor]) -> None:
        groups = self._alike(gradients)
        found = [
            _mean_squares(_together([_matrix(gradients[name]) for name in group]))
            for group in groups
        ]
        _require_finite([*chain(*groups)], [rows.mean(1) for rows, _ in found])
        for group, (new_rows, new_columns) in zip(groups, found, strict=True):
            kept = [*zip(*(self._means[name] for name in group), strict=True)]
            seen, rows, columns = now = [_together(each) for each in kept]
            seen.add_(1)
            rows.lerp_(new_rows, 1 - MEMORY)
            columns.lerp_(new_columns, 1 - MEMORY)
            for each, new in zip(kept, now, strict=True):
                _lay_back(each, new)
            shares = (rows / rows.mean(1, keepdim=True).clamp_min(MEAN_LEAST)).clamp_min(ROW_LEAST)
            sizes = (columns / (1 - MEMORY**seen)).clamp_min(MEAN_LEAST)
            matrices = _together([_matrix(gradients[name]) for name in group])
            matrices.mul_(shares.rsqrt_()[:, :, None]).mul_(sizes.rsqrt_()[:, None, :])
            _lay_back([gradients[name] for name in group], matrices)


# ---- tensors of one kind together: a launch for all of them


def _one_by_one(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    return [[name] for name in tensors]


def _by_kind(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Names of tensors of one shape and dtype, of which even a deep model has few kinds. A kind
    that would take too much memory at once comes in parts.
    """
    kinds: dict[tuple[torch.Size, torch.dtype], list[str]] = {}
    for name, tensor in tensors.items():
        kinds.setdefault((tensor.shape, tensor.dtype), []).append(name)
    entries = sum(tensor.numel() for tensor in tensors.values())
    groups = []
    for (shape, _), names in kinds.items():
        parts = min(-(-shape.numel() * len(names) * TOGETHER_PARTS // entries), len(names))
        bounds = [len(names) * part // parts for part in range(parts + 1)]
        groups += [names[low:high] for low, high in pairwise(bounds)]
    return groups


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor) if tensor.ndim else 1, -1)


def _together(tensors: Sequence[Tensor]) -> Tensor:
    """[n, ...] of n tensors of one shape; of one alone a view."""
    return torch.stack([*tensors]) if len(tensors) > 1 else tensors[0][None]


def _lay_back(tensors: Sequence[Tensor], together: Tensor) -> None:
    """Copy stacked tensors back into each of them; nothing to do where the stack is a view."""
    parts = [part.view(tensor.shape) for part, tensor in zip(together, tensors, strict=True)]
    if parts[0].data_ptr() != tensors[0].data_ptr():
        torch._foreach_copy_(list(tensors), parts)


def _mean_squares(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squares of rows and of columns, [n, rows] and [n, columns]."""
    squares = matrices.float().square()
    return squares.mean(2), squares.mean(1)


def _require_finite(names: Sequence[str], sizes: Sequence[Tensor]) -> None:
    """`GradientError` for the first gradient whose size, which is on the device, is NaN or
    infinite.
    """
    found: list[float] = torch.cat([*sizes]).tolist() if sizes else []
    for name, size in zip(names, found, strict=True):
        if not math.isfinite(size):
            raise GradientError(
                f"expected gradients whose squares have a finite mean, got {name} with {size}"
            )

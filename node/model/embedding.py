"""An embedding whose gradient is added where it is kept, row by row.

torch makes of the few rows that a pass touches a matrix as large as the embedding, zeros elsewhere,
and adds that to `.grad`. Where the embedding is the head as well, the head's matrix waits beside it
until both are summed:

    torch   head's matrix  +  embedding's matrix  ->  .grad      three times the embedding at once
    here    head's matrix  ->  .grad  <-  rows                   twice, and the rows

The sums are the same except for their order, which is local business as all gradients are.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from node.model.precision import gradient_of


class InPlaceEmbedding(nn.Embedding):
    """An embedding for `backward()` into `.grad`: `torch.autograd.grad` finds no weight of it."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            return super().forward(input)
        anchor = torch.empty(0, requires_grad=True, device="cpu")
        found: Tensor = _Rows.apply(self, input, anchor)  # type: ignore[no-untyped-call]
        return found


class _Rows(torch.autograd.Function):
    """The rows of some tokens. Of the inputs only an anchor asks for a gradient, and gets none: it
    makes `backward` be called.
    """

    @staticmethod
    def forward(ctx: Any, module: nn.Embedding, tokens: Tensor, anchor: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(tokens)
        return embedding(tokens, module.weight)

    @staticmethod
    def backward(ctx: Any, *changes: Tensor) -> tuple[None, None, None]:
        """changes: one tensor [..., width], the gradient of the rows."""
        (tokens,), weight = ctx.saved_tensors, ctx.module.weight
        rows, change = tokens.flatten(), changes[0].reshape(-1, weight.shape[1])
        if ctx.module.padding_idx is not None:  # its row is not trained as an embedding
            change = change * (rows != ctx.module.padding_idx)[:, None]
        add_rows(weight, rows, change)
        return None, None, None


def add_rows(weight: Tensor, rows: Tensor, change: Tensor) -> None:
    """Add to the gradient of a matrix that of some of its rows, int64 [rows]; one may come often.
    change: [rows, width].
    """
    gradient = gradient_of(weight)
    if gradient.dtype == torch.bfloat16:  # changes of one row are summed before they round
        rows, places = torch.unique(rows, return_inverse=True)
        sums = torch.zeros(len(rows), weight.shape[1], device=weight.device)
        change = sums.index_add_(0, places, change.float())
    gradient.index_add_(0, rows, change.to(gradient.dtype))


def is_plain(module: nn.Module) -> bool:
    """Whether a module is an embedding, and none of a class of its own or that scales its rows or
    gradients.
    """
    return type(module) is nn.Embedding and not (
        module.sparse or module.scale_grad_by_freq or module.max_norm
    )


def add_rows_in_place(model: nn.Module) -> None:
    """Make plain embeddings of a model such ones; others stay as they are."""
    for module in filter(is_plain, model.modules()):
        module.__class__ = InPlaceEmbedding

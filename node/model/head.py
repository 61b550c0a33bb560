"""The loss of a pass by pieces: its logits never stand whole.

Logits are far wider than what they are made of: 8 samples of 1024 tokens with a vocabulary of
50,257 are 1.6 GB, and their loss and its gradient take that again each. So the model hands out what
its head would take, and some tokens at a time go through the head, the loss and back:

    model -> hidden, whole | piece -> logits -> loss -> the piece's gradient, the head's | -> model

Nothing is computed twice, and sums differ from the whole pass's in their order alone. The head's
gradient goes where gradients are kept, piece by piece, and never stands beside it. torch has such a
loss since 2.13, `linear_cross_entropy`: on a CPU it took 1.8 times as long as the whole pass, and
holds a second matrix of the head's size.

The head must be a plain matrix, with or without a bias, whose output is the logits. What else a
model does to them shows in the first pass, and such a model makes them whole.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from node.exact.backend import is_accelerator
from node.model.precision import gradient_of
from protocol.planner.activations import PIECE_ENTRIES

_ALIGNED = 8
"""A card multiplies matrices quickly whose rows are as many, or have as many entries."""

_Piece = tuple[Tensor, Tensor, Tensor | None, Tensor]
"""Hidden states [tokens, width], the head's weight, its bias, targets int64 [tokens, 1]."""


def plain_head(model: nn.Module) -> nn.Linear | None:
    """The matrix that makes a model's logits; None where it cannot be told, or is no plain one."""
    try:
        head = model.get_output_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return None
    return head if type(head) is nn.Linear else None


class Untouched:
    """What a head would have taken, and whether a model would leave the head's output as it is."""

    def __init__(self) -> None:
        self._taken: list[tuple[Tensor, int]] = []

    def take(self, hidden: Tensor) -> Tensor:
        """Stands in for a head: hands on what it takes."""
        self._taken.append((hidden, hidden._version))
        return hidden

    def __call__(self, logits: Any) -> bool:
        """Whether these, a model's logits, are what its head hands out."""
        return [(id(logits), getattr(logits, "_version", 0))] == [
            (id(hidden), version) for hidden, version in self._taken
        ]


@contextlib.contextmanager
def left_out(head: nn.Linear) -> Iterator[Untouched]:
    """Meanwhile the head of a model hands on what it takes: the model's logits are that."""
    untouched = Untouched()
    head.__dict__["forward"] = untouched.take  # goes before the class's
    try:
        yield untouched
    finally:
        del head.__dict__["forward"]


@torch.no_grad()
def nats_by_pieces(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
    """Cross-entropy summed over all targets, scalar. hidden: [..., width], targets: int64 [...]."""
    return torch.stack([_likelihoods(*each)[1] for each in pieces(hidden, head, targets)]).sum()


@torch.no_grad()
def backward_by_pieces(
    hidden: Tensor, head: nn.Linear, targets: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(Cross-entropy summed over all targets, gradient of `hidden`). The gradient of the head is
    added to its `.grad`; both gradients are those of `scale` times the cross-entropy. Shapes as for
    `nats_by_pieces`.
    """
    change = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
    places = torch.split(change.flatten(0, -2), _rows(head, _product_dtype(head)))
    nats = []
    for place, each in zip(places, pieces(hidden, head, targets), strict=True):
        odds, found = _likelihoods(*each)
        nats.append(found)
        # The gradient of the logits: likelihoods, less one at what is expected.
        odds.exp_().scatter_add_(1, each[3], torch.full_like(odds[:, :1], -1.0))
        add_back(odds, each, head, place, scale)
        del odds  # before the next piece's are made
    return torch.stack(nats).sum(), change


def add_back(change: Tensor, each: _Piece, head: nn.Linear, place: Tensor, scale: float) -> None:
    """Write a piece's gradient to its `place`, and add the head's. change: that of the logits, and
    perhaps of some behind them.
    """
    piece, weight, *_ = each
    logits_change = change.to(piece.dtype)[:, : len(weight)]
    slices = _slices(weight)
    product = logits_change[:, slices[0]] @ weight[slices[0]]
    for rest in slices[1:]:
        product.addmm_(logits_change[:, rest], weight[rest])
    place.copy_(product.mul_(scale))
    if head.weight.requires_grad:
        kept = gradient_of(head.weight)
        if kept.dtype == piece.dtype:
            for rows in slices:
                kept[rows].addmm_(logits_change[:, rows].t(), piece, alpha=scale)
        else:  # in parts of the head, whose product in another type would stand beside it
            count = max(1, PIECE_ENTRIES // weight.shape[1])
            parts = torch.split(kept, count), torch.split(logits_change.t(), count)
            for part, rows_change in zip(*parts, strict=True):
                part.add_(rows_change @ piece, alpha=scale)
    if head.bias is not None and head.bias.requires_grad:
        total = logits_change.sum(0, dtype=head.bias.dtype)
        gradient_of(head.bias).add_(total, alpha=scale)


def _rows(head: nn.Linear, dtype: torch.dtype) -> int:
    """Tokens of a piece: more on a card in bfloat16, whose logits take half there and are never
    converted as a whole.
    """
    few = dtype.itemsize > 2 or not is_accelerator(head.weight.device)
    return max(1, (PIECE_ENTRIES if few else 3 * PIECE_ENTRIES // 2) // head.out_features)


def _product_dtype(head: nn.Linear) -> torch.dtype:
    """The type in which this device multiplies."""
    device = head.weight.device.type
    autocast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else head.weight.dtype


def pieces(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Iterator[_Piece]:
    """Some tokens at a time, in the type in which this device multiplies."""
    dtype = _product_dtype(head)
    weight, bias = (each if each is None else each.to(dtype) for each in (head.weight, head.bias))
    rows = _rows(head, dtype)
    parts = torch.split(hidden.flatten(0, -2), rows), torch.split(targets.flatten(), rows)
    for piece, expected in zip(*parts, strict=True):
        yield piece.to(dtype), weight, bias, expected[:, None]


def _likelihoods(
    piece: Tensor, weight: Tensor, bias: Tensor | None, expected: Tensor
) -> tuple[Tensor, Tensor]:
    """(Logarithms of likelihoods [tokens, vocabulary or more], cross-entropy summed), at least
    float32.
    """
    exact = torch.promote_types(piece.dtype, torch.float32)
    odds = _logits(piece, weight, bias).log_softmax(-1, dtype=exact)
    return odds, -odds.gather(1, expected).sum()


def _logits(piece: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits, followed by some without likelihood where rows that begin at multiples of some bytes
    are quicker.
    """
    slices = _slices(weight)
    if len(slices) == 1:
        return linear(piece, weight, bias)
    vocabulary = len(weight)
    logits = piece.new_empty(len(piece), -(-vocabulary // _ALIGNED) * _ALIGNED)
    logits[:, vocabulary:] = -torch.inf
    for rows in slices:
        torch.mm(piece, weight[rows].t(), out=logits[:, rows])
    if bias is not None:
        logits[:, :vocabulary] += bias
    return logits


def _slices(weight: Tensor) -> list[slice]:
    """The rows of a head that are multiplied at once: on a card those that it is quick with, and
    the few that are left.
    """
    vocabulary, odd = len(weight), len(weight) % _ALIGNED
    if not odd or odd == vocabulary or not is_accelerator(weight.device):
        return [slice(0, vocabulary)]
    return [slice(0, vocabulary - odd), slice(vocabulary - odd, vocabulary)]

"""Everybody's coefficients into the parameters, with the same bits on every node.

    S = sum_i w_i * q_i         whole numbers below 2^24: exact in float32 in any order
    U = sign(inverse(S))        whole numbers throughout: dct.py; or, of matrices, orthogonalised: orthogonalise.py
    P <- P * decay              rounded to float32
    P <- P - learning_rate * U  rounded to float32. The sign's product is +-learning_rate or 0, so a fused
                                multiply-subtract would give the same bits; the other is rounded by itself first

Chunks are independent, so the work is done strip by strip in two small buffers, and the result depends on
neither the strips nor threads, device or the order of contributions.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from node.demo.accelerator import is_accelerator, mover
from node.demo.chunks import ChunkLayout, strips
from node.demo.cpu_kernels import fused
from node.demo.dct import exact_products, inverse_signs_, strip_chunks_for
from node.demo.orthogonalise import inverse_orthogonal_
from node.demo.vote_sum import Contribution, Votes
from protocol.errors import LocalProtocolError
from protocol.limits import CHUNK_SIDE

Rule = Literal["sign", "orthogonal"]
"""What an update is of the sum of votes. Small parameters have the sign in any case."""

RULES: tuple[Rule, ...] = get_args(Rule)

GUESS_ONE, GUESS_MAX = 16, 127
"""A guess at an update is kept in sixteenths, in a byte."""


def apply(
    layout: ChunkLayout,
    parameters: Mapping[str, Tensor],
    contributions: Sequence[Contribution],
    learning_rate: float,
    decay: float,
    *,
    rule: Rule = "sign",
    strip_chunks: int | None = None,
) -> None:
    """Make one step: change `parameters`, float32 on one device, in place by a commit's contributions.

    `learning_rate` and `decay` are the commit's float32 values. `LocalProtocolError`, before anything
    changed, for anything that could make bits differ between nodes. Takes two strips of extra memory, six with the
    rule "orthogonal"; on an accelerator more, and all votes.
    """
    for name, tensor in parameters.items():
        if tensor.dtype != torch.float32:
            raise LocalProtocolError(f"expected {name} in float32, got {tensor.dtype}")
    for name, value in (("learning_rate", learning_rate), ("decay", decay)):
        if not math.isfinite(value) or float(np.float32(value)) != value:
            raise LocalProtocolError(f"expected a {name} that is a float32 value, got {value!r}")
    views = layout.views(parameters)
    update(layout, views, contributions, (learning_rate, decay), rule=rule, strip_chunks=strip_chunks)
    layout.write_back(views, parameters)


def update(
    layout: ChunkLayout,
    views: Mapping[str, Tensor],
    contributions: Sequence[Contribution],
    rates: tuple[float, float],
    *,
    rule: Rule = "sign",
    strip_chunks: int | None = None,
) -> None:
    """`apply` for views from `layout.views`, of any of the parameters and any float dtype.

    `rates` is (learning rate, decay), rounded to the dtype of each tensor's arithmetic.
    """
    device = next(iter(views.values())).device if views else torch.device("cpu")
    votes = Votes(layout, contributions, device)
    size = min(layout.chunks, strip_chunks or strip_chunks_for(device, layout.chunks))
    sums = torch.empty(size, CHUNK_SIDE, CHUNK_SIDE, dtype=torch.float32, device=device)
    learning_rate, decay = rates
    orthogonal = layout.matrix_chunks if rule == "orthogonal" else 0
    done, kernels = 0, None if strip_chunks else fused(layout, device)
    if kernels and kernels.takes(views):
        kernels.update(views, votes, rates, orthogonal=orthogonal > 0)
        done = layout.matrix_chunks
    with exact_products(device):
        move = mover(layout, views, decay, device)
        for first, stop in strips(orthogonal, size, start=done):
            step = inverse_orthogonal_(votes.sum_strip(first, sums[: stop - first]))
            move(first, step.mul_(learning_rate), -1.0)
        for first, stop in strips(layout.chunks, size, start=max(done, orthogonal)):
            signs = inverse_signs_(votes.sum_strip(first, sums[: stop - first]), votes.sum_max)
            move(first, signs, -learning_rate)


def look_ahead(
    layout: ChunkLayout,
    committed: Mapping[str, Tensor],
    guess: Tensor,
    working: Mapping[str, Tensor],
    *,
    rates: tuple[float, float],
) -> None:
    """working <- committed * decay - learning_rate * guess / 16, the parameters to take early gradients at.

    `guess` is int8 [chunks, 64, 64] from `Engine.guess`, `rates` (learning rate, decay). `working` has tensors of the
    same names and shapes and any dtype, apart from `committed`, which stays as it is.
    """
    sources, targets = layout.views(committed), layout.views(working)
    learning_rate, decay = rates
    cut = strips(layout.chunks, strip_chunks_for(guess.device, layout.chunks))
    step = -learning_rate / GUESS_ONE
    with torch.no_grad():
        if is_accelerator(guess.device):
            torch._foreach_copy_(list(targets.values()), [sources[name] for name in targets])
            move = mover(layout, targets, decay, guess.device)
            for first, stop in cut:
                move(first, guess[first:stop].float(), step)
        else:
            for first, stop in cut:
                pairs = (layout.pairs(views, first, guess[first:stop]) for views in (sources, targets))
                for (signs, source), (_, target) in zip(*pairs, strict=True):
                    target.copy_((source * decay).add_(signs, alpha=step))
    layout.write_back(targets, working)


def as_guess(update: Tensor) -> Tensor:
    """int8, in sixteenths, of an update whose root mean square is about one; changes it. 0 for what is no number: as an
    int8 that is another one on every kind of processor."""
    return update.mul_(GUESS_ONE).round_().nan_to_num_(0.0).clamp_(-GUESS_MAX, GUESS_MAX).to(torch.int8)

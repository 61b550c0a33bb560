"""Everybody's coefficients into the parameters, with the same bits on every node.

    S = sum_i w_i * q_i         whole numbers below 2^24: exact in float32 in any order
    U = sign(D^T S D)           in whole numbers throughout: dct.py; or, of matrices with the rule
                                "orthogonal", the nearest orthogonal matrix: orthogonalise.py
    P <- P * decay              rounded to float32
    P <- P - learning_rate * U  rounded to float32. The sign's product is +-learning_rate or 0, so
                                that a fused multiply-subtract gives the same bits; the orthogonal
                                one is rounded by itself first

The result depends neither on the backend, its strips, threads and device, nor on the order of the
contributions.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from node.demo.backend import Backend, backend_for
from node.demo.chunks import ChunkLayout
from node.demo.vote_sum import RULES, Contribution, Rule, Votes
from protocol.errors import LocalProtocolError

__all__ = ["RULES", "Rule", "apply", "look_ahead", "require_exact", "update"]


def apply(
    layout: ChunkLayout,
    parameters: Mapping[str, Tensor],
    contributions: Sequence[Contribution],
    learning_rate: float,
    decay: float,
    *,
    rule: Rule = "sign",
    backend: Backend | None = None,
) -> None:
    """Make one step: change `parameters`, float32 on one device, in place by a commit.

    `learning_rate` and `decay` are the commit's float32 values. `LocalProtocolError`, before
    anything changed, for anything that could make bits differ between nodes. Takes two strips of
    extra memory, six with the rule "orthogonal"; on an accelerator more, and all votes.
    """
    require_exact(parameters, {"learning_rate": learning_rate, "decay": decay})
    views = layout.views(parameters)
    update(layout, views, contributions, (learning_rate, decay), rule=rule, backend=backend)
    layout.write_back(views, parameters)


def require_exact(parameters: Mapping[str, Tensor], scalars: Mapping[str, float]) -> None:
    """`LocalProtocolError` for parameters that are not float32, or scalars that are not finite
    float32 values: nodes could make different bits of them.
    """
    for name, tensor in parameters.items():
        if tensor.dtype != torch.float32:
            raise LocalProtocolError(f"expected {name} in float32, got {tensor.dtype}")
    for name, value in scalars.items():
        if not math.isfinite(value) or float(np.float32(value)) != value:
            raise LocalProtocolError(f"expected a {name} that is a float32 value, got {value!r}")


def update(
    layout: ChunkLayout,
    views: Mapping[str, Tensor],
    contributions: Sequence[Contribution],
    rates: tuple[float, float],
    *,
    rule: Rule = "sign",
    backend: Backend | None = None,
) -> None:
    """`apply` for views from `layout.views`, of any of the parameters and any float dtype.

    `rates` is (learning rate, decay), rounded to the dtype of each tensor's arithmetic.
    """
    votes = Votes(layout, contributions)
    if views:
        backend = backend or backend_for(layout, next(iter(views.values())).device)
        backend.update(views, votes, rates, rule)


def look_ahead(
    layout: ChunkLayout,
    committed: Mapping[str, Tensor],
    guess: Tensor,
    working: Mapping[str, Tensor],
    *,
    rates: tuple[float, float],
    backend: Backend | None = None,
) -> None:
    """Working <- committed * decay - learning_rate * guess / 16: where to take early gradients.

    `guess` is int8 [chunks, 64, 64] from `Engine.guess`, `rates` (learning rate, decay). `working`
    has tensors of the same names and shapes and any dtype, apart from `committed`, which stays.
    """
    sources, targets = layout.views(committed), layout.views(working)
    with torch.no_grad():
        (backend or backend_for(layout, guess.device)).look_ahead(sources, targets, guess, rates)
    layout.write_back(targets, working)

"""Everybody's coefficients into the parameters, with the same bits on every node.

    S = sum_i w_i * q_i         whole numbers below 2^24: exact in float32 in any order
    U = sign(D^T S D)           in whole numbers throughout: dct.py
    P <- P * decay              rounded to float32
    P <- P - learning_rate * U  rounded to float32. The product is +-learning_rate or 0, so that a
                                fused multiply-subtract gives the same bits

The result depends neither on the backend, its strips, threads and device, nor on the order of the
contributions.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from node.exact.backend import Backend, backend_for
from node.exact.chunks import ChunkLayout, require_exact
from node.exact.contributions import Contribution
from node.exact.demo.votes import Votes


def apply(
    layout: ChunkLayout,
    parameters: Mapping[str, Tensor],
    contributions: Sequence[Contribution],
    learning_rate: float,
    decay: float,
    *,
    backend: Backend | None = None,
) -> None:
    """Make one step: change `parameters`, float32 on one device, in place by a commit.

    `learning_rate` and `decay` are the commit's float32 values. `LocalProtocolError`, before
    anything changed, for anything that could make bits differ between nodes. Takes two strips of
    extra memory; on an accelerator more, and all votes.
    """
    require_exact(parameters, {"learning_rate": learning_rate, "decay": decay})
    views = layout.views(parameters)
    update(layout, views, contributions, (learning_rate, decay), backend=backend)
    layout.write_back(views, parameters)


def update(
    layout: ChunkLayout,
    views: Mapping[str, Tensor],
    contributions: Sequence[Contribution],
    rates: tuple[float, float],
    *,
    backend: Backend | None = None,
) -> None:
    """`apply` for views from `layout.views`, of any of the parameters and any float dtype.

    `rates` is (learning rate, decay), rounded to the dtype of each tensor's arithmetic.
    """
    votes = Votes(layout, contributions)
    if views:
        backend = backend or backend_for(layout, next(iter(views.values())).device)
        backend.update(views, votes, rates)

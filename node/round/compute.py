"""The local half of a round: passes over the leased samples until the bell, and their gradients
into the momentum.

With overlap a round begins before the one in front of it is decided, at a guess of it. Most often
its commit comes while passes are made: then it is applied between two of them, and the rest of the
round stands where the log says. So only what is trained before the commit comes is one round late:

    overlap 1    compute r | extract | pass pass (at a guess of r) | apply r | pass pass pass | extract ...
                                     '- exchange r ..............'

Nobody else hears of it: where gradients are taken is a node's own business, and the commits are
applied in their order.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
import numpy.typing as npt

from node.demo.engine import GradientError
from node.model.training import GradientAccumulation, RoundWork
from node.replica.position import Pending
from node.round.context import RoundContext
from protocol import wire_pb2 as wire

log = logging.getLogger("lockstep.node")


async def train_round(
    parts: RoundContext,
    opened: wire.RoundOpened,
    pending: Pending | None,
    settle: Callable[[int], Awaitable[bool]],
) -> RoundWork | None:
    """Make the passes that fit, one at least; None when their gradients are of no use, and the
    momentum is as it was.

    `pending` is the undecided round in front of this one, if this node announced something in it.
    `settle(left_ms)` is asked between two passes, with the time that is left, and says whether it
    applied or reclaimed that round.
    """
    replica, progress = parts.replica, parts.progress
    passes = await asyncio.to_thread(replica.trainee.passes, _batches(parts, opened))
    await asyncio.to_thread(replica.stand_at, pending)
    leased, late = sum(share.count for share in opened.shares), 0
    while await asyncio.to_thread(passes.next):
        if parts.ledger.next_round < opened.round:
            late = passes.samples
        left_ms = opened.bell_ms - parts.client.now_ms()
        if left_ms <= 0 or passes.samples == leased:
            break
        if await settle(left_ms):
            await asyncio.to_thread(replica.stand_at, None)
    progress.samples_late += late
    work = await asyncio.to_thread(_accumulate, parts, opened.round, passes)
    if work:
        progress.loss = work.loss_nats_per_token
        progress.samples += work.samples
        progress.tokens += work.tokens
    progress.rounds_trained += 1
    return work


def _batches(parts: RoundContext, opened: wire.RoundOpened) -> Iterator[npt.NDArray[np.int64]]:
    """The round's share in micro-batches: int64 [samples, sequence_length + 1]."""
    spec, size = parts.info.spec, parts.replica.trainee.micro_batch_max
    for share in opened.shares:
        for first in range(share.first, share.first + share.count, size):
            count = min(size, share.first + share.count - first)
            yield parts.corpus.batch(first, count, spec.data.sequence_length, spec.seed)


def _accumulate(parts: RoundContext, round: int, passes: GradientAccumulation) -> RoundWork | None:
    work = passes.finish()
    try:
        parts.replica.accumulate()
    except GradientError as error:
        log.warning("round without gradients round=%s reason=%s", round, str(error))
        return None
    return work

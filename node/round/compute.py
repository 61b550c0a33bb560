"""The local half of a round: passes over the leased samples until the bell, and their gradients
into the momentum.

With overlap a round begins before the one in front of it is decided, from where this node's own
steps left the model. Most often the commit comes while passes are made: then it is applied between
two of them, or beside them where they leave the committed parameters alone, and the rest of the
round is trained where the log says. Only the samples trained before that are one round late:

    overlap 1    compute r | extract | pass pass (without r) | apply r | pass pass | extract
                                     '- exchange r ........'

Where gradients are taken is a node's own business; the commits are applied in their order. With
local steps the passes move the model as they go, and what they moved takes the place of gradients
(`node.replica.local_steps`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Self

from node.exact.engine import GradientError
from node.model.passes import Passes, RoundWork
from node.model.queue import PassQueue
from node.round.context import RoundContext
from node.status import NodeStatus
from node.system.device import device_errors
from protocol import wire_pb2 as wire
from protocol.errors import UnavailableError

log = logging.getLogger("lockstep.node")


async def train_round(
    context: RoundContext,
    opened: wire.RoundOpened,
    pending: wire.Announced | None,
    settle: Callable[[int], Awaitable[bool]],
) -> RoundWork | None:
    """Make the passes that fit, at least one. None when their gradients are of no use; the
    momentum is then as it was.

    In a round that only mixes there is nothing to do. `pending` is what this node announced in the
    undecided round in front of this one.
    `settle(left_ms)` is asked between two passes, with the time that is left, and returns whether
    it settled that round. Between passes the node rests as its duty cycle asks.

    Raises `DeviceError` when a device fails in a pass: what was applied before is whole.
    """
    replica, duty = context.replica, context.duty
    if opened.only_mixes:
        return RoundWork(0, 0.0, 0)
    rate_bits = opened.learning_rate_bits, opened.decay_bits
    if not await _rested(context, opened):
        return None  # not even one pass can be paid
    batches = _batches(context, opened)
    passes = await duty.compute(replica.begin, batches, pending, rate_bits)
    leased, late, cut = sum(share.count for share in opened.shares), 0, False
    began_ms, made, trained = context.client.now_ms(), 0, 0
    async with _Settling(context, settle) as settling:
        while await _made(context, passes):
            queue = replica.trainee.queue
            context.status.passes.note(*(queue.newest or (passes.samples - trained, duty.pass_s)))
            made, trained = made + 1, passes.samples
            if context.decisions.next_round < opened.round or settling.is_under_way:
                late = passes.samples
            left_ms = opened.bell_ms - context.client.now_ms() - 1000 * queue.ahead_s()
            if left_ms <= 0 or passes.samples == leased:
                cut = passes.samples < leased
                break
            if not await _rested(context, opened):
                cut = True
                break
            await settling.between_passes(opened.bell_ms - context.client.now_ms())
    if passes.samples == 0:
        return None  # the data have not come before the bell
    context.state_requests.note_passes((context.client.now_ms() - began_ms) / max(1, made), cut=cut)
    work = await duty.compute(_accumulate, context, opened.round, passes)
    status = context.status
    status.rounds_trained += 1
    status.samples_late += late
    if work:
        status.loss = work.loss_nats_per_token
        status.samples += work.samples
        status.tokens += work.tokens
    return work


class _Settling:
    """The round in front, settled between two passes or, where the replica can, beside them."""

    def __init__(self, context: RoundContext, settle: Callable[[int], Awaitable[bool]]) -> None:
        self._context, self._settle = context, settle
        self._beside: asyncio.Future[bool] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether it is settled beside passes now, and the model does not stand there yet."""
        return self._beside is not None

    async def between_passes(self, left_ms: int) -> None:
        """Settle the round if it can be; the model stands there when that is done."""
        replica, duty = self._context.replica, self._context.duty
        if not replica.applies_beside or duty.percent < 100:
            if await self._settle(left_ms):
                await duty.compute(replica.stand_at)
            return
        if self._beside is None:
            self._beside = asyncio.ensure_future(self._settle(left_ms))
            await asyncio.sleep(0)  # most often it finds at once that there is nothing to settle
        if self._beside.done():
            await self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._beside and kind and not issubclass(kind, Exception):
            self._beside.cancel()  # the node ends
        elif self._beside:
            await self._end()

    async def _end(self) -> None:
        assert self._beside is not None, "it is under way"
        settling, self._beside = self._beside, None
        if await settling:
            await self._context.duty.compute(self._context.replica.stand_at)


async def _rested(context: RoundContext, opened: wire.RoundOpened) -> bool:
    """Rest as the duty cycle asks, until the bell at most; whether another pass may begin."""
    duty, status = context.duty, context.status
    if duty.percent == 100:
        return True
    phase = status.phase
    status.phase = f"rests in round {opened.round}: computes {duty.percent} % of the time"
    try:
        return await duty.rest(opened.bell_ms - context.client.now_ms())
    finally:
        status.phase = phase


def _batches(context: RoundContext, opened: wire.RoundOpened) -> Iterator[Any]:
    """The round's share in micro-batches, or in batches of one local step each: int64 [samples,
    sequence_length + 1].
    """
    spec, size = context.info.spec, context.replica.trainee.micro_batch_max
    spans = [(share.first, share.count) for share in opened.shares]
    limit_s = (opened.bell_ms - context.client.now_ms()) / 1000
    context.corpus.expect(spans, spec.data.sequence_length, spec.seed, limit_s=limit_s)
    if spec.algorithm.moves:
        size = spec.algorithm.local_samples
    for share in opened.shares:
        for first in range(share.first, share.first + share.count, size):
            count = min(size, share.first + share.count - first)
            yield context.corpus.batch(first, count, spec.data.sequence_length, spec.seed)


async def _made(context: RoundContext, passes: Passes) -> bool:
    """Make one pass, as `_next` does; `DeviceError` when a device fails."""
    duty, queue = context.duty, context.replica.trainee.queue
    ended = queue if duty.percent < 100 else None
    with device_errors():
        return await duty.make_pass(_next, passes, context.status, ended)


def _next(passes: Passes, status: NodeStatus, ended: PassQueue | None) -> bool:
    """Make one pass, and wait until it has `ended` where a rest is to follow; False when no sample
    is left, or none has come from the data's server.
    """
    try:
        made = passes.next()
        if ended:
            ended.wait()
        return made
    except UnavailableError as error:
        status.note = str(error)
        return False


def _accumulate(context: RoundContext, round: int, passes: Passes) -> RoundWork | None:
    try:
        with device_errors():
            work = passes.finish()
            context.replica.accumulate()
    except GradientError as error:
        log.warning("round without gradients", extra={"round": round, "reason": str(error)})
        return None
    return work

"""The local half of a round: passes over the leased samples until the bell, and what they
found into what is not said yet.

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
from collections.abc import Awaitable, Coroutine, Iterator
from typing import Any, Self

from node.exact.engine import GradientError
from node.model.passes import Passes, RoundWork
from node.model.queue import PassQueue
from node.round.context import RoundContext
from node.system.device import device_errors
from protocol import wire_pb2 as wire
from protocol.errors import UnavailableError

log = logging.getLogger("lockstep.node")


class RoundPasses:
    """The passes of one round: `begin`, then `make` while another may follow, then `work`. Whoever
    makes them may take the decision of a round in front between two of them (`Settling`).
    """

    def __init__(self, context: RoundContext, opened: wire.RoundOpened) -> None:
        self._context, self._opened = context, opened
        self._leased = sum(share.count for share in opened.shares)
        self._passes: Passes | None = None
        self._made, self._trained, self._late, self._cut = 0, 0, 0, False
        self._began_ms = 0

    @property
    def left_ms(self) -> int:
        """Time to the bell."""
        return self._opened.bell_ms - self._context.client.now_ms()

    async def begin(self, pending: wire.Announced | None) -> bool:
        """Put the model where the first gradients are taken; False when no pass is to be made: the
        round only mixes, or not even one pass can be paid. `pending` is what this node announced in
        the undecided round in front of this one.
        """
        context, opened = self._context, self._opened
        if opened.only_mixes or not await self._rested():
            return False
        rate_bits = opened.learning_rate_bits, opened.decay_bits
        batches = _batches(context, opened)
        begin = context.replica.begin
        self._passes = await context.duty.compute(begin, batches, pending, rate_bits)
        self._began_ms = context.client.now_ms()
        return True

    async def make(self, *, behind: bool) -> bool:
        """Make one pass and rest as the duty cycle asks; returns whether another one fits.
        `behind`: a decision of a round in front is being taken, and the model does not stand there.

        Raises `DeviceError` when a device fails in it: what was applied before is whole.
        """
        context, passes = self._context, self._passes
        assert passes is not None, "begun"
        if not await _made(context, passes):
            return False
        duty, queue = context.duty, context.replica.trainee.queue
        made = queue.newest or (passes.samples - self._trained, duty.pass_s)
        context.status.work.passes.note(*made)
        self._made, self._trained = self._made + 1, passes.samples
        if behind or context.decisions.next_round < self._opened.round:
            self._late = passes.samples
        if passes.samples == self._leased:
            return False
        self._cut = self.left_ms - 1000 * queue.ahead_s() <= 0 or not await self._rested()
        return not self._cut

    async def work(self) -> RoundWork | None:
        """The passes, in numbers, and what they found is among what is not said yet. None when
        they are of no use; that is then as it was.
        """
        context, passes = self._context, self._passes
        if self._opened.only_mixes:
            return RoundWork(0, 0.0, 0)
        if passes is None or passes.samples == 0:
            return None  # nothing could be paid, or the data have not come before the bell
        pass_ms = (context.client.now_ms() - self._began_ms) / max(1, self._made)
        context.state_requests.note_passes(pass_ms, cut=self._cut)
        work = await context.duty.compute(_accumulate, context, self._opened.round, passes)
        context.status.work.trained(work, self._late)
        return work

    async def _rested(self) -> bool:
        """Rest as the duty cycle asks, until the bell at most; whether another pass may begin."""
        duty, status = self._context.duty, self._context.status
        if duty.percent == 100:
            return True
        phase, round = status.phase, self._opened.round
        status.says(f"rests in round {round}: computes {duty.percent} % of the time")
        try:
            return await duty.rest(self.left_ms)
        finally:
            status.says(phase)


class Settling:
    """The round in front, settled between two passes or, where the replica can, beside them."""

    def __init__(self, context: RoundContext) -> None:
        self._replica, self._duty = context.replica, context.duty
        self._beside: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether it is settled beside passes now, and the model does not stand there yet."""
        return self._beside is not None

    async def begin(self, settling: Coroutine[Any, Any, None]) -> None:
        """Settle a round; where it cannot be done beside passes, the model stands there then."""
        if self._replica.applies_beside and self._duty.percent == 100:
            self._beside = asyncio.create_task(settling)
        else:
            await self._end(settling)

    async def look(self) -> None:
        """Put the model where a round that was settled beside passes has left the log."""
        if self._beside and self._beside.done():
            await self._end(self._beside)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._beside and kind and not issubclass(kind, Exception):
            self._beside.cancel()  # the node ends
        elif self._beside:
            await self._end(self._beside)

    async def _end(self, settling: Awaitable[None]) -> None:
        self._beside = None
        await settling
        await self._duty.compute(self._replica.stand_at)


def _batches(context: RoundContext, opened: wire.RoundOpened) -> Iterator[Any]:
    """The round's share in micro-batches, or in batches of one local step each: int64 [samples,
    sequence_length + 1].
    """
    spec, trainee = context.info.spec, context.replica.trainee
    size = spec.algorithm.batch_samples(trainee.micro_batch_max)
    spans = [(share.first, share.count) for share in opened.shares]
    limit_s = (opened.bell_ms - context.client.now_ms()) / 1000
    context.corpus.expect(spans, spec.data.sequence_length, spec.seed, limit_s=limit_s)
    for share in opened.shares:
        for first in range(share.first, share.first + share.count, size):
            count = min(size, share.first + share.count - first)
            yield context.corpus.batch(first, count, spec.data.sequence_length, spec.seed)


async def _made(context: RoundContext, passes: Passes) -> bool:
    """Make one pass, and wait until it has ended where a rest is to follow; False when no sample is
    left, or none has come from the data's server. `DeviceError` when a device fails.
    """
    duty, queue = context.duty, context.replica.trainee.queue
    ended = queue if duty.percent < 100 else None
    try:
        with device_errors():
            return await duty.make_pass(_next, passes, ended)
    except UnavailableError as error:
        context.status.notes(str(error))
        return False


def _next(passes: Passes, ended: PassQueue | None) -> bool:
    made = passes.next()
    if ended:
        ended.wait()
    return made


def _accumulate(context: RoundContext, round: int, passes: Passes) -> RoundWork | None:
    try:
        with device_errors():
            work = passes.finish()
            context.replica.accumulate()
    except GradientError as error:
        log.warning("round without gradients", extra={"round": round, "reason": str(error)})
        return None
    return work

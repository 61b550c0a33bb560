"""A node's part in measuring the run's validation loss.

    asked for round r --the replica comes to r--> its state is kept
        '-- it was past r: declined                   '--passes in spare time--> measured: said
                                                      '--not in ROUNDS_MAX rounds--> declined

Training goes on meanwhile (`node.replica.kept_state`). A pass is made in the trainer's line, where
nothing else uses the model. `node.round.state_requests.measurement` says how long it may be.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from node.model.passes import Tokens
from node.replica.kept_state import KeptState
from node.replica.replica import Replica
from node.round.state_requests.measurement import ROUNDS_MAX, LossMeasurement, borrowed_ms
from node.status import NodeStatus
from protocol import wire_pb2 as wire
from protocol.border.text import clean
from protocol.errors import LockstepError
from protocol.ids import sha256
from protocol.limits import LOSS_NATS_MAX, VALIDATION_WINDOWS_MAX

log = logging.getLogger("lockstep.node")

FINISH_MS = 60_000
"""Longest wait of a finished run's node for its measurement."""


@dataclass(frozen=True, slots=True)
class Instruments:
    """The tools of an evaluator. `kept` and `held_out` block."""

    kept: Callable[[], KeptState]
    """The state as it is now."""
    held_out: Callable[[int], Tokens]
    """At most this number of held-out samples, always the same: int64 [samples, length + 1]."""
    send: Callable[[wire.NodeMessage], None]
    clock_ms: Callable[[], float]


@dataclass(slots=True)
class _Begun:
    measurement: LossMeasurement
    state: KeptState
    samples: Tokens


class Evaluator:
    """The evaluator of one node."""

    def __init__(self, instruments: Instruments, status: NodeStatus) -> None:
        self._with, self._status = instruments, status
        self._asked: wire.EvaluationAsked | None = None
        self._begun: _Begun | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._measured: tuple[int, float] | None = None
        self._seen_round = -1
        self._pass_ms, self._cut, self._leaving = 0.0, False, False

    # ---- what is asked

    def asked(self, message: wire.EvaluationAsked) -> None:
        """Remember what is asked for, in place of anything that was asked before."""
        again = self._begun and self._begun.measurement.round == message.round
        if not (self._leaving or again):
            self._asked = message
            self._idle.clear()

    async def show_state(self, round: int) -> None:
        """Keep the state if it is the one that is asked for; give up what takes too long."""
        asked = self._asked
        if asked is None:
            self._note_round(round)
        elif asked.round == round:
            await self._begin(asked)
        elif asked.round < round:
            self._asked = None
            self._decline(asked.round, f"its state holds round {round} already")
            self._rest()
        self._seen_round = round

    async def loss_of(self, round: int, patience_s: float) -> float | None:
        """The loss of the state after `round` if this node measures it, once it has; None if it
        does not, or takes longer.
        """
        asked = self._asked.round if self._asked else -1
        begun = self._begun.measurement.round if self._begun else -1
        if round in (asked, begun):
            try:
                async with asyncio.timeout(patience_s):
                    await self._idle.wait()
            except TimeoutError:
                return None
        measured = self._measured
        return measured[1] if measured and measured[0] == round else None

    def leave(self) -> None:
        """This node is to leave: another one measures."""
        self._leaving = True
        self._drop("it leaves")

    # ---- the time that there is

    def note_passes(self, pass_ms: float, *, cut: bool) -> None:
        """The passes of a round are made, each in this time; `cut`: the bell ended them."""
        self._pass_ms, self._cut = pass_ms, cut

    async def measure_while_idle(self) -> bool:
        """Make one pass, because nothing else can be done; False when there is none to make."""
        if self._begun is None:
            return False
        await self._pass(self._begun.measurement.idle_count(self._begun.state.at_once))
        return True

    async def borrow_time(self, left_ms: float) -> None:
        """Measure a little in front of a round's passes, where the bell cuts rounds short."""
        lent_ms = borrowed_ms(left_ms, self._pass_ms, cut=self._cut)
        until_ms = self._with.clock_ms() + lent_ms
        while self._begun:
            left_ms = until_ms - self._with.clock_ms()
            count = self._begun.measurement.count_within(left_ms, self._begun.state.at_once)
            if count == 0:
                return
            await self._pass(count)

    async def finish(self) -> None:
        """Complete what was begun, within `FINISH_MS`: no round follows."""
        until_ms = self._with.clock_ms() + FINISH_MS
        while self._with.clock_ms() < until_ms and await self.measure_while_idle():
            pass
        self._drop("it had no time for it")

    # ---- the measurement

    async def _begin(self, asked: wire.EvaluationAsked) -> None:
        wanted = min(max(1, asked.samples), VALIDATION_WINDOWS_MAX)
        begun, failure = None, ""
        try:
            begun = await asyncio.to_thread(self._made, asked.round, wanted)
        except (LockstepError, torch.OutOfMemoryError) as error:
            failure = str(error)
        if self._asked is not asked:
            return  # this node leaves, or something else was asked for meanwhile
        self._asked = None
        if begun:
            self._begun = begun
        else:
            self._decline(asked.round, failure)
            self._rest()

    def _made(self, round: int, wanted: int) -> _Begun:
        samples = self._with.held_out(wanted)
        count, length = samples.shape
        return _Begun(LossMeasurement(round, count, length - 1), self._with.kept(), samples)

    async def _pass(self, count: int) -> None:
        begun = self._begun
        assert begun is not None, "asked before each pass"
        measurement, began_ms = begun.measurement, self._with.clock_ms()
        samples = begun.samples[measurement.done : measurement.done + count]
        try:
            nats = await asyncio.to_thread(begun.state.nats, samples)
        except (LockstepError, torch.OutOfMemoryError) as error:
            self._drop(str(error))
            return
        measurement.add(len(samples), nats, self._with.clock_ms() - began_ms)
        if measurement.is_complete and self._begun is begun:
            self._say(begun)

    def _say(self, begun: _Begun) -> None:
        measurement, loss = begun.measurement, begun.measurement.loss
        if not (math.isfinite(loss) and 0 <= loss <= LOSS_NATS_MAX):
            self._drop(f"the loss is {loss}")
            return
        tokens: Any = begun.samples
        said = wire.Evaluated(
            round=measurement.round,
            loss=loss,
            samples=measurement.samples,
            data_sha256=sha256(tokens.astype("<i8").tobytes()),
        )
        self._with.send(wire.NodeMessage(evaluated=said))
        self._measured = measurement.round, loss
        self._status.heard_validation(loss, measurement.round)
        log.info("validation loss", extra={"round": measurement.round, "loss": loss})
        self._begun = None
        self._rest()

    def _note_round(self, round: int) -> None:
        """Another round is decided: a measurement does not last for ever."""
        if self._begun and round > self._seen_round:
            self._begun.measurement.rounds += 1
            if self._begun.measurement.rounds > ROUNDS_MAX:
                self._drop(f"it found no time for it in {ROUNDS_MAX} rounds")

    def _drop(self, reason: str) -> None:
        """Do nothing of what was asked."""
        rounds = [self._asked.round] if self._asked else []
        rounds += [self._begun.measurement.round] if self._begun else []
        self._asked = self._begun = None
        for round in rounds:
            self._decline(round, reason)
        self._rest()

    def _decline(self, round: int, reason: str) -> None:
        log.info("no validation loss from here", extra={"round": round, "reason": reason})
        said = wire.Evaluated(round=round, failure=clean(reason) or "it failed")
        self._with.send(wire.NodeMessage(evaluated=said))

    def _rest(self) -> None:
        if self._asked is None and self._begun is None:
            self._idle.set()


def evaluator_of(
    replica: Replica,
    held_out: Callable[[int], Tokens],
    send: Callable[[wire.NodeMessage], None],
    clock_ms: Callable[[], float],
    status: NodeStatus,
) -> Evaluator:
    """The evaluator of a node with this replica."""
    return Evaluator(Instruments(replica.kept, held_out, send, clock_ms), status)

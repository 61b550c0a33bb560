"""The validation loss of a simulated run: the real evaluator of a node, whose loss says which state
it has measured, and the judge of what the coordinator takes.
"""

from collections.abc import Callable, Iterable

import numpy as np

from coordinator.machine.events.effects import AskEvaluation, Effect, LossMeasured
from node.model.passes import Tokens
from node.round.state_requests.evaluator import Evaluator, Instruments
from node.status import NodeStatus
from node.system.clock import own_clock_ms
from protocol import wire_pb2 as wire
from tests.simulation.checkers import require
from tests.simulation.stand_in import Replica
from tests.simulation.world import Process
from tests.support.state_requests import NoStateRequests

SAMPLES, LENGTH = 6, 8

ROUNDS_PER_NAT = 1_000
"""A state's loss is its round, in thousandths of a nat per token."""


class EvaluatorOnly(NoStateRequests):
    """The state requests of a node that measures and does not publish."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def asked(self, message: wire.CoordinatorMessage) -> None:
        if message.WhichOneof("kind") == "evaluation":
            self.evaluator.asked(message.evaluation)

    async def show_state(self, round: int) -> None:
        await self.evaluator.show_state(round)

    async def measure_while_idle(self) -> bool:
        return await self.evaluator.measure_while_idle()

    async def borrow_time(self, left_ms: float) -> None:
        await self.evaluator.borrow_time(left_ms)

    def note_passes(self, pass_ms: float, *, cut: bool) -> None:
        self.evaluator.note_passes(pass_ms, cut=cut)


class SeenState:
    """The round of a replica as it was. Measuring a sample takes a third of the time that training
    on it takes.
    """

    def __init__(self, replica: Replica, process: Process) -> None:
        self._replica, self._process = replica, process
        self._round = replica.head_round

    @property
    def at_once(self) -> int:
        return self._replica.trainee.micro_batch_max

    def nats(self, samples: Tokens) -> float:
        self._process.busy(len(samples) * self._replica.trainee.sample_ms / 3)
        return self._round * len(samples) * LENGTH / ROUNDS_PER_NAT


def evaluator_only(
    replica: Replica,
    process: Process,
    send: Callable[[wire.NodeMessage], None],
    status: NodeStatus,
) -> EvaluatorOnly:
    """The state requests of a simulated node."""
    instruments = Instruments(
        kept=lambda: SeenState(replica, process),
        held_out=lambda count: np.zeros((min(count, SAMPLES), LENGTH + 1), np.int64),
        send=send,
        clock_ms=own_clock_ms,
    )
    return EvaluatorOnly(Evaluator(instruments, status))


class LossJudge:
    """Follows the effects of one coordinator, also over its restarts: one member is asked at a
    time, and only its word on that state is taken.
    """

    def __init__(self) -> None:
        self.asked: AskEvaluation | None = None
        self.measured = 0

    def saw(self, effects: Iterable[Effect]) -> None:
        """The machine returned these effects."""
        for effect in effects:
            if isinstance(effect, AskEvaluation):
                self.asked = effect
            elif isinstance(effect, LossMeasured):
                asked, point = self.asked, effect.point
                require(asked is not None, "a loss that nobody was asked for:", point)
                assert asked is not None
                told = (point.peer, point.round)
                require((asked.peer, asked.round) == told, "asked", asked, "took", point)
                state = round(point.loss * ROUNDS_PER_NAT)
                require(state == point.round, "measured the state of", state, "as", point)
                self.measured += 1

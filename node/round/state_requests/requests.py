"""The interface between the trainer and this node's work on requests of the coordinator."""

from typing import Protocol

from node.control.client import CoordinatorClient
from node.data.corpus import Corpus
from node.replica.replica import Replica
from node.round.state_requests.evaluator import Evaluator, evaluator_of
from node.round.state_requests.publisher import Publisher, publisher_of
from node.round.state_requests.said import Said
from node.settings import NodeSettings
from node.status import NodeStatus
from node.system.clock import own_clock_ms
from node.system.duty_cycle import DutyKeeper
from protocol import wire_pb2 as wire
from protocol.run_info import RunInfo


class StateRequests(Protocol):
    """The part of a node that works on requests of the coordinator about a state."""

    def asked(self, message: wire.CoordinatorMessage) -> None:
        """Take a request about the state after a round."""

    def repeat(self) -> None:
        """A new session has begun: say again what one that was lost may have taken along."""

    async def show_state(self, round: int) -> None:
        """Begin what is asked for of the state after `round`, which the replica has and keeps until
        this returns.
        """

    async def measure_while_idle(self) -> bool:
        """Make a short pass of a measurement; False when there is none to make. Nothing else
        touches the model meanwhile.
        """

    async def borrow_time(self, left_ms: float) -> None:
        """Measure a little in front of the passes of a round whose bell rings in this time. Nothing
        else touches the model meanwhile.
        """

    def note_passes(self, pass_ms: float, *, cut: bool) -> None:
        """The passes of a round are made, each in this time; `cut`: the bell ended them."""


class PublisherAndEvaluator:
    """The publisher and the evaluator of a node."""

    def __init__(
        self,
        publisher: Publisher,
        evaluator: Evaluator,
        said: Said,
        duty: DutyKeeper,
    ) -> None:
        """`said` is how both of them speak."""
        self.publisher, self.evaluator, self._said = publisher, evaluator, said
        self._duty = duty

    def asked(self, message: wire.CoordinatorMessage) -> None:
        self._said.forget(str(message.WhichOneof("kind")))
        if message.WhichOneof("kind") == "checkpoint":
            self.publisher.asked(message.checkpoint)
        else:
            self.evaluator.asked(message.evaluation)

    def repeat(self) -> None:
        self._said.repeat()

    async def show_state(self, round: int) -> None:
        await self.publisher.show_state(round)
        await self.evaluator.show_state(round)

    async def measure_while_idle(self) -> bool:
        with self._duty.counted():
            return await self.evaluator.measure_while_idle()

    async def borrow_time(self, left_ms: float) -> None:
        with self._duty.counted():
            await self.evaluator.borrow_time(left_ms)

    def note_passes(self, pass_ms: float, *, cut: bool) -> None:
        self.evaluator.note_passes(pass_ms, cut=cut)

    def leave(self) -> None:
        """This node is to leave: others do what it was asked for."""
        self.publisher.leave()
        self.evaluator.leave()

    async def finish(self) -> None:
        """Complete what was begun; no round follows."""
        await self.evaluator.finish()
        await self.publisher.finish()


def publisher_and_evaluator(
    settings: NodeSettings,
    info: RunInfo,
    replica: Replica,
    corpus: Corpus,
    client: CoordinatorClient,
    *,
    status: NodeStatus,
    duty: DutyKeeper,
) -> PublisherAndEvaluator:
    """The publisher and the evaluator of a node with these settings; `SettingsError` as
    `publisher_of`.
    """
    length, said = info.spec.data.sequence_length, Said(client.send)
    evaluator = evaluator_of(
        replica,
        lambda count: corpus.validation(count, length),
        said.say,
        own_clock_ms,
        status,
    )
    tokenizer, loss_of = corpus.tokenizer, evaluator.loss_of
    ways = said.say, client.calls.put_checkpoint
    publisher = publisher_of(settings, info, replica, tokenizer, ways, loss_of=loss_of)
    return PublisherAndEvaluator(publisher, evaluator, said, duty)

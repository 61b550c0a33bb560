"""The interface between the trainer and this node's work on requests of the coordinator."""

from collections.abc import Callable
from typing import Protocol

from node.control.client import CoordinatorClient
from node.data.corpus import Corpus
from node.replica.replica import Replica
from node.round.state_requests.evaluator import Evaluator, evaluator_of
from node.round.state_requests.publisher import Publisher, publisher_of
from node.settings import NodeSettings
from node.status import NodeStatus
from node.system.clock import own_clock_ms
from node.system.duty_cycle import DutyKeeper
from protocol import wire_pb2 as wire
from protocol.run_info import RunInfo


class StateRequests(Protocol):
    """The part of a node that takes such requests."""

    def asked(self, message: wire.CoordinatorMessage) -> None:
        """The coordinator asks for something about the state after a round."""

    async def look(self, round: int) -> None:
        """The replica's state is the one after `round`, and stays it until this returns."""

    async def pass_time(self, busy: Callable[[], bool]) -> None:
        """The trainer has nothing to do until `busy()`; nothing else touches the model."""

    async def borrow(self, left_ms: float) -> None:
        """A round begins, whose bell rings in this time; nothing else touches the model."""

    def worked(self, pass_ms: float, *, cut: bool) -> None:
        """The passes of a round are made, each in this time; `cut`: the bell ended them."""


class NoStateRequests:
    """The part of a node that does nothing that is asked of it."""

    def asked(self, message: wire.CoordinatorMessage) -> None:
        """Nothing follows."""

    async def look(self, round: int) -> None:
        """Nothing is asked for."""

    async def pass_time(self, busy: Callable[[], bool]) -> None:
        """Nothing is to be measured."""

    async def borrow(self, left_ms: float) -> None:
        """Nothing is to be measured."""

    def worked(self, pass_ms: float, *, cut: bool) -> None:
        """Nothing is to be measured."""


class PublisherAndEvaluator:
    """The publisher and the evaluator of a node."""

    def __init__(
        self, publisher: Publisher, evaluator: Evaluator, duty: DutyKeeper | None = None
    ) -> None:
        self.publisher, self.evaluator = publisher, evaluator
        self._duty = duty or DutyKeeper()

    def asked(self, message: wire.CoordinatorMessage) -> None:
        """Hand a request to the part that it is for."""
        if message.WhichOneof("kind") == "checkpoint":
            self.publisher.asked(message.checkpoint)
        else:
            self.evaluator.asked(message.evaluation)

    async def look(self, round: int) -> None:
        """Show the state to both."""
        await self.publisher.look(round)
        await self.evaluator.look(round)

    async def pass_time(self, busy: Callable[[], bool]) -> None:
        """Measure meanwhile."""
        with self._duty.counted():
            await self.evaluator.pass_time(busy)

    async def borrow(self, left_ms: float) -> None:
        """Measure a little, if the round has the time."""
        with self._duty.counted():
            await self.evaluator.borrow(left_ms)

    def worked(self, pass_ms: float, *, cut: bool) -> None:
        """Tell what a round's time was spent on."""
        self.evaluator.worked(pass_ms, cut=cut)

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
    length = info.spec.data.sequence_length
    evaluator = evaluator_of(
        replica,
        lambda count: corpus.validation(count, length),
        client.send,
        own_clock_ms,
        status,
    )
    tokenizer, loss_of = corpus.tokenizer, evaluator.loss_of
    publisher = publisher_of(settings, info, replica, tokenizer, client, loss_of=loss_of)
    return PublisherAndEvaluator(publisher, evaluator, duty)

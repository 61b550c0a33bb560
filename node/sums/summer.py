"""The role of a summer: adds the ranges that the coordinator asks for, and signs what it found.

    SumsAsked --> question of a range --collect--> parts of its authors --add, in a thread--> result
                                                                                   |
    Summed, signed under the question  <--kept, so that peers have it by its digest'

Questions of one range of one round replace each other; an equal one is answered again. A round that
is decided needs no sums: its questions end. What is asked was bounded before anything is done: a
round that is open here, ranges of it, and authors that are members' names, each once.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol import wire_pb2 as wire
from protocol.codec.payload_shape import PayloadShape
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, parse_digest, parse_peer_id, short
from protocol.limits import MEMBERS_MAX
from protocol.run_info import RunInfo
from protocol.schedule import float32_value
from protocol.sums.adding import Result, answer_to
from protocol.sums.asked import Question, SumAuthor, sign_sum
from protocol.sums.plan import SumPlan

log = logging.getLogger("lockstep.node")

SAMPLES_MAX = 2**53
"""Samples of one author: more than any run has in all."""


class PartShelf(Protocol):
    """The parts of a swarm as a summer needs them; see `node.gossip.parts.Parts`."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task whose death is noticed."""

    def plan(self, round: int) -> SumPlan | None:
        """The plan of an undecided round."""

    async def collect(
        self, round: int, number: int, roots: Mapping[PeerId, Digest]
    ) -> dict[PeerId, bytes]:
        """The parts of a range of these authors, once all are here."""

    async def keep_result(self, round: int, result: bytes) -> None:
        """Keep the sum of a range for peers."""


@dataclass(slots=True)
class _Work:
    """One question, from its arrival until its round is decided."""

    question: Question
    task: asyncio.Task[None]
    answer: wire.Summed | None = None


class Summer:
    """Adds for one node. `send` drops its messages while there is no session."""

    def __init__(
        self,
        info: RunInfo,
        key: Ed25519PrivateKey,
        shape: PayloadShape,
        shelf: PartShelf,
        send: Callable[[wire.NodeMessage], None],
    ) -> None:
        """`shape` is that of the run's payloads."""
        self._info, self._key, self._shape, self._shelf = info, key, shape, shelf
        self._send = send
        self._works: dict[tuple[int, int], _Work] = {}
        self._turn = asyncio.Lock()

    def asked(self, message: wire.SumsAsked) -> None:
        """Add these ranges. `RemoteProtocolError` for a question that no coordinator asks."""
        plan = self._shelf.plan(message.round)
        if plan is None:
            return  # late: decided, or forgotten, since
        for question in questions_of(self._info, message, plan.ranges):
            place = message.round, question.number
            known = self._works.get(place)
            if known and known.question == question:
                if known.answer:
                    self._send(wire.NodeMessage(summed=known.answer))
                continue
            if known:
                known.task.cancel()
            task = self._shelf.spawn(self._answer(question))
            self._works[place] = _Work(question, task)

    def repeat(self) -> None:
        """Say the results of undecided rounds again, in a new session."""
        for place in sorted(self._works):
            if answer := self._works[place].answer:
                self._send(wire.NodeMessage(summed=answer))

    def decided(self, round: int) -> None:
        """A round is decided: end its questions, and those of rounds before it."""
        for place in [place for place in self._works if place[0] <= round]:
            self._works.pop(place).task.cancel()

    async def _answer(self, question: Question) -> None:
        about = {"round": question.round, "range": question.number}
        silent = {question.authors[place].author for place in question.silent}
        roots = {each.author: each.root for each in question.authors if each.author not in silent}
        try:
            parts = await self._shelf.collect(question.round, question.number, roots)
            async with self._turn:  # one at a time: the sums of a range take memory
                asked = question, parts, self._shape, self._info.spec.algorithm
                result = await asyncio.to_thread(answer_to, *asked)
            await self._shelf.keep_result(question.round, result.blob)
        except UnavailableError as error:
            log.debug("a sum was not found", extra={**about, "reason": str(error)})
            return
        for peer, reason in sorted(result.refused.items()):
            log.warning(
                "an author's part says nothing",
                extra={**about, "peer": short(peer), "reason": reason},
            )
        self._say(question, result)

    def _say(self, question: Question, result: Result) -> None:
        answer = wire.Summed(
            round=question.round,
            range=question.number,
            digest=result.digest,
            result_bytes=len(result.blob),
            public_key=public_bytes(self._key),
            signature=sign_sum(question, result.digest, self._key),
        )
        work = self._works.get((question.round, question.number))
        if work and work.question == question:
            work.answer = answer
            self._send(wire.NodeMessage(summed=answer))


def questions_of(info: RunInfo, message: wire.SumsAsked, ranges: int) -> Sequence[Question]:
    """The questions of a message about a round that is cut into that number of `ranges`;
    `RemoteProtocolError` for one out of bounds.
    """
    if not 1 <= len(message.authors) <= MEMBERS_MAX or len(message.ranges) > ranges:
        raise RemoteProtocolError(
            f"expected sums of 1..{MEMBERS_MAX} authors in at most {ranges} ranges, got "
            f"{len(message.authors)} in {len(message.ranges)}"
        )
    authors = tuple(
        SumAuthor(parse_peer_id(each.author), parse_digest(each.root), each.samples)
        for each in message.authors
    )
    names = [each.author for each in authors]
    rate = float32_value(message.learning_rate_bits)
    if not (math.isfinite(rate) and rate >= 0):
        raise RemoteProtocolError(f"expected a learning rate of at least 0, got {rate}")
    if names != sorted(set(names)) or not all(1 <= each.samples <= SAMPLES_MAX for each in authors):
        raise RemoteProtocolError(
            f"expected {len(names)} authors sorted and once each, of 1..{SAMPLES_MAX} samples"
        )
    found = list[Question]()
    for asked in message.ranges:
        silent = tuple(asked.silent)
        in_order = list(silent) == sorted(set(silent)) and all(at < len(names) for at in silent)
        if asked.range >= ranges or not in_order:
            raise RemoteProtocolError(
                f"expected a range below {ranges} without some of {len(names)} authors, sorted and "
                f"once each, got {asked.range} without {len(silent)}"
            )
        about = info.run_id, message.round, message.learning_rate_bits
        found.append(Question(*about, authors, ranges, asked.range, silent))
    return found

"""How far a run goes and a member's own part in it, told with the reply to each heartbeat."""

import math

from coordinator import status_document
from coordinator.history import Credit, History
from coordinator.machine.machine import RunMachine
from coordinator.machine.state.standing import COUNTED_ROUNDS
from coordinator.public_document import rounds_a_turn, seconds_left
from protocol import wire_pb2 as wire
from protocol.ids import PeerId


class Course:
    """Fills replies. What concerns all members alike is computed once in each round."""

    def __init__(self, rounds: RunMachine, history: History) -> None:
        self._rounds, self._history = rounds, history
        self._decided_round: int | None = None
        self._samples, self._left_ms, self._turn = 0, 0, 1.0

    def tell(self, reply: wire.HeartbeatReply, peer: PeerId) -> None:
        """Say how long the run is now and takes, how well it learns, and what the member gives."""
        state, spec = self._rounds.state, self._rounds.spec
        if state.decided_round != self._decided_round:
            self._look()
        reply.steps = state.schedule(spec).steps
        if newest := state.evaluation.newest:
            reply.validation_loss = newest.loss
            reply.validation_round = newest.round
        reply.left_ms = self._left_ms
        reply.part = self._history.credit.get(peer, Credit()).samples / max(1, self._samples)
        if status_document.standing_word(self._rounds, peer) == "fresh":
            counted = self._rounds.members.standing.payloads.get(peer, 0)
            reply.fresh_rounds, reply.standing_rounds = counted, COUNTED_ROUNDS
            missing = math.ceil((COUNTED_ROUNDS - counted) * self._turn)
            reply.standing_round = state.decided_round + missing

    def _look(self) -> None:
        self._decided_round = self._rounds.state.decided_round
        self._samples = sum(each.samples for each in self._history.credit.values())
        self._left_ms = round(1000 * (seconds_left(self._rounds) or 0))
        self._turn = rounds_a_turn(self._rounds)

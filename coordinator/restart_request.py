"""An operator's request to go on from a checkpoint, until it is granted or refused.

    waiting --nobody holds the newest state, or it is forced--> granted
       '-----a round is committed, or there is nothing to restore--> refused: the run goes on

Whether somebody holds the state shows only once nodes have come, so the request waits for the
machine's judgement (`coordinator.machine.rules.head_state`). A commit shows that a member holds it.
"""

import logging

from coordinator.machine.events.inputs import RestartAsked
from coordinator.machine.rules import head_state
from coordinator.sequencer import Sequencer

log = logging.getLogger("lockstep.coordinator")


class RestartRequest:
    """One request; None asks for nothing."""

    def __init__(self, asked: RestartAsked | None, sequencer: Sequencer) -> None:
        self._asked, self._sequencer = asked, sequencer
        self._first_head: int | None = None

    @property
    def words(self) -> str:
        """What the request waits for; empty when none waits."""
        if self._asked is None:
            return ""
        return "goes on from the checkpoint once a node has waited a lease and none has the state"

    async def pursue(self, lost: str) -> None:
        """Grant or refuse the request if that can be said now; `lost` says why no round can open,
        empty while a member holds the state or may.
        """
        asked, rounds = self._asked, self._sequencer.rounds
        if asked is None:
            return
        if self._first_head is None:
            self._first_head = rounds.state.head_round
            log.warning("a checkpoint is at hand", extra={"reason": f"the run {self.words}"})
        refusal = head_state.refusal(rounds.state, asked)
        if not refusal and rounds.state.head_round > self._first_head:
            refusal = f"members hold the newest state, and made round {rounds.state.head_round}"
        if not refusal and not (lost or asked.forced):
            return
        before = len(rounds.state.restarts)
        if not refusal:
            await self._sequencer.submit(asked)
        self._asked = None
        if len(rounds.state.restarts) == before:
            reason = refusal or "a node showed the newest state at the same moment"
            log.error("no restart from the checkpoint", extra={"reason": f"refused: {reason}"})

"""The answer to a node at the door: bans of keys, tokens, the list; and to one that only asks,
before it loads what a node is made of.

The rules are in the machine (`coordinator.machine.operator.admission`); this asks it at a hello,
for nodes and relays alike.
"""

import time
from collections.abc import Callable

from coordinator.machine import ending
from coordinator.machine.events import FinishRun, Refuse
from coordinator.machine.operator import orders
from coordinator.machine.operator.acts import TokenShown
from coordinator.sequencer import Sequencer
from protocol.ids import PeerId, sha256
from protocol.limits import TOKEN_BYTES_MAX


class Admittance:
    """The admission of one run. `clock_s()` is the wall clock."""

    def __init__(
        self, sequencer: Sequencer, clock_s: Callable[[], int] = lambda: int(time.time())
    ) -> None:
        self._sequencer, self._clock_s = sequencer, clock_s

    async def refuses(self, peer: PeerId, token: str, *, relay: bool) -> str:
        """Why a node with a proven key is turned away for good; empty when it is not. A token that
        it shows is used. A node that the machine may still refuse is no concern of this.
        """
        if reason := self._objection(peer, token, relay=relay):
            return reason
        if token and not self._flaw(peer, token):
            await self._sequencer.submit(self._shown(peer, token))
            return self._objection(peer, "", relay=relay)  # used up while this waited
        return ""

    def answer(self, peer: PeerId, token: str, *, relay: bool) -> Refuse | FinishRun | None:
        """Why it would be of no use that a node with a proven key joins now; None where nothing is
        known against it. A place in a full run is not looked for. Changes nothing.
        """
        state = self._sequencer.rounds.state
        if reason := self._objection(peer, token, relay=relay):
            return Refuse(peer, reason)
        if refused := orders.kept_out(peer, state, self._sequencer.now_ms()):
            return refused
        return ending.farewell(state) if state.end.finished else None

    def _objection(self, peer: PeerId, token: str, *, relay: bool) -> str:
        state, members = self._sequencer.rounds.state, self._sequencer.rounds.members
        if reason := state.operator.banned(peer):
            return reason
        if len(token.encode()) > TOKEN_BYTES_MAX:
            return f"expected a token of at most {TOKEN_BYTES_MAX} bytes, got a longer one"
        is_new = relay or members.get(peer) is None
        if not is_new or not (refusal := orders.not_admitted(peer, state, members)):
            return ""
        return self._flaw(peer, token) if token else refusal

    def _flaw(self, peer: PeerId, token: str) -> str:
        rounds = self._sequencer.rounds
        return orders.token_flaw(self._shown(peer, token), rounds.state, rounds.members)

    def _shown(self, peer: PeerId, token: str) -> TokenShown:
        return TokenShown(peer, sha256(token.encode()), self._clock_s())

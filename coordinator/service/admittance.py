"""The answer to a node at the door: bans of keys, tokens, the list; and to one that only asks,
before it loads what a node is made of.

The rules are in the machine (`coordinator.machine.state.admission`); this asks it at a hello,
for nodes and relays alike.
"""

import time
from collections.abc import Callable

from coordinator.machine.events.acts import TokenShown
from coordinator.machine.events.effects import FinishRun, Refuse
from coordinator.machine.rules import ending, joining, orders
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
        rounds = self._sequencer.rounds
        if reason := self._objection(peer, token, relay=relay):
            return Refuse(peer, reason)
        if refused := joining.kept_out(peer, rounds, self._sequencer.now_ms()):
            return refused
        return ending.farewell(rounds.state) if rounds.state.end.finished else None

    def _objection(self, peer: PeerId, token: str, *, relay: bool) -> str:
        rounds = self._sequencer.rounds
        if reason := rounds.state.operator.banned(peer):
            return reason
        if len(token.encode()) > TOKEN_BYTES_MAX:
            return f"expected a token of at most {TOKEN_BYTES_MAX} bytes, got a longer one"
        is_new = relay or rounds.members.get(peer) is None
        if not is_new or not (refusal := joining.not_admitted(peer, rounds)):
            return ""
        return self._flaw(peer, token) if token else refusal

    def _flaw(self, peer: PeerId, token: str) -> str:
        return orders.token_flaw(self._shown(peer, token), self._sequencer.rounds)

    def _shown(self, peer: PeerId, token: str) -> TokenShown:
        return TokenShown(peer, sha256(token.encode()), self._clock_s())

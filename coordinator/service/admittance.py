"""The answer to a node at the door: bans of keys, tokens, the list.

The rules are in the machine (`coordinator.machine.operator.admission`); this asks it at a hello,
for nodes and relays alike.
"""

import time
from collections.abc import Callable

from coordinator.machine.members.membership import Membership
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
        rounds = self._sequencer.rounds
        state, members = rounds.state, rounds.members
        if reason := state.operator.banned(peer):
            return reason
        if not token:
            return (
                orders.not_admitted(peer, state, members) if _is_new(peer, members, relay) else ""
            )
        if len(token.encode()) > TOKEN_BYTES_MAX:
            return f"expected a token of at most {TOKEN_BYTES_MAX} bytes, got a longer one"
        shown = TokenShown(peer, sha256(token.encode()), self._clock_s())
        flaw = orders.token_flaw(shown, state, members)
        if not flaw:
            await self._sequencer.submit(shown)
        if _is_new(peer, members, relay) and orders.not_admitted(peer, state, members):
            return flaw or orders.not_admitted(peer, state, members)
        return ""


def _is_new(peer: PeerId, members: Membership, relay: bool) -> bool:
    return relay or members.get(peer) is None

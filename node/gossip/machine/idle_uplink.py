"""Whom to tell that this node's uplink is idle, and when: a few peers at a time, everybody in turn.
Pure.

Requests wait in queues, and an uplink whose queue has run out knows nothing of the long ones
elsewhere. So it asks for work: who waits for what it holds may come over
(`node.gossip.machine.pull_policy`). A few are asked at a time, for all at once would make of it the
longest queue. Once everybody was asked the pause doubles, for then hardly anybody lacks anything.

Part of the exchange: only `Exchange.handle` calls what changes anything here.
"""

from collections.abc import Sequence

from protocol.ids import PeerId

INVITED = 2
"""Peers asked at a time."""

PAUSE_MS = 100
"""From one time to the next, at first."""

DOUBLINGS_MAX = 7
"""The pause becomes so many times twice as long at most: 13 s."""


class IdleUplink:
    """The turns of one node."""

    def __init__(self) -> None:
        self._asked = self._next_ms = 0

    def end(self) -> None:
        """The uplink has something to do: what comes after that is another idle time."""
        self._asked = self._next_ms = 0

    def due(self, now_ms: int) -> bool:
        """Whether it is time to ask again."""
        return now_ms >= self._next_ms

    def next(self, peers: Sequence[PeerId], now_ms: int) -> list[PeerId]:
        """Whom to ask now that it is due, of `peers` that may lack what is held here."""
        if not peers:
            return []
        self._next_ms = now_ms + (PAUSE_MS << min(self._asked // len(peers), DOUBLINGS_MAX))
        chosen = [
            peers[(self._asked + turn) % len(peers)] for turn in range(min(INVITED, len(peers)))
        ]
        self._asked += len(chosen)
        return chosen

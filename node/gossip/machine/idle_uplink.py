"""Chooses the peers that are told that this node's uplink is idle: a few at a time, all in turn.
Pure.

Requests wait in queues, and a node whose own queue is empty does not see the long queues elsewhere.
So it asks for work: a peer that waits elsewhere for a payload it holds may switch to it
(`node.gossip.machine.pull_policy`). Only a few peers are told at a time; all at once would make it
the longest queue. Once all were told, the pause doubles: by then hardly any peer lacks anything.

Part of the exchange: nothing here changes except through `Exchange.handle`.
"""

from collections.abc import Sequence

from protocol.ids import PeerId

INVITED = 2
"""Peers told at a time."""

PAUSE_MS = 100
"""First pause between two invitations."""

DOUBLINGS_MAX = 7
"""Doublings of the pause at most: it grows to 13 s."""


class IdleUplink:
    """One node's idle time: which peers were told of it, and when the next ones are."""

    def __init__(self) -> None:
        self._invited = self._next_ms = 0

    def reset(self) -> None:
        """The uplink is busy: the next idle time begins with the first peers again."""
        self._invited = self._next_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Whether the pause since the last invitation is over."""
        return now_ms >= self._next_ms

    def invite(self, peers: Sequence[PeerId], now_ms: int) -> list[PeerId]:
        """Choose the next of `peers`, which may lack something that is held here, and begin a
        pause.
        """
        if not peers:
            return []
        self._next_ms = now_ms + (PAUSE_MS << min(self._invited // len(peers), DOUBLINGS_MAX))
        chosen = [
            peers[(self._invited + turn) % len(peers)] for turn in range(min(INVITED, len(peers)))
        ]
        self._invited += len(chosen)
        return chosen

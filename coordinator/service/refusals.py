"""Nodes that will not join because they cannot train the run file. Pure, and not journalled.

A node tries the model before its first round. When that fails, its hello says why in place of
joining, so the operator reads the reason here and not on every volunteer's screen.
"""

from protocol.border.text import one_line
from protocol.ids import PeerId

NODES_KEPT = 64
"""Refusing nodes that are remembered; of more the oldest are forgotten. Keys cost nothing."""

REASON_MAX = 400
"""Characters of a reason that are kept."""


class RunRefusals:
    """The newest refusals of the run file, one for each node."""

    def __init__(self) -> None:
        self._reasons: dict[PeerId, str] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def note(self, peer: PeerId, reason: str) -> str:
        """Remember why a node cannot train; returns the reason as it is shown."""
        self.forget(peer)
        if len(self._reasons) >= NODES_KEPT:
            del self._reasons[next(iter(self._reasons))]
        self._reasons[peer] = one_line(reason, REASON_MAX)
        return self._reasons[peer]

    def forget(self, peer: PeerId) -> None:
        """The node has joined after all."""
        self._reasons.pop(peer, None)

    @property
    def last(self) -> str:
        """The newest reason; empty when no node has refused."""
        return next(reversed(self._reasons.values()), "")

    @property
    def words(self) -> str:
        """All of it in one sentence for the operator; empty when no node has refused."""
        if not self._reasons:
            return ""
        nodes = "1 node" if len(self) == 1 else f"{len(self)} nodes"
        return f"{nodes} refused this run file; the last said: {self.last}"

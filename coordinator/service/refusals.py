"""Nodes that will not join because they cannot train the run file. Pure, and not journalled.

A node tries the model before its first round. When that fails, its hello says why in place of
joining. The reason is a text of a stranger: it goes to the operator's log, and everybody else sees
the number of such nodes alone.
"""

from protocol.ids import PeerId
from protocol.words import quantity

NODES_KEPT = 64
"""Refusing nodes that are remembered; of more the oldest are forgotten. Keys cost nothing."""

REASON_MAX = 400
"""Characters of a reason in the log."""


class RunRefusals:
    """The newest nodes that refused the run file."""

    def __init__(self) -> None:
        self._nodes: dict[PeerId, None] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def note(self, peer: PeerId) -> None:
        """Remember a node that cannot train."""
        self.forget(peer)
        if len(self._nodes) >= NODES_KEPT:
            del self._nodes[next(iter(self._nodes))]
        self._nodes[peer] = None

    def forget(self, peer: PeerId) -> None:
        """The node has joined after all."""
        self._nodes.pop(peer, None)

    @property
    def words(self) -> str:
        """All of it in one sentence for everybody; empty when no node has refused."""
        if not self._nodes:
            return ""
        nodes = quantity(len(self), "node")
        return f"{nodes} refused this run file; the coordinator's log says why"

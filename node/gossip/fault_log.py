"""Faults of peers, each logged once until the peer commits another one."""

import logging

from cachetools import LRUCache

from node.gossip.machine import events
from protocol.ids import PeerId, RunId, short

PEERS_MAX = 1024
"""Peers whose last fault is remembered."""

log = logging.getLogger(__name__)


class FaultLog:
    """The last fault of each peer."""

    def __init__(self, run_id: RunId) -> None:
        self._run_id = run_id
        self._last: LRUCache[PeerId, str] = LRUCache(PEERS_MAX)

    def record(self, blame: events.Blame) -> None:
        """Log a fault, unless it is the one that was logged last of this peer."""
        if self._last.get(blame.peer) != blame.reason:
            log.warning(
                "a peer is at fault",
                extra={
                    "run": short(self._run_id),
                    "peer": short(blame.peer),
                    "reason": blame.reason,
                },
            )
        self._last[blame.peer] = blame.reason

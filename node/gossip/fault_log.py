"""Faults of peers, logged once each until the peer commits another one."""

import logging
from collections import OrderedDict

from node.gossip.machine.events import Blame
from protocol.ids import PeerId, RunId, short

REMARKS_MAX = 1024
"""Peers whose last fault is remembered."""

_log = logging.getLogger(__name__)


class FaultLog:
    """What was last said of each peer."""

    def __init__(self, run_id: RunId) -> None:
        self._run_id = run_id
        self._last: OrderedDict[PeerId, str] = OrderedDict()

    def log(self, blame: Blame) -> None:
        """Say it, unless it was the last that was said of this peer."""
        if self._last.get(blame.peer) != blame.reason:
            _log.warning(
                "run %s: peer %s: %s", short(self._run_id), short(blame.peer), blame.reason
            )
        self._last[blame.peer] = blame.reason
        self._last.move_to_end(blame.peer)
        if len(self._last) > REMARKS_MAX:
            self._last.popitem(last=False)

"""Faults of peers, each logged once until the peer commits another one."""

import logging
from collections import deque

from cachetools import LRUCache

from node.gossip.machine import events
from protocol.ids import Digest, PeerId, RunId, short

PEERS_MAX = 1024
"""Peers whose last fault is remembered."""

AGAIN_MAX = 16
"""Times its own size that a peer takes of a payload from this node. An honest one takes it once, a
part of it where a pull moves or breaks, and once more after each lost disk, damaged transfer or
replay."""

SERVED_MAX = 16_384
"""Payloads, by the peer that took them, whose bytes are remembered: those of some rounds, for as
many peers as a node has links to."""

PULLS_KEPT, BREAKS_MAX = 32, 7
"""Newest pulls from a peer that are remembered, and those among them of an honest one with which
the link broke although the peer was heard: with a restart, or as another link took its place."""

log = logging.getLogger(__name__)


class FaultLog:
    """The last fault of each peer, the peers that are greedy, and those that break links."""

    def __init__(self, run_id: RunId) -> None:
        self._run_id = run_id
        self._last: LRUCache[PeerId, str] = LRUCache(PEERS_MAX)
        self._sent: LRUCache[tuple[PeerId, Digest], int] = LRUCache(SERVED_MAX)
        self._greedy: LRUCache[PeerId, None] = LRUCache(PEERS_MAX)
        self._broke: LRUCache[PeerId, deque[bool]] = LRUCache(PEERS_MAX)

    @property
    def greedy(self) -> frozenset[PeerId]:
        """Peers that took more of a payload than `AGAIN_MAX` times its size."""
        return frozenset(self._greedy)

    @property
    def breaking(self) -> frozenset[PeerId]:
        """Peers to which the link broke in more than `BREAKS_MAX` of the newest pulls."""
        return frozenset(peer for peer, broke in self._broke.items() if sum(broke) > BREAKS_MAX)

    def note_pull(self, peer: PeerId, *, broke: bool) -> None:
        """A pull from a peer ended, perhaps as the link to it broke."""
        self._broke.setdefault(peer, deque(maxlen=PULLS_KEPT)).append(broke)

    def note_sent(self, peer: PeerId, digest: Digest, count: int, size: int) -> None:
        """`count` bytes of a payload of `size` left for a peer."""
        self._sent[peer, digest] = sent = self._sent.get((peer, digest), 0) + count
        if sent > AGAIN_MAX * size:
            self._greedy[peer] = None
            self.record(events.Blame(peer, "it takes the same payloads again and again"))

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

"""The heads of a run on one link: those that this end shows, and the peer's that it weighs. Pure.

A hello shows the newest commit that an end knows, a beat another one now and then. What the peer
shows waits until its turn to be weighed comes; of several the newest word counts.
"""

from node.links.protocol_events import HeadShown
from protocol.codec.heads import Head, Heads
from protocol.wire_pb2 import Head as WireHead

SHOW_MS = 10_000
"""Pause between two beats with a head: 11 bytes a second at most, also where rounds are short."""

WEIGH_MS = 5_000
"""Pause between two heads of the peer that are weighed: whatever it sends costs this end one
signature in this time."""


class ShownHeads:
    """The heads on one link. `known` are those of the process; None: it shows none."""

    def __init__(self, known: Heads | None) -> None:
        self._known = known
        self._sent: Head | None = None
        self._sent_ms: int | None = None
        self._waiting: WireHead | None = None
        self._weighed_ms: int | None = None

    def due(self, now_ms: int) -> WireHead | None:
        """The head to show now, if it changed and its time has come; it counts as shown."""
        newest = self._known.newest if self._known else None
        early = self._sent_ms is not None and now_ms - self._sent_ms < SHOW_MS
        if newest is None or newest == self._sent or early:
            return None
        self._sent, self._sent_ms = newest, now_ms
        return newest.message

    def hear(self, message: WireHead) -> None:
        """The peer shows a head."""
        self._waiting = message

    def weigh(self, now_ms: int) -> list[HeadShown]:
        """The peer's head, if one waits and its time has come."""
        early = self._weighed_ms is not None and now_ms - self._weighed_ms < WEIGH_MS
        if self._waiting is None or early:
            return []
        shown, self._waiting, self._weighed_ms = HeadShown(self._waiting), None, now_ms
        return [shown]

"""Ends the sessions of nodes that fell silent, so that rounds do not wait for them as long as their
lease lasts.

A machine that sleeps, and a line that is cut without a word, leave the stream of a session open.
After half a lease without a message the session ends, after all of it the membership. The node
opens another session when it wakes. A coordinator that could hear nobody blames nobody:

    this process was away between two looks    silence counts from the later one
    a message of the node is being handled     it is not silent, however slow the disk is
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from coordinator.service.sessions import NodeSession, SessionTable
from protocol.ids import PeerId
from protocol.runfile import MembershipSpec

log = logging.getLogger("lockstep.coordinator")

LEASE_PART = 2
"""A session ends after this part of a lease without a message."""

HEARTBEATS_MIN = 4
"""Least number of heartbeats that must be missing."""

LOOKS = 8
"""Looks at the sessions in the time after which one is silent."""


class SilenceWatch:
    """Which sessions are silent; pure."""

    def __init__(self, spec: MembershipSpec) -> None:
        self.silence_ms = max(spec.lease_ms // LEASE_PART, HEARTBEATS_MIN * spec.heartbeat_ms)
        """Time without a message after which a session ends."""
        self.pause_ms = max(1, self.silence_ms // LOOKS)
        """Time between two looks."""
        self._hears_since_ms = self._looked_ms = 0

    def look(self, sessions: Iterable[tuple[PeerId, NodeSession]], now_ms: int) -> list[PeerId]:
        """The nodes that are silent at `now_ms`, which never runs backwards."""
        if now_ms - self._looked_ms > 2 * self.pause_ms:
            self._hears_since_ms = now_ms
        self._looked_ms, silent_ms = now_ms, now_ms - self.silence_ms
        if self._hears_since_ms > silent_ms:
            return []
        return [
            peer
            for peer, session in sessions
            if session.idle_ms is not None and session.idle_ms <= silent_ms
        ]


async def end_silent(
    sessions: SessionTable, spec: MembershipSpec, now_ms: Callable[[], int]
) -> None:
    """End silent sessions until cancelled."""
    watch = SilenceWatch(spec)
    while True:
        await asyncio.sleep(watch.pause_ms / 1000)
        for peer in watch.look(sessions.items(), now_ms()):
            log.info(
                "silent session ended", extra={"peer": peer, "seconds": watch.silence_ms / 1000}
            )
            sessions.retire(peer)

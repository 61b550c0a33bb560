"""Time arithmetic: the instants of a round and a node's estimate of the coordinator's clock.

All time is the coordinator's, in integer milliseconds. A node reads its own monotonic clock only to wait; it
converts with the offset estimated here from heartbeats:

    node       t0 --------------------> t3        offset = ((t1 - t0) + (t2 - t3)) / 2
    coordinator      t1 ------> t2                round trip = (t3 - t0) - (t2 - t1)

The sample with the shortest round trip of the last few wins: its error is at most half its round trip, and a
window that slides follows a drifting clock.
"""

from collections import deque
from dataclasses import dataclass

from protocol.errors import RemoteProtocolError
from protocol.runfile import RoundsSpec

SAMPLES_KEPT = 16
"""Heartbeats of which the best is used: half a minute at the default rate, 3 ms of drift at 100 ppm."""

ROUNDING_MS = 1
"""Four times cut to whole milliseconds can make a round trip of nothing look this much shorter than nothing."""


@dataclass(frozen=True, slots=True)
class Instants:
    """When a round opens, stops computing, stops accepting and is decided, in coordinator milliseconds."""

    opened: int
    bell: int
    publish_by: int
    commit_by: int


def instants(rounds: RoundsSpec, opened_ms: int) -> Instants:
    """The instants of a round that opens at `opened_ms`."""
    bell = opened_ms + rounds.compute_ms
    publish_by = bell + rounds.publish_ms
    return Instants(opened_ms, bell, publish_by, publish_by + rounds.exchange_ms)


class ClockOffset:
    """Best estimate of (coordinator's clock - own clock), in milliseconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_KEPT)

    def observe(self, sent: int, received: int, replied: int, returned: int) -> None:
        """Take one exchange: t0 and t3 on the own clock, t1 and t2 on the coordinator's, all in ms.

        Raises `RemoteProtocolError` when the times contradict each other."""
        round_trip = (returned - sent) - (replied - received)
        if round_trip < -ROUNDING_MS or replied < received:
            raise RemoteProtocolError(
                f"expected heartbeat times in order, got {sent}, {received}, {replied}, {returned}"
            )
        self._samples.append((max(0, round_trip), ((received - sent) + (replied - returned)) // 2))

    @property
    def milliseconds(self) -> int:
        """Add this to the own clock to get the coordinator's; 0 before the first sample."""
        return min(self._samples)[1] if self._samples else 0

    @property
    def round_trip_ms(self) -> int | None:
        """The shortest round trip among the samples in use, or None before the first."""
        return min(self._samples)[0] if self._samples else None

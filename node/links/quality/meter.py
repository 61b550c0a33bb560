"""The round trip and the rate of one link, each the median of the newest measurements. Pure.

round trip   of heartbeats, one a second. They wait behind parts of blobs on their way, in queues
             that `node.links.window` keeps short.
rate         of fetches: the bytes after the first part over the time after it, so that neither the
             wait for the peer's uplink nor the round trip of the request counts
"""

from collections import deque
from dataclasses import dataclass
from statistics import median_low
from typing import Final

SAMPLES: Final = 9
"""Newest measurements of which the median is taken."""

SAMPLES_MIN: Final = 5
"""Round trips before which none is told: the first ones are often those of a busy start."""

FETCH_BYTES_MIN: Final = 128 * 1024
"""Bytes after the first part from which on a fetch tells a rate; below, the clock's steps do."""


@dataclass(slots=True)
class FetchTiming:
    """Bytes and time of one fetch after its first part."""

    first_ms: int | None = None
    count: int = 0
    took_ms: int = 0

    def note(self, count: int, now_ms: int) -> None:
        """A part with this number of bytes arrived."""
        if self.first_ms is None:
            self.first_ms = now_ms
            return
        self.count += count
        self.took_ms = now_ms - self.first_ms


class LinkMeter:
    """Measurements of one link."""

    def __init__(self) -> None:
        self._round_trips_ms: deque[int] = deque(maxlen=SAMPLES)
        self._bit_s: deque[int] = deque(maxlen=SAMPLES)

    def note_round_trip(self, milliseconds: int) -> None:
        """A heartbeat came back."""
        self._round_trips_ms.append(milliseconds)

    def note_fetch(self, timing: FetchTiming) -> None:
        """A fetch has ended."""
        if timing.count >= FETCH_BYTES_MIN:
            self._bit_s.append(8000 * timing.count // max(1, timing.took_ms))

    @property
    def newest_ms(self) -> int | None:
        """The newest round trip; None before the first."""
        return self._round_trips_ms[-1] if self._round_trips_ms else None

    @property
    def round_trip_ms(self) -> int | None:
        """The round trip; None while too few were measured."""
        enough = len(self._round_trips_ms) >= SAMPLES_MIN
        return median_low(self._round_trips_ms) if enough else None

    @property
    def bit_s(self) -> int:
        """Bits a second from the peer; 0 while unknown."""
        return median_low(self._bit_s) if self._bit_s else 0

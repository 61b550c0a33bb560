"""Time arithmetic: the instants of a round and a node's estimate of the coordinator's clock.

All time is the coordinator's, in integer milliseconds. A node reads its own monotonic clock only to
wait; it converts with the offset estimated here from heartbeats:

    node       t0 --------------------> t3        offset = ((t1 - t0) + (t2 - t3)) / 2
    coordinator      t1 ------> t2                round trip = (t3 - t0) - (t2 - t1)

The sample with the shortest round trip of the last few wins: its error is at most half its round
trip, and a window that slides follows a drifting clock. A sample that no drift reconciles with the
newest one is dropped: one of the two clocks was stopped or set in between (a suspended machine, a
coordinator on another host), and what was known before is worth nothing.
"""

from collections import deque
from dataclasses import dataclass

from protocol.errors import RemoteProtocolError
from protocol.runfile import RoundsSpec

SAMPLES_KEPT = 16
"""Heartbeats of which the best is used: half a minute at the default rate, 3 ms of drift at 100
ppm."""

DRIFT_PPM = 500
"""Drift that two clocks may have against each other: quartz has 100, a virtual machine some
more."""

ROUNDING_MS = 1
"""Four times cut to whole milliseconds can make a round trip of nothing look this much shorter than
nothing."""


@dataclass(frozen=True, slots=True)
class Instants:
    """When a round opens, stops computing, stops accepting and is decided, in coordinator
    milliseconds.
    """

    opened: int
    bell: int
    publish_by: int
    commit_by: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Lengths of a round's parts, in milliseconds: to the bell, to `publish_by`, to `commit_by`."""

    compute_ms: int
    publish_ms: int
    exchange_ms: int

    @property
    def milliseconds(self) -> int:
        """From the opening to `commit_by`."""
        return self.compute_ms + self.publish_ms + self.exchange_ms


def stated_slot(rounds: RoundsSpec) -> Slot:
    """The slot that the run file states."""
    return Slot(rounds.compute_ms, rounds.publish_ms, rounds.exchange_ms)


def longest_slot(rounds: RoundsSpec) -> Slot:
    """The longest slot that adaptive pacing may come to."""
    stretch = rounds.stretch
    return Slot(
        rounds.compute_ms * stretch, rounds.publish_ms * stretch, rounds.exchange_ms * stretch
    )


def instants(slot: Slot, opened_ms: int) -> Instants:
    """The instants of a round of this slot that opens at `opened_ms`."""
    bell = opened_ms + slot.compute_ms
    publish_by = bell + slot.publish_ms
    return Instants(opened_ms, bell, publish_by, publish_by + slot.exchange_ms)


class ClockOffset:
    """Best estimate of (coordinator's clock - own clock), in milliseconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque(
            maxlen=SAMPLES_KEPT
        )  # round trip, offset, t0

    def observe(self, sent: int, received: int, replied: int, returned: int) -> None:
        """Take one exchange: t0 and t3 on the own clock, t1 and t2 on the coordinator's, all in ms.

        Raises `RemoteProtocolError` when the times contradict each other.
        """
        round_trip = (returned - sent) - (replied - received)
        if round_trip < -ROUNDING_MS or replied < received:
            raise RemoteProtocolError(
                f"expected heartbeat times in order, got {sent}, {received}, {replied}, {returned}"
            )
        newest = (max(0, round_trip), ((received - sent) + (replied - returned)) // 2, sent)
        kept = [sample for sample in self._samples if _reconcilable(sample, newest)]
        self._samples.clear()
        self._samples.extend([*kept, newest])

    @property
    def milliseconds(self) -> int:
        """Add this to the own clock to get the coordinator's; 0 before the first sample."""
        return min(self._samples)[1] if self._samples else 0

    @property
    def round_trip_ms(self) -> int | None:
        """The shortest round trip among the samples in use, or None before the first."""
        return min(self._samples)[0] if self._samples else None


def _reconcilable(older: tuple[int, int, int], newer: tuple[int, int, int]) -> bool:
    """May both samples (round trip, offset, t0) be of clocks that only drift?"""
    drift_ms = abs(newer[2] - older[2]) * DRIFT_PPM // 1_000_000
    errors_ms = (older[0] + newer[0]) // 2 + 1 + 2 * ROUNDING_MS
    return abs(newer[1] - older[1]) <= errors_ms + drift_ms


def length_text(seconds: int, second: str) -> str:
    """A length of time in its largest unit of which there are two; `second` is the word for the
    smallest one.
    """
    for unit, unit_s in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:,} {unit}"
    return f"{seconds} {second}"

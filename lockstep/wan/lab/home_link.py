"""The effect of a home link on the packets that cross it, as values and arithmetic. Pure.

      home ==> [ queue | rate ] ==> delay + jitter, loss ==> internet       up
      home <== delay + jitter, loss <== [ queue | rate ] <== internet       down

A packet waits for the link's rate in a queue of bounded size, then travels for the delay. When
packets come faster than the rate, the queue fills and further ones are dropped, as by a modem. The
queue holds the bytes of a round trip and of `queue_s` more: a shorter one would cap the rate of a
long link, a much longer one would mean seconds of waiting.

Jitter wanders: it is an extra between minus and plus `jitter_s` that changes along straight lines,
so that packets keep their order and the mean delay stays as asked, under load too.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

FRAME_BYTES_MAX = 1514
"""Size of the largest Ethernet frame: a packet of 1500 bytes and its header."""

QUEUE_S = 0.1
"""Time that a full queue adds; home routers have this or more."""

QUEUE_FRAMES_MIN = 16
"""Smallest queue, for slow links: TCP starts with a burst of ten packets."""

BURST_S = 0.001
"""Size of a token bucket, as time at the rate: the timer's grain, far below any delay here."""

WANDER_S = 0.1
"""Time from one random value of the jitter to the next. The slope 2 * jitter_s / WANDER_S must stay
below one, or packets would overtake each other."""


@dataclass(frozen=True, slots=True)
class LinkDirection:
    """One direction of a link."""

    rate_bit_s: int = 0
    """Bits per second of whole Ethernet frames; 0: as fast as the machine."""

    delay_s: float = 0.0
    """Mean travel time, without the wait for the rate."""

    jitter_s: float = 0.0
    """Greatest deviation from `delay_s`."""

    loss: float = 0.0
    """Share of the packets that are lost, each independently."""

    queue_s: float = QUEUE_S
    """Time that a full queue adds to a round trip."""

    @property
    def queue_bytes(self) -> int:
        """Limit of the queue before the rate; 0 without a rate."""
        if not self.rate_bit_s:
            return 0
        carried = self.rate_bit_s / 8 * (2 * self.delay_s + self.queue_s)
        return max(round(carried), QUEUE_FRAMES_MIN * FRAME_BYTES_MAX)

    @property
    def burst_bytes(self) -> int:
        """Bytes that may leave at once: two frames, or the timer's grain on a fast link."""
        return max(round(self.rate_bit_s / 8 * BURST_S), 2 * FRAME_BYTES_MAX)

    @property
    def held_frames(self) -> int:
        """Limit on the frames in the queue and under way together, for small frames of a tenth of
        the largest.
        """
        held = self.queue_bytes + self.rate_bit_s / 8 * (self.delay_s + self.jitter_s)
        return 1000 + round(10 * held / FRAME_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class HomeLink:
    """Both directions, seen from the home."""

    up: LinkDirection | None = None
    """From the home; None: not shaped."""

    down: LinkDirection | None = None
    """To the home; None: not shaped."""

    @property
    def rtt_s(self) -> float:
        """Mean round trip of a packet that waits for no other."""
        return sum(way.delay_s for way in (self.up, self.down) if way)

    def slowed(self, factor: float) -> "HomeLink":
        """The same link with its rates times `factor`."""
        return HomeLink(_slowed(self.up, factor), _slowed(self.down, factor))

    def document(self) -> dict[str, Any]:
        """The link as a document that JSON can hold; `home_link` reads it."""
        return asdict(self)


def home_link(document: dict[str, Any]) -> HomeLink:
    """The link that `HomeLink.document` wrote."""
    return HomeLink(
        **{name: LinkDirection(**way) if way else None for name, way in document.items()}
    )


def _slowed(way: LinkDirection | None, factor: float) -> LinkDirection | None:
    if way is None or not way.rate_bit_s:
        return way
    return replace(way, rate_bit_s=max(1, round(way.rate_bit_s * factor)))


class PacketFate:
    """Draws the arrival of each packet that enters one direction of a link."""

    def __init__(self, way: LinkDirection, uniform: Callable[[], float]) -> None:
        """`uniform()` draws from [0, 1)."""
        self.way = way
        self._uniform = uniform
        self._from_s = self._until_s = 0.0
        self._from = self._until = 0.0

    def arrival_s(self, now_s: float) -> float | None:
        """Draws the instant of arrival of a packet that enters at `now_s`; None: it is lost.

        `now_s` must not go back.
        """
        way = self.way
        if way.loss and self._uniform() < way.loss:
            return None
        return now_s + way.delay_s + (self._wandering_s(now_s) if way.jitter_s else 0.0)

    def _wandering_s(self, now_s: float) -> float:
        if now_s >= self._until_s:
            self._from_s, self._from = now_s, self._until
            self._until_s, self._until = (
                now_s + WANDER_S,
                self.way.jitter_s * (2 * self._uniform() - 1),
            )
        passed = (now_s - self._from_s) / (self._until_s - self._from_s)
        return self._from + passed * (self._until - self._from)

"""What a home link does to the packets that cross it, as values and arithmetic.

      home ==> [ queue | rate ] ==> delay + jitter, loss ==> internet       up
      home <== delay + jitter, loss <== [ queue | rate ] <== internet       down

A packet waits for the link's rate in a queue of bounded size, then travels for the delay. A link
that is asked for more than its rate fills the queue and then drops, as a modem does. The queue
holds what the link carries in a round trip and `queue_s` more: less would cap the rate of a long
link, much more would be seconds of waiting.

Jitter wanders: an extra between minus and plus `jitter_s` that changes along straight lines, so
that packets keep their order and the mean delay stays what was asked, under load too.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

FRAME_BYTES_MAX = 1514
"""Largest Ethernet frame: 1500 bytes of packet and its header."""

QUEUE_S = 0.1
"""Of a home router, which has this or more."""

QUEUE_FRAMES_MIN = 16
"""Of a slow link: TCP starts with a burst of ten packets."""

BURST_S = 0.001
"""A token bucket may send this much at once: the timer's grain, far below any delay here."""

WANDER_S = 0.1
"""Time from one random value of the jitter to the next. The slope 2 * jitter_s / WANDER_S must stay
below one, or packets would overtake each other."""


@dataclass(frozen=True, slots=True)
class LinkDirection:
    """One direction of a link."""

    rate_bit_s: int = 0
    """Bits per second of whole Ethernet frames; 0: as fast as the machine."""

    delay_s: float = 0.0
    """Mean time on the way, without the wait for the rate."""

    jitter_s: float = 0.0
    """Greatest deviation from `delay_s`."""

    loss: float = 0.0
    """Share of the packets that do not arrive, each by itself."""

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
        """What may leave at once: two frames, or the timer's grain of a fast link."""
        return max(round(self.rate_bit_s / 8 * BURST_S), 2 * FRAME_BYTES_MAX)

    @property
    def held_frames(self) -> int:
        """Most frames that queue and way hold together, were all of them small ones of a tenth of
        the largest.
        """
        held = self.queue_bytes + self.rate_bit_s / 8 * (self.delay_s + self.jitter_s)
        return 1000 + round(10 * held / FRAME_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class HomeLink:
    """Both directions, seen from the home."""

    up: LinkDirection | None = None
    """From the home; None: left as it is."""

    down: LinkDirection | None = None
    """To the home; None: left as it is."""

    @property
    def rtt_s(self) -> float:
        """Mean round trip of a lone packet."""
        return sum(way.delay_s for way in (self.up, self.down) if way)

    def slowed(self, factor: float) -> "HomeLink":
        """The same link at a share of its rates."""
        return HomeLink(_slowed(self.up, factor), _slowed(self.down, factor))

    def document(self) -> dict[str, Any]:
        """JSON-able; `home_link` reads it."""
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
    """When a packet that enters a way now leaves it."""

    def __init__(self, way: LinkDirection, uniform: Callable[[], float]) -> None:
        """`uniform` draws from [0, 1)."""
        self.way = way
        self._uniform = uniform
        self._from_s = self._until_s = 0.0
        self._from = self._until = 0.0

    def arrival_s(self, now_s: float) -> float | None:
        """The instant, on the clock of `now_s`, which must not go back; None: the packet is
        lost.
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

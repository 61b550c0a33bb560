"""Limits the bytes on their way over a link, by the delay of their acknowledgements. Pure.

    delay = base (the link's own, and the difference of the clocks) + queue (of the sender's bytes)

    queue = 0 .. QUEUE_MS    a full window grows by (1 - queue / QUEUE_MS) of the bytes taken:
                             it doubles, then levels off
    queue > QUEUE_MS         the window of that part shrinks to the bytes that the link carries in
                             base + QUEUE_MS

In the manner of LEDBAT (RFC 6817): a thin uplink has no long queue before its heartbeats and
offers, a fat one is full. A part is a quarter of the window: small where a large one would block
the link for seconds.

A sender that keeps the link full never observes its base delay. So every `BASE_MS` the sender lets
the link run dry, and the part that then leaves alone measures the base anew. Links that share a
bottleneck see each other's dry moment as a new shortest delay: they come to run dry together, and
none takes the others' queue for its own base for long (as BBR probes, for the same reason). That
costs one round trip in `BASE_MS`.

The delay is one-way, until the peer took the part, by its clock: acknowledgements may wait in the
peer's own full uplink, which is no reason to send less.
"""

from collections import deque
from dataclasses import dataclass

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN
from protocol.errors import RemoteProtocolError

WINDOW_BYTES_MIN = 2 * PART_BYTES_MIN
"""Least window: one part on the wire and one behind it fill the thinnest link."""

WINDOW_BYTES_FIRST = 8 * PART_BYTES_MIN
"""First window, before any measurement: 1.1 s of a link of 0.06 Mbit/s."""

WINDOW_BYTES_MAX = 16 * PART_BYTES_MAX
"""Largest window: 8 MiB of unacknowledged bytes fill 400 Mbit/s over 150 ms."""

QUEUE_MS = 250
"""Longest queue of the sender's own bytes. After the link ran dry, and while the window grows, they
may queue for up to twice this time and the round trip; on a link of 0.4 Mbit/s for a second at
most."""

BASE_MS = 30_000
"""Time for which the shortest delay seen is taken for the base."""


@dataclass(frozen=True, slots=True)
class _SentPart:
    """A part on its way."""

    end: int
    """Bytes sent in all, up to its end."""
    at_ms: int
    window: int
    """The window when it left."""
    alone: bool
    """Whether nothing was on the way before it."""


class Window:
    """The window of one direction of a link."""

    def __init__(self) -> None:
        self.bytes = WINDOW_BYTES_FIRST
        self.sent = 0
        self.acknowledged = 0
        self._on_the_way: deque[_SentPart] = deque()
        self._base_ms = 0  # with the difference of the two clocks in it
        self._base_until_ms = -1
        self._running_dry = False

    @property
    def part_bytes(self) -> int:
        """Data of the next part: a power of two."""
        quarter = 1 << ((self.bytes // 4).bit_length() - 1)
        return max(PART_BYTES_MIN, min(PART_BYTES_MAX, quarter))

    @property
    def open(self) -> bool:
        """Whether a part may leave now."""
        return self.sent == self.acknowledged or not (self._running_dry or self._full)

    def send(self, count: int, now_ms: int) -> None:
        """Count a part of `count` bytes that is handed to the pipe."""
        alone = self.sent == self.acknowledged
        if alone:
            self._running_dry = False
        self.sent += count
        self._on_the_way.append(_SentPart(self.sent, now_ms, self.bytes, alone))

    def acknowledge(self, total: int, now_ms: int, taken_ms: int | None = None) -> None:
        """Record that the peer has taken `total` bytes in all; `RemoteProtocolError` for bytes that
        were never sent.

        `taken_ms`: the time, by the peer's clock of any origin; None when the peer does not
        tell.
        """
        if not self.acknowledged <= total <= self.sent:
            raise RemoteProtocolError(
                f"expected {self.acknowledged}..{self.sent} bytes acknowledged, got {total}"
            )
        growth = total - self.acknowledged if self._full else 0
        self.acknowledged = total
        part, alone = None, False
        while self._on_the_way and self._on_the_way[0].end <= total:
            part = self._on_the_way.popleft()
            alone |= part.alone
        # The newest of the parts acknowledged together: it waited least for the others.
        if part is not None:
            queue_ms = self._queue_ms(
                (now_ms if taken_ms is None else taken_ms) - part.at_ms, alone, now_ms
            )
            self._adapt(part.window, queue_ms, max(1, now_ms - part.at_ms), growth)

    @property
    def _full(self) -> bool:
        return self.sent - self.acknowledged + self.part_bytes > self.bytes

    def _queue_ms(self, delay_ms: int, alone: bool, now_ms: int) -> int:
        if delay_ms <= self._base_ms or (alone and now_ms > self._base_until_ms):
            self._base_ms, self._base_until_ms = delay_ms, now_ms + BASE_MS
        self._running_dry = now_ms > self._base_until_ms
        return delay_ms - self._base_ms

    def _adapt(self, window: int, queue_ms: int, round_trip_ms: int, growth: int) -> None:
        if queue_ms <= QUEUE_MS:
            self.bytes = min(
                WINDOW_BYTES_MAX, self.bytes + growth * (QUEUE_MS - queue_ms) // QUEUE_MS
            )
        else:
            carried = window * (round_trip_ms - queue_ms + QUEUE_MS) // round_trip_ms
            self.bytes = max(WINDOW_BYTES_MIN, min(self.bytes, carried))

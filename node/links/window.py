"""How many bytes may be on their way over a link, from how long their acknowledgements take. Pure.

    delay = base (the link's own, and the clocks' difference) + queue (the sender's bytes, waiting somewhere)

    queue = 0 .. QUEUE_MS    a full window grows by (1 - queue / QUEUE_MS) of what was taken: doubles, then levels off
    queue > QUEUE_MS         the window of that part shrinks to what the link carries in base + QUEUE_MS

In the manner of LEDBAT (RFC 6817): a thin uplink has no long queue before its heartbeats and
offers, a fat one is full. A part is a quarter of the window: small where a large one would block
the link for seconds.

Who always fills a link never sees its own delay. So every `BASE_MS` the sender lets the link run
dry, and the part that then leaves alone tells the base anew. Links that share a bottleneck see each
other's dry moment as a new shortest delay: they come to run dry together, and none takes the
others' queue for the link's own for long (as BBR probes, and for its reason). That costs one round
trip in `BASE_MS`.

The delay is that of one way, to the instant when the peer took the part, by its clock:
acknowledgements may wait in the peer's own full uplink, which is no reason to send less."""

from collections import deque
from dataclasses import dataclass

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN
from protocol.errors import RemoteProtocolError

WINDOW_BYTES_MIN = 2 * PART_BYTES_MIN
"""One part on the wire and one behind it: the thinnest link is full."""

WINDOW_BYTES_FIRST = 8 * PART_BYTES_MIN
"""Before anything is known: 0.7 s of a link of 0.4 Mbit/s."""

WINDOW_BYTES_MAX = 16 * PART_BYTES_MAX
"""Unacknowledged bytes on a link: 8 MiB fill 400 Mbit/s over 150 ms."""

QUEUE_MS = 250
"""How long the sender's own bytes may queue on the way. After the link ran dry, and while the
window grows, they may queue for up to twice this and the round trip; on a link of 0.4 Mbit/s for a
second at most."""

BASE_MS = 30_000
"""How long the shortest delay seen stands for the link's own."""


@dataclass(frozen=True, slots=True)
class _SentPart:
    """A part on its way."""

    end: int
    """Bytes sent with it."""
    at_ms: int
    window: int
    """The window it left under."""
    alone: bool
    """Nothing was on the way before it."""


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

    def left(self, count: int, now_ms: int) -> None:
        """A part was handed to the pipe."""
        alone = self.sent == self.acknowledged
        if alone:
            self._running_dry = False
        self.sent += count
        self._on_the_way.append(_SentPart(self.sent, now_ms, self.bytes, alone))

    def acknowledge(self, total: int, now_ms: int, taken_ms: int | None = None) -> None:
        """The peer has taken `total` bytes in all; `RemoteProtocolError` for what was never sent.

        `taken_ms`: when, by the peer's clock; its origin does not matter. None: the peer does not
        say."""
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
        if (
            part is not None
        ):  # the newest of those that are acknowledged together: it waited least for the others
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

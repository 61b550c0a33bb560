"""How many bytes may be on their way over a link, from how long their acknowledgements take. Pure.

The window grows by what was taken while it is full and acknowledgements come soon. When they come later than the link's
own delay and `QUEUE_MS`, the sender's bytes queue somewhere: the window shrinks to what the link carries in that time
(in the manner of LEDBAT, RFC 6817). So a thin uplink has no long queue before its heartbeats and offers, and a fat one
is full. A part is a quarter of the window: small where a large one would block the link for seconds.
"""

from collections import deque

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN
from protocol.errors import RemoteProtocolError

WINDOW_BYTES_MIN = 2 * PART_BYTES_MIN
WINDOW_BYTES_FIRST = 16 * PART_BYTES_MIN
WINDOW_BYTES_MAX = 16 * PART_BYTES_MAX
"""Unacknowledged bytes on a link: 8 MiB fill 400 Mbit/s over 150 ms."""

QUEUE_MS = 250
"""How long the sender's own bytes may queue on the way."""

BASE_DELAY_MS = 30_000
"""How long the shortest delay seen stands for the link's own."""


class Window:
    """How many bytes may be on their way, from how long the acknowledgements take. Pure."""

    def __init__(self) -> None:
        self.bytes = WINDOW_BYTES_FIRST
        self.sent = 0
        self.acknowledged = 0
        self._ends: deque[tuple[int, int]] = deque()  # (sent after this part, when it left)
        self._shrunk_at = 0  # bytes sent when the window last shrank: what left before says nothing new
        self._base_ms = 0
        self._base_until_ms = -1

    @property
    def part_bytes(self) -> int:
        """Data of the next part."""
        wanted = 1 << ((self.bytes // 4).bit_length() - 1)
        return max(PART_BYTES_MIN, min(PART_BYTES_MAX, wanted))

    @property
    def open(self) -> bool:
        """Whether a part may leave now."""
        on_the_way = self.sent - self.acknowledged
        return on_the_way == 0 or on_the_way + self.part_bytes <= self.bytes

    def left(self, count: int, now_ms: int) -> None:
        """A part was handed to the pipe."""
        self.sent += count
        self._ends.append((self.sent, now_ms))

    def acknowledge(self, total: int, now_ms: int) -> None:
        """The peer has taken `total` bytes in all; `RemoteProtocolError` for what was never sent."""
        if not self.acknowledged <= total <= self.sent:
            raise RemoteProtocolError(f"expected {self.acknowledged}..{self.sent} bytes acknowledged, got {total}")
        was_full = not self.open
        taken, sent_ms, self.acknowledged = total - self.acknowledged, None, total
        while self._ends and self._ends[0][0] <= total:
            end, sent_ms = self._ends.popleft()
        if sent_ms is None:
            return
        delay_ms = max(1, now_ms - sent_ms)
        if delay_ms <= self._base_ms or now_ms > self._base_until_ms:
            self._base_ms, self._base_until_ms = delay_ms, now_ms + BASE_DELAY_MS
        target_ms = self._base_ms + QUEUE_MS
        if delay_ms <= target_ms:
            if was_full:
                self.bytes = min(WINDOW_BYTES_MAX, self.bytes + taken)
        elif end > self._shrunk_at:
            self.bytes = max(WINDOW_BYTES_MIN, self.bytes * target_ms // delay_ms)
            self._shrunk_at = self.sent

"""Who may send next, and how fast: one node's upload, shared by all of its links.

Which upload begins next, and how many run at once, `node.links.upload_queue` decides; here they
wait for their turn.

An upload limit is a token bucket, filled a little slower than the limit and holding a quarter of a
second, so that no five seconds carry more than the limit. What transports and the operating system
add is guessed when bytes leave, and where the guess was too low the rest is charged as soon as it
is known: all that the kernel counted, the session with the coordinator and circuits of libp2p's
daemon included, within a second.

Who never waits (heartbeats, offers, acknowledgements: some 400 bytes a second on each link) is
charged all the same. So a limit holds for as many links as it has room for: the least one for 40.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN
from node.links.upload_queue import Upload, Uploads, Urgency
from protocol.errors import SettingsError
from protocol.ids import Digest, PeerId

FILL_SHARE = 0.93
BURST_SECONDS = 0.25
"""5 s * 0.93 + 0.25 s = 4.9 s: a bit less than the limit in any five seconds, for what was charged
leaves sooner after that at one time than at another, by some hundredths of a second."""

HEADERS_SHARE = 1.05
"""Bytes on the wire per byte sent: 66 of headers in each 1514, and the transport's own frames."""

ACKNOWLEDGED_SHARE = 0.03
"""Bytes sent per byte received: an acknowledgement of 66 bytes for every second packet, and a
little more."""

PACKET_BYTES = 80
"""Added to what leaves alone: its packet's headers, 66, and its transport's frame."""

LIMIT_BYTES_PER_SECOND_MIN = 20_000
"""Below this the smallest part is more than the bucket holds, and what leaves at once more than the
limit."""


class Bucket:
    """Tokens are bytes. Pure: time comes in."""

    def __init__(self, bytes_per_second: int, now_ms: int) -> None:
        if bytes_per_second < LIMIT_BYTES_PER_SECOND_MIN:
            raise SettingsError(
                f"expected an upload limit of {LIMIT_BYTES_PER_SECOND_MIN}.. bytes per second, got {bytes_per_second}"
            )
        self._per_ms = FILL_SHARE * bytes_per_second / 1000
        self._tokens_max = BURST_SECONDS * bytes_per_second
        self._tokens, self._at_ms = self._tokens_max, now_ms

    @property
    def burst_bytes(self) -> int:
        """The most that can leave at once."""
        return int(self._tokens_max)

    def charge(self, count: float, now_ms: int) -> None:
        """So many bytes leave; what is not there is owed."""
        self._fill(now_ms)
        self._tokens -= count

    def wait_ms(self, count: float, now_ms: int) -> float:
        """How long until so many bytes may leave (all that the bucket holds, if they are more)."""
        self._fill(now_ms)
        return max(0.0, min(count, self._tokens_max) - self._tokens) / self._per_ms

    def _fill(self, now_ms: int) -> None:
        self._tokens = min(
            self._tokens_max, self._tokens + self._per_ms * max(0, now_ms - self._at_ms)
        )
        self._at_ms = now_ms


class Uplink:
    """This node's upload. `bytes_per_second` None: as fast as the links carry. `clock_ms()` is a
    monotonic clock."""

    def __init__(self, bytes_per_second: int | None, clock_ms: Callable[[], int]) -> None:
        self._bucket = None if bytes_per_second is None else Bucket(bytes_per_second, clock_ms())
        self._ahead = 0.0  # what was charged and, as far as is known, not carried
        self._carried = 0
        self._clock_ms = clock_ms
        self._uploads = Uploads(lambda peer, digest: self.urgency(peer, digest))
        self._waiting: dict[Upload, list[asyncio.Future[None]]] = {}
        self._turn = asyncio.Lock()
        self.urgency: Callable[[PeerId, Digest], Urgency] = lambda peer, digest: ()
        """How urgent an upload is, less is more urgent; the swarm knows."""

    @asynccontextmanager
    async def turn(self, upload: Upload, size: int) -> AsyncIterator[None]:
        """An upload of `size` bytes, from its turn to its end."""
        self._uploads.asked(upload, size, self._clock_ms())
        begins = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(upload, []).append(begins)
        self._start()
        try:
            await begins
            yield
        finally:
            self._ended(upload, begins)

    def progressed(self, upload: Upload, count: int) -> None:
        """The peer acknowledged so many bytes of an upload."""
        self._uploads.sent(upload, count, self._clock_ms())
        self._start()

    @property
    def idle(self) -> bool:
        """Whether nobody wants anything."""
        return not self._waiting

    def soon(self, upload: Upload) -> bool:
        """Whether an upload that waits begins soon."""
        return self._uploads.soon(upload)

    def look(self) -> None:
        """Begin uploads that time alone has made possible; to be called now and then."""
        self._start()

    async def take(self, count: int) -> None:
        """Charge bytes of a transfer, and return when they may leave."""
        if self._bucket is None:
            return
        async with self._turn:  # first come, first served
            # Again after each wait, for control frames may have gone first meanwhile.
            while wait_ms := self._bucket.wait_ms(HEADERS_SHARE * count, self._clock_ms()):  # noqa: ASYNC110
                await asyncio.sleep(math.ceil(wait_ms) / 1000)
            self._charge(HEADERS_SHARE * count)

    def sent(self, count: int) -> None:
        """Charge bytes that never wait: heartbeats, offers, acknowledgements."""
        if count:
            self._charge(HEADERS_SHARE * count + PACKET_BYTES)

    def received(self, count: int) -> None:
        """So many bytes came in: acknowledging them costs upload as well."""
        self._charge(ACKNOWLEDGED_SHARE * count)

    def carried(self, total: int) -> None:
        """Everything together, so many bytes left since the start: charge what was not charged yet.

        What was charged in excess, by a guess or for a part that has not left yet, makes up for as
        much as a part."""
        self._ahead = min(self._ahead - (total - self._carried), self.part_bytes_max)
        self._carried = total
        self._charge(max(0.0, -self._ahead))

    @property
    def part_bytes_max(self) -> int:
        """Data of the largest part that the limit lets leave smoothly."""
        burst_bytes = PART_BYTES_MAX if self._bucket is None else self._bucket.burst_bytes // 2
        return max(PART_BYTES_MIN, min(PART_BYTES_MAX, burst_bytes))

    def _charge(self, count: float) -> None:
        if self._bucket is not None:
            self._bucket.charge(count, self._clock_ms())
            self._ahead += count

    def _start(self) -> None:
        for upload in self._uploads.start(self._clock_ms()):
            for begins in self._waiting.get(upload, ()):
                if not begins.done():
                    begins.set_result(None)

    def _ended(self, upload: Upload, begins: "asyncio.Future[None]") -> None:
        together = self._waiting[upload]
        together.remove(begins)
        if not together:
            del self._waiting[upload]
            self._uploads.ended(upload)
            self._start()

"""This node's upload, shared by all of its links: which of them sends next, and how fast.

`node.links.upload_queue` decides which upload begins next and how many run at once; here uploads
wait for their turn.

An upload limit is a token bucket (`node.system.rate_limit`). The bytes that transports and the
operating system add are estimated when bytes leave. Where the estimate was too low, the rest is
charged as soon as it is known, within a second: everything that the kernel counted, including the
session with the coordinator and circuits of libp2p's daemon.

Control frames never wait (heartbeats, offers, acknowledgements: some 400 bytes a second on each
link) and are charged all the same. So a limit holds for as many links as it has room for: the least
one for 40.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN
from node.links.upload_queue import Upload, Uploads, Urgency
from node.system.rate_limit import rate_bucket
from protocol.border.token_bucket import TokenBucket
from protocol.ids import Digest, PeerId

HEADERS_SHARE = 1.05
"""Bytes on the wire per byte sent: 66 of headers in each 1514, and the transport's own frames."""

ACKNOWLEDGED_SHARE = 0.03
"""Bytes sent per byte received: an acknowledgement of 66 bytes for every second packet, and a
little more."""

PACKET_BYTES = 80
"""Bytes added to frames that leave alone: 66 of packet headers, and the transport's frame."""


class Uplink:
    """The upload of one node. `bytes_per_second` None: no limit. `clock_ms()` is a monotonic
    clock.
    """

    def __init__(self, bytes_per_second: int | None, clock_ms: Callable[[], int]) -> None:
        self._bucket: TokenBucket | None = None
        self._ahead = 0.0  # bytes charged that, as far as is known, were not carried
        self._carried = 0
        self._clock_ms = clock_ms
        self.limit(bytes_per_second)
        # The swarm sets `urgency` later.
        self._uploads = Uploads(lambda peer, digest: self.urgency(peer, digest))  # noqa: PLW0108
        self._waiting: dict[Upload, list[asyncio.Future[None]]] = {}
        self._turn = asyncio.Lock()
        self.urgency: Callable[[PeerId, Digest], Urgency] = lambda peer, digest: ()
        """Urgency of an upload, set by the swarm; less is more urgent."""

    def limit(self, bytes_per_second: int | None) -> None:
        """Send no more than this from now on, None: without a limit; `SettingsError` for a limit
        that is too low.
        """
        self._bucket = rate_bucket(bytes_per_second, self._clock_ms()) if bytes_per_second else None

    @asynccontextmanager
    async def turn(self, upload: Upload, size: int) -> AsyncIterator[None]:
        """Wait for the turn of an upload of `size` bytes, and hold it to the end of the block."""
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
        """Record that the peer acknowledged `count` bytes of an upload."""
        self._uploads.sent(upload, count, self._clock_ms())
        self._start()

    @property
    def idle(self) -> bool:
        """Whether no peer wants any blob of this node."""
        return not self._waiting

    @property
    def uploads(self) -> int:
        """Uploads that wait for their turn or have it."""
        return sum(map(len, self._waiting.values()))

    def soon(self, upload: Upload) -> bool:
        """Whether a waiting upload begins within `upload_queue.SOON_MS`."""
        return self._uploads.soon(upload)

    def look(self) -> None:
        """Begin uploads that became possible with time alone; called regularly."""
        self._start()

    async def acquire(self, count: int) -> None:
        """Wait until `count` bytes of a transfer may leave, and charge them."""
        if self._bucket is None:
            return
        async with self._turn:  # first come, first served
            # Again after each wait: control frames may have taken tokens meanwhile, and the limit
            # may be another one.
            charged = HEADERS_SHARE * count
            while wait_ms := self._wait_ms(charged):  # noqa: ASYNC110
                await asyncio.sleep(math.ceil(wait_ms) / 1000)
            self._charge(charged)

    def sent(self, count: int) -> None:
        """Charge `count` bytes of control frames, which never wait."""
        if count:
            self._charge(HEADERS_SHARE * count + PACKET_BYTES)

    def received(self, count: int) -> None:
        """Charge the acknowledgement of `count` bytes that arrived."""
        self._charge(ACKNOWLEDGED_SHARE * count)

    def carried(self, total: int) -> None:
        """Charge the bytes that left since the start, `total` in all, and were not charged yet.

        Excess charges, by an estimate or for a part that has not left yet, are credited up to the
        size of a part.
        """
        self._ahead = min(self._ahead - (total - self._carried), self.part_bytes_max)
        self._carried = total
        self._charge(max(0.0, -self._ahead))

    @property
    def part_bytes_max(self) -> int:
        """Most data of a part that leaves within one burst of the limit."""
        burst = PART_BYTES_MAX if self._bucket is None else self._bucket.burst // 2
        return max(PART_BYTES_MIN, min(PART_BYTES_MAX, burst))

    def _wait_ms(self, count: float) -> float:
        return self._bucket.wait_ms(count, self._clock_ms()) if self._bucket else 0.0

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
        same = self._waiting[upload]
        same.remove(begins)
        if not same:
            del self._waiting[upload]
            self._uploads.ended(upload)
            self._start()

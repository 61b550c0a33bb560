"""The download of one node, shared by its links and the fetches of its data: how fast bytes are
taken.

Bytes are taken piece by piece, the next one when the limit's bucket has paid for it. Bytes that are
not taken hold their sender back:

    a peer        sends no more than its window without acknowledgements, and only what is taken is
                  acknowledged (`node.links.window`)
    a web server  is held back by TCP: its connection is not read. One range at a time is fetched

So payloads, snapshots, the payloads of a catch-up and training data come no faster than the limit,
except for a window's bytes at the beginning, and for the headers that are only estimated. Frames of
control (heartbeats, offers, acknowledgements) never wait, for a link's pipe is always read; neither
do they count here, nor does the session with the coordinator: less than a kilobyte a second each.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from node.system.rate_limit import rate_bucket
from protocol.border.token_bucket import TokenBucket

HEADERS_SHARE = 1.05
"""Bytes on the wire per byte that is taken: 66 of headers in each 1514, and the transport's own
frames."""

PIECE_BYTES_MIN = 4096
"""Least piece that is taken at once."""

PIECE_S = 0.05
"""Time of the limit that one piece takes: the others' turns come soon, and a fast link is not
waited for byte by byte."""


class Downlink:
    """The download of one node in bytes per second, 0: no limit. `clock_ms()` is a monotonic clock.
    Threads may share it.
    """

    def __init__(self, bytes_per_second: int, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._bucket: TokenBucket | None = None
        self._piece_bytes = PIECE_BYTES_MIN
        self.limit(bytes_per_second)

    def limit(self, bytes_per_second: int) -> None:
        """Take no more than this from now on; `SettingsError` for a limit that is too low."""
        bucket = rate_bucket(bytes_per_second, self._clock_ms()) if bytes_per_second else None
        with self._lock:
            self._piece_bytes = max(PIECE_BYTES_MIN, int(PIECE_S * bytes_per_second))
            self._bucket = bucket

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._bucket is not None

    def charge(self, count: int) -> float:
        """Charge bytes that came; returns the seconds until they are paid."""
        with self._lock:
            if self._bucket is None:
                return 0.0
            now_ms = self._clock_ms()
            self._bucket.charge(HEADERS_SHARE * count, now_ms)
            return self._bucket.wait_ms(0, now_ms) / 1000

    async def pace(self, count: int, took: Callable[[int], None]) -> None:
        """Call `took` with the bytes of a part, piece by piece, as they are paid. Cancelled, it
        takes the rest at once: nobody else will.
        """
        left = count
        try:
            while left > 0:
                piece = min(left, self._piece_bytes) if self.limited else left
                if wait_s := self.charge(piece):
                    await asyncio.sleep(wait_s)
                left -= piece
                took(piece)
        finally:
            if left > 0:
                took(left)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One range of the data after the other while there is a limit, so that they leave room for
        payloads. Blocks.
        """
        if not self.limited:
            yield
            return
        with self._turn:
            yield

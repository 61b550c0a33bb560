"""Serves blobs to peers: payloads and snapshots by digest, part by part.

A round waits for its payloads, so they are served at once. A snapshot is for a late joiner, which
has time: all snapshots together get a bounded rate, first come, first served.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from node.system.rate_limit import rate_bucket
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest

SNAPSHOT_BYTES_PER_SECOND = 8 * 1024 * 1024
"""Bytes of snapshots per second, to all late joiners together. The longest wait that this causes is
far below the time after which a link gives a silent peer up."""


class Shelf(Protocol):
    """Blobs by digest: a payload log, or the snapshots."""

    def size(self, digest: Digest) -> int | None:
        """Bytes of a blob, None when it is not held."""

    def read(self, digest: Digest, offset: int, count: int) -> bytes | None:
        """At most `count` bytes from `offset` on, None when it is not held. Blocks: for a
        thread.
        """


class BlobServer:
    """A node's payloads and snapshots, as a `LinkServer` reads them. `clock_ms()` is a monotonic
    clock.
    """

    def __init__(
        self, payloads: Shelf, snapshots: Shelf | None, clock_ms: Callable[[], int]
    ) -> None:
        self._payloads = payloads
        self._snapshots = snapshots
        self._clock_ms = clock_ms
        self._bucket = rate_bucket(SNAPSHOT_BYTES_PER_SECOND, clock_ms())
        self._turn = asyncio.Lock()

    async def read(self, digest: Digest, offset: int, count: int) -> tuple[int, bytes] | None:
        """(size, at most `count` bytes from `offset` on) of a payload or snapshot, or None when it
        is not held.

        Raises `RemoteProtocolError` for an offset behind its end.
        """
        shelf = self._payloads
        total = shelf.size(digest)
        if total is None and self._snapshots:
            shelf = self._snapshots
            total = shelf.size(digest)
        if total is None:
            return None
        if offset >= total:
            raise RemoteProtocolError(f"expected an offset below {total}, got {offset}")
        if shelf is self._snapshots:
            await self._wait_for_turn(min(count, total - offset))
        part = await asyncio.to_thread(shelf.read, digest, offset, count)
        return (total, part) if part else None

    async def _wait_for_turn(self, count: int) -> None:
        """Return when `count` bytes of a snapshot may leave, and charge them."""
        async with self._turn:  # first come, first served
            wait_ms = self._bucket.wait_ms(count, self._clock_ms())
            if wait_ms:
                await asyncio.sleep(math.ceil(wait_ms) / 1000)
            self._bucket.charge(count, self._clock_ms())

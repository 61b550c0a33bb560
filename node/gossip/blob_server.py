"""What peers may read of this node: payloads and snapshots by digest, part by part.

Payloads are what a round waits for, so they go at once. A snapshot is for a late joiner, who has
time: all of them together get a bounded rate, first come, first served."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from protocol.errors import RemoteProtocolError
from protocol.ids import Digest

SNAPSHOT_BYTES_PER_SECOND = 8 * 1024 * 1024
"""Of snapshots to all late joiners together; the longest wait it causes is far below a link's
patience."""


class Shelf(Protocol):
    """Blobs by digest: a payload log, or the snapshots."""

    def size(self, digest: Digest) -> int | None:
        """Bytes of a blob, None when it is not held."""

    def read(self, digest: Digest, offset: int, count: int) -> bytes | None:
        """At most `count` bytes from `offset` on, None when it is not held. Blocks: for a
        thread."""


class BlobServer:
    """A node's payloads and snapshots, as a `LinkServer` reads them. `clock_ms()` is a monotonic
    clock."""

    def __init__(self, log: Shelf, snapshots: Shelf | None, clock_ms: Callable[[], int]) -> None:
        self._log = log
        self._snapshots = snapshots
        self._throttle = Throttle(SNAPSHOT_BYTES_PER_SECOND, clock_ms)

    async def read(self, digest: Digest, offset: int, count: int) -> tuple[int, bytes] | None:
        """(size, at most `count` bytes from `offset` on) of a payload or snapshot, or None when it
        is not held.

        Raises `RemoteProtocolError` for an offset that makes no sense."""
        shelf = self._log
        total = shelf.size(digest)
        if total is None and self._snapshots:
            shelf = self._snapshots
            total = shelf.size(digest)
        if total is None:
            return None
        if offset >= total:
            raise RemoteProtocolError(f"expected an offset below {total}, got {offset}")
        if shelf is self._snapshots:
            await self._throttle.wait(min(count, total - offset))
        part = await asyncio.to_thread(shelf.read, digest, offset, count)
        return (total, part) if part else None


class Throttle:
    """At most `bytes_per_second`: who wants to move bytes waits until those before it have had
    their time."""

    def __init__(self, bytes_per_second: int, clock_ms: Callable[[], int]) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock_ms = clock_ms
        self._free_ms = 0.0

    async def wait(self, count: int) -> None:
        """Return when `count` bytes may go."""
        now_ms = self._clock_ms()
        starts_ms = max(self._free_ms, float(now_ms))
        self._free_ms = starts_ms + 1000 * count / self._bytes_per_second
        if starts_ms > now_ms:
            await asyncio.sleep((starts_ms - now_ms) / 1000)

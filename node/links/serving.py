"""Serves the fetches of one link's peer.

    fetch asked --> task: wait for a turn of the uplink --> read a part, wait for the window and the
                    limits, send it --> ... --> all acknowledged

Each fetch has a task. The tasks of one link take turns for each part. A fetch ends early when the
peer cancels it, or when its blob cannot be read; the peer is told why.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cachetools import LRUCache

from node.links.frames import PART_FRAME_OVERHEAD, Part
from node.links.network import BlobRange, NotHeldError, Purpose
from node.links.owner import LinkOwner
from node.links.protocol import LinkProtocol
from node.links.protocol_events import Cancelled, FetchRequested
from node.links.upload_queue import Upload
from node.system.rate_limit import rate_bucket
from protocol.border.token_bucket import TokenBucket
from protocol.errors import RemoteProtocolError, ShortageError, StorageError, UnavailableError
from protocol.ids import short
from protocol.wire_pb2 import Refusal

SERVED_BYTES_MIN = 4096
"""Bytes that the last part of a fetch costs at least where a peer is limited: reading a small one
costs as much. The others are as small as this node's window makes them."""

CATCH_UP_BYTES_PER_SECOND = 32_000_000
"""Bytes of decided rounds and snapshots that one peer may take, also a member: a peer that
reads the past without end must not cost the node its own rounds."""

CATCH_UP_BYTES_MIN = 65_536
"""Bytes that the last part of one of these costs at least: 500 small payloads a second are a replay
as fast as any machine makes it."""

ACKNOWLEDGE_S = 20
"""Longest wait for an acknowledgement: a peer that takes nothing holds no place for ever."""

PURPOSES_MAX = 64
"""Fetches whose purpose is kept until their last frame is written: four times as many as may be
open."""


class _SentPart(NamedTuple):
    """A part that is not acknowledged yet."""

    end: int
    """Bytes of parts that the link had sent, this part included."""
    upload: Upload
    data_bytes: int


class Serving:
    """The uploads of one link. `wake()` makes the link write; `on_end()` is called after each
    upload.
    """

    def __init__(
        self,
        protocol: LinkProtocol,
        owner: LinkOwner,
        wake: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._protocol = protocol
        self._owner = owner
        self._wake = wake
        self._on_end = on_end
        self._uploads: dict[int, tuple[Upload, asyncio.Task[None]]] = {}
        self._purposes: LRUCache[int, Purpose] = LRUCache(PURPOSES_MAX)
        self._on_the_way = deque[_SentPart]()
        self._sending = asyncio.Lock()
        self._received = asyncio.Event()
        self.shared_quota: TokenBucket | None = None
        """A limit that the peer shares with others."""
        self._quota = owner.peer_limit and rate_bucket(owner.peer_limit, owner.clock_ms())
        self._catch_up_quota = rate_bucket(CATCH_UP_BYTES_PER_SECOND, owner.clock_ms())

    @property
    def busy(self) -> bool:
        """Whether any fetch is being served."""
        return bool(self._uploads)

    def purpose(self, request: int) -> Purpose:
        """The purpose of a fetch that is, or was, served."""
        return self._purposes.get(request, Purpose.PAYLOAD)

    def start(self, asked: FetchRequested, tasks: asyncio.TaskGroup) -> None:
        """Serve a fetch in a task of its own."""
        assert self._protocol.peer is not None, "a fetch comes from a proven peer"
        upload = Upload(self._protocol.peer, asked.digest)
        task = tasks.create_task(self._serve(asked, upload))
        self._uploads[asked.request] = upload, task
        task.add_done_callback(lambda _: self._ended(asked.request))

    def cancel(self, event: Cancelled) -> None:
        """End a fetch, unless its turn comes soon and the peer waits for that."""
        upload, task = self._uploads.get(event.request, (None, None))
        if event.unless_soon and upload and self._owner.uplink.soon(upload):
            return
        if task:
            task.cancel()
        if event.gently:
            self._protocol.refuse(event.request, Refusal.WITHDRAWN, "withdrawn as requested")

    def on_received(self) -> None:
        """Record the acknowledgements among the bytes that the link received: the uplink's rate is
        that of acknowledged bytes, not of bytes handed over.
        """
        while self._on_the_way and self._on_the_way[0].end <= self._protocol.window.acknowledged:
            part = self._on_the_way.popleft()
            self._owner.uplink.progressed(part.upload, part.data_bytes)
        self._received.set()

    def _ended(self, request: int) -> None:
        del self._uploads[request]
        self._on_end()

    async def _serve(self, asked: FetchRequested, upload: Upload) -> None:
        server = self._owner.server
        try:
            found = await server.read(asked.digest, asked.offset, 1)
            if found is None:
                self._protocol.refuse(asked.request, Refusal.NOT_HELD, "not held here")
                return
            end = BlobRange(asked.digest, asked.offset, asked.bytes).end(found[0])
            async with self._owner.uplink.turn(upload, end - asked.offset):
                await self._send_parts(asked, upload, end)
            if end == found[0]:
                server.on_served(upload.peer, asked.digest)
        except RemoteProtocolError as error:
            self._protocol.refuse(asked.request, Refusal.BAD_REQUEST, str(error))
        except (StorageError, ShortageError, NotHeldError) as error:
            self._protocol.refuse(asked.request, Refusal.BUSY, str(error))
        finally:
            self._wake()

    async def _send_parts(self, asked: FetchRequested, upload: Upload, end: int) -> None:
        offset, window = asked.offset, self._protocol.window
        self._purposes[asked.request] = self._owner.server.purpose(asked.digest)
        while offset < end:
            count = min(window.part_bytes, self._owner.uplink.part_bytes_max, end - offset)
            found = await self._owner.server.read(asked.digest, offset, count)
            if found is None:
                raise NotHeldError("gone in the meantime")
            total, data = found
            async with self._sending:
                part = Part(asked.request, offset, total, data)
                await self._send(part, upload, ends=offset + len(data) >= end)
            self._owner.server.on_part(upload.peer, asked.digest, len(data), total)
            offset += len(data)
        last = window.sent
        await self._until_acknowledged(lambda: window.acknowledged >= last)

    async def _send(self, part: Part, upload: Upload, *, ends: bool) -> None:
        window, count = self._protocol.window, len(part.data)
        await self._until_acknowledged(lambda: window.open)
        await self._within_quotas(count, self.purpose(part.request), ends)
        await self._owner.uplink.acquire(count + PART_FRAME_OVERHEAD)
        self._protocol.part(part, self._owner.clock_ms())
        self._on_the_way.append(_SentPart(window.sent, upload, count))
        self._wake()

    async def _until_acknowledged(self, enough: Callable[[], bool]) -> None:
        """Wait for acknowledgements, as long as more come within `ACKNOWLEDGE_S`."""
        window, loop = self._protocol.window, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ACKNOWLEDGE_S) as deadline:
                while not enough():
                    acknowledged = window.acknowledged
                    self._received.clear()
                    await self._received.wait()
                    if window.acknowledged > acknowledged:
                        deadline.reschedule(loop.time() + ACKNOWLEDGE_S)
        except TimeoutError:
            assert self._protocol.peer is not None, "a fetch comes from a proven peer"
            raise UnavailableError(
                f"{short(self._protocol.peer)} acknowledged nothing for {ACKNOWLEDGE_S} s"
            ) from None

    async def _within_quotas(self, count: int, purpose: Purpose, ends: bool) -> None:
        for quota in (self._quota, self.shared_quota):
            if quota:
                await self._within(quota, max(count, ends * SERVED_BYTES_MIN))
        if purpose is Purpose.CATCH_UP:
            await self._within(self._catch_up_quota, max(count, ends * CATCH_UP_BYTES_MIN))

    async def _within(self, quota: TokenBucket, cost: int) -> None:
        if wait_ms := quota.wait_ms(cost, self._owner.clock_ms()):
            await asyncio.sleep(wait_ms / 1000)
        quota.charge(cost, self._owner.clock_ms())

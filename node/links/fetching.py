"""The fetches from one link's peer.

    asked --first part within QUEUE_S--> begun --each further one within PROGRESS_S--> all are here
      '---- refused, withdrawn, silence, the caller stops, the link ends ----> ended early

Each fetch has a queue, which its caller empties as the node's download limit allows. Parts that
were on their way when their fetch ended are counted and acknowledged, and go no further.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from cachetools import LRUCache

from node.links.frames import Part
from node.links.network import BlobRange, Purpose
from node.links.owner import LinkOwner
from node.links.protocol import LinkProtocol
from node.links.quality.meter import FetchTiming
from node.traffic import Traffic
from protocol.errors import LockstepError, UnavailableError
from protocol.ids import Digest, PeerId, short

PROGRESS_S = 20
"""Longest wait for the next part of a fetch."""

QUEUE_S = 300
"""Longest wait for the first part of a fetch: a thin uplink serves one peer after the other, and
the exchange decides when to ask another source."""

LATE_FETCHES_MAX = 64
"""Fetches that ended early whose purpose is kept for parts on their way: four times as many as may
be open."""


@dataclass(slots=True)
class _Fetch:
    digest: Digest
    purpose: Purpose
    arrived: asyncio.Queue[Part | LockstepError] = field(default_factory=asyncio.Queue)
    timing: FetchTiming = field(default_factory=FetchTiming)


class Fetching:
    """The fetches of one link, counted in its `traffic`. `wake()` makes the link write; `on_end()`
    is called after each fetch.
    """

    def __init__(
        self,
        protocol: LinkProtocol,
        owner: LinkOwner,
        traffic: Traffic,
        wake: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._protocol = protocol
        self._owner = owner
        self._traffic = traffic
        self._wake = wake
        self._on_end = on_end
        self._fetches: dict[int, _Fetch] = {}
        self._late: LRUCache[int, Purpose] = LRUCache(LATE_FETCHES_MAX)
        """Purposes of fetches that ended early."""

    @property
    def busy(self) -> bool:
        """Whether any fetch is open."""
        return bool(self._fetches)

    async def fetch(self, blob: BlobRange, purpose: Purpose) -> AsyncGenerator[Part, None]:
        """The parts of a blob as the peer sends them; `NotHeldError`, `UnavailableError`,
        `RemoteProtocolError`.
        """
        request = self._protocol.fetch(blob.digest, blob.offset, blob.count)
        fetch = self._fetches[request] = _Fetch(blob.digest, purpose)
        complete = begun = False
        self._wake()
        try:
            while not complete:
                part = await self._next_part(fetch, PROGRESS_S if begun else QUEUE_S)
                begun = True
                await self._owner.downlink.pace(len(part.data), self._took)
                complete = part.offset + len(part.data) == blob.end(part.total_bytes)
                yield part
        finally:
            self._end_fetch(request, complete)

    def withdraw(self, digest: Digest, unless_soon: bool = False) -> None:
        """Ask for no more of a blob than the peer has begun, or can begin soon: `WithdrawnError`
        ends its fetch.
        """
        for request, fetch in self._fetches.items():
            if fetch.digest == digest:
                self._protocol.withdraw(request, unless_soon)
        self._wake()

    def on_part(self, part: Part) -> None:
        """Hand a part that arrived to its fetch."""
        count = len(part.data)
        if fetch := self._fetches.get(part.request):
            self._count(fetch.purpose, count)
            fetch.timing.note(count, self._owner.clock_ms())
            fetch.arrived.put_nowait(part)
        else:  # on its way when its fetch was cancelled
            self._count(self._late.get(part.request, Purpose.PAYLOAD), count)
            self._owner.downlink.charge(count)
            self._traffic.late_down += count
            self._took(count)

    def on_refused(self, request: int, error: LockstepError) -> bool:
        """End a fetch that the peer refused; returns whether the request is one."""
        fetch = self._fetches.get(request)
        if fetch:
            fetch.arrived.put_nowait(error)
        return fetch is not None

    def end(self, error: UnavailableError) -> None:
        """End every fetch: the link has ended."""
        for fetch in self._fetches.values():
            fetch.arrived.put_nowait(error)

    @property
    def _peer(self) -> PeerId:
        assert self._protocol.peer is not None, "a link is used once it is proven"
        return self._protocol.peer

    async def _next_part(self, fetch: _Fetch, timeout_s: float) -> Part:
        try:
            async with asyncio.timeout(timeout_s):
                arrived = await fetch.arrived.get()
        except TimeoutError:
            raise UnavailableError(f"{short(self._peer)} sent nothing for {timeout_s} s") from None
        if isinstance(arrived, LockstepError):
            raise arrived
        return arrived

    def _end_fetch(self, request: int, complete: bool) -> None:
        fetch = self._fetches.pop(request)
        while not fetch.arrived.empty():
            if isinstance(part_or_end := fetch.arrived.get_nowait(), Part):
                self._took(len(part_or_end.data))
        self._protocol.end_fetch(request, complete)
        self._protocol.meter.note_fetch(fetch.timing)
        if not complete:
            self._late[request] = fetch.purpose
        self._wake()
        self._on_end()

    def _count(self, purpose: Purpose, count: int) -> None:
        self._traffic.count_down(count, catch_up=purpose is Purpose.CATCH_UP)

    def _took(self, count: int) -> None:
        self._protocol.taken(count, self._owner.clock_ms())
        self._wake()

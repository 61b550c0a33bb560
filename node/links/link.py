"""One open link: a pipe, the protocol on it, and the tasks that move its bytes.

    pipe --read--> protocol --events--> offers to the server, parts to their fetches,
                                        requests to `serving`
    pipe <-write-- protocol <-commands- offers, fetches, parts

The link ends as a whole: every offer and fetch on it ends with the reason.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Protocol, assert_never

from cachetools import LRUCache

from node.links.frames import Part, grouped, part_data
from node.links.link_choice import Candidate
from node.links.network import BlobRange, Purpose
from node.links.protocol import LinkProtocol
from node.links.protocol_events import (
    Accepted,
    Cancelled,
    Event,
    FetchRequested,
    Offered,
    PeerLeft,
    Proven,
    Refused,
)
from node.links.quality.meter import FetchTiming
from node.links.serving import Serving, ServingOwner
from node.traffic import Traffic
from node.transports.base import Pipe
from protocol.border.token_bucket import TokenBucket
from protocol.errors import LockstepError, RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, short
from protocol.wire_pb2 import Offers, Refusal

TICK_S = 0.5
"""Pause between two looks at the clock; with `protocol.SILENCE_MS` a silent peer is noticed within
five seconds."""

WRITE_S = 20
"""Longest time in which a pipe takes nothing."""

PROGRESS_S = 20
"""Longest wait for the next part of a fetch, or for the answer to an offer."""

QUEUE_S = 300
"""Longest wait for the first part of a fetch: a thin uplink serves one peer after the other, and
the exchange decides when to ask another source."""

RETIRE_S = 2
"""Time that a link stays after another has replaced it: until then the other end knows of that one
too."""

LATE_FETCHES_MAX = 64
"""Fetches that ended early whose purpose is kept for parts on their way: four times as many as may
be open."""


@dataclass(frozen=True, slots=True)
class PeerLink:
    """One open link, for status and metrics."""

    peer: PeerId
    transport: str
    remote: str
    relayed: bool
    dialled: bool
    rtt_ms: int | None
    round_trip_ms: int | None
    """Median of the newest; None while too few were measured."""
    bit_s: int
    """Rate at which content comes from the peer; 0 while unknown."""
    traffic: Traffic


class LinkOwner(ServingOwner, Protocol):
    """The mesh of a link."""

    def on_proven(self, link: "Link", public_key: bytes) -> None:
        """The other end proved its key. `RemoteProtocolError`: another key was expected."""

    def on_ended(self, link: "Link", error: LockstepError) -> None:
        """The link ended, for this reason."""


@dataclass(slots=True)
class _Fetch:
    digest: Digest
    purpose: Purpose
    arrived: asyncio.Queue[Part | LockstepError] = field(default_factory=asyncio.Queue)
    timing: FetchTiming = field(default_factory=FetchTiming)


class Link:
    """A link from the opening of its pipe to its end. `run` carries it; the other methods may be
    called once it is proven.
    """

    def __init__(self, pipe: Pipe, kind: str, protocol: LinkProtocol, owner: LinkOwner) -> None:
        self.pipe = pipe
        self.kind = kind
        self.protocol = protocol
        self.traffic = Traffic()
        self.proven = asyncio.Event()
        self._owner = owner
        self._fetches: dict[int, _Fetch] = {}
        self._late: LRUCache[int, Purpose] = LRUCache(LATE_FETCHES_MAX)
        """Purposes of fetches that ended early."""
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._to_write = asyncio.Event()
        self._serving = Serving(protocol, owner, self._to_write.set, self._leave_if_idle)
        self._tasks: asyncio.TaskGroup | None = None
        self._leaving = ""
        self._retired = ""
        self._ended: LockstepError | None = None

    @property
    def peer(self) -> PeerId:
        """The peer at the other end."""
        assert self.protocol.peer is not None, "a link is used once it is proven"
        return self.protocol.peer

    @property
    def serving(self) -> bool:
        """Whether the peer is being served."""
        return self._serving.busy

    @property
    def leaving(self) -> bool:
        """Whether this end has said goodbye."""
        return bool(self._leaving)

    @property
    def candidate(self) -> Candidate:
        """The link as one of two between the same nodes."""
        return Candidate(self.protocol.instance, self.protocol.dialled, self.pipe.relayed)

    def describe(self) -> PeerLink:
        """The link as it is now; its traffic is a copy."""
        meter = self.protocol.meter
        return PeerLink(
            self.peer,
            self.kind,
            self.pipe.remote,
            self.pipe.relayed,
            self.protocol.dialled,
            meter.newest_ms,
            meter.round_trip_ms,
            meter.bit_s,
            replace(self.traffic),
        )

    async def run(self) -> None:
        """Carry the link until it ends, and raise the reason: `UnavailableError`,
        `RemoteProtocolError` or `VersionError`.
        """
        self._to_write.set()
        error: LockstepError = UnavailableError("the link was closed here")
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for work in (self._read(), self._write(), self._tick()):
                    self._tasks.create_task(work)
        except ExceptionGroup as errors:
            for found in errors.exceptions:
                if not isinstance(found, LockstepError):
                    raise found from None
            error = errors.exceptions[0]  # type: ignore[assignment]  # each is a LockstepError
            raise error from None
        finally:
            self._end(error)
            self._owner.on_ended(self, error)
            await self.pipe.close()

    def limit(self, quota: TokenBucket | None) -> None:
        """Serve the peer no faster than this bucket, which it may share, lets it."""
        self._serving.shared_quota = quota

    def leave(self, reason: str) -> None:
        """Say goodbye, then end."""
        self._leaving = reason
        self.protocol.goodbye(reason)
        self._to_write.set()

    def retire(self, reason: str) -> None:
        """Leave when nothing is under way here any more. By then both ends use another link for new
        requests.
        """
        asyncio.get_running_loop().call_later(RETIRE_S, self._retire, reason)

    async def offer(self, offers: Offers) -> None:
        """Hand over offers; returns when the peer accepted them. `RemoteProtocolError` when it
        refused them.
        """
        self._require_open()
        answer = asyncio.get_running_loop().create_future()
        request = self.protocol.offer(offers)
        self._answers[request] = answer
        self._to_write.set()
        try:
            async with asyncio.timeout(PROGRESS_S):
                await answer
        except TimeoutError:
            raise UnavailableError(
                f"{short(self.peer)} did not answer an offer in {PROGRESS_S} s"
            ) from None
        finally:
            self._answers.pop(request, None)
            self._leave_if_idle()

    async def fetch(self, blob: BlobRange, purpose: Purpose) -> AsyncGenerator[Part, None]:
        """The parts of a blob as the peer sends them; `NotHeldError`, `UnavailableError`,
        `RemoteProtocolError`.
        """
        self._require_open()
        request = self.protocol.fetch(blob.digest, blob.offset, blob.count)
        fetch = self._fetches[request] = _Fetch(blob.digest, purpose)
        complete = begun = False
        self._to_write.set()
        try:
            while not complete:
                part = await self._next_part(fetch, PROGRESS_S if begun else QUEUE_S)
                begun = True
                await self._owner.uplink.downlink.pace(len(part.data), self._took)
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
                self.protocol.withdraw(request, unless_soon)
        self._to_write.set()

    # ---- the pipe

    async def _read(self) -> None:
        while data := await self.pipe.read():
            self._owner.uplink.received(len(data))
            events = self.protocol.receive(data, self._owner.clock_ms())
            self.traffic.control_down = self.protocol.control_bytes_received
            for event in events:
                self._on(event)
            self._serving.on_received()
            self._to_write.set()
        raise UnavailableError("the other end closed the link")

    async def _write(self) -> None:
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            for frames in grouped(self.protocol.outgoing()):
                try:
                    async with asyncio.timeout(WRITE_S):
                        await self.pipe.write(b"".join(frames))
                except TimeoutError:
                    raise UnavailableError(f"the other end took nothing for {WRITE_S} s") from None
                self._count_up(frames)
            if self._leaving:
                raise UnavailableError(self._leaving)

    def _count_up(self, frames: list[bytes]) -> None:
        """Count written frames; the uplink has charged parts already when they were sent."""
        uncharged_bytes = 0
        for frame in frames:
            request, count = part_data(frame)
            self.traffic.control_up += len(frame) - count
            if count:
                catch_up = self._serving.purpose(request) is Purpose.CATCH_UP
                self.traffic.count_up(count, catch_up=catch_up)
            else:
                uncharged_bytes += len(frame)
        self._owner.uplink.sent(uncharged_bytes)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.protocol.tick(self._owner.clock_ms())
            self._owner.uplink.look()
            self._to_write.set()

    # ---- events

    def _on(self, event: Event) -> None:
        match event:
            case Proven():
                self._owner.on_proven(self, event.public_key)
                self.proven.set()
            case Offered():
                self._take_offer(event)
            case FetchRequested():
                assert self._tasks is not None, "events come while the link runs"
                self._serving.start(event, self._tasks)
            case Cancelled():
                self._serving.cancel(event)
            case Accepted():
                self._answer(event.request, None)
            case Refused():
                self._answer(event.request, event.error(self.peer))
            case Part():
                self._on_part(event)
            case PeerLeft():
                raise UnavailableError(event.reason or "the other end left")
            case _:
                assert_never(event)

    def _take_offer(self, event: Offered) -> None:
        try:
            self._owner.server.on_offer(event.offers)
        except RemoteProtocolError as error:
            self.protocol.refuse(event.request, Refusal.BAD_REQUEST, str(error))
        else:
            self.protocol.accept(event.request)

    def _answer(self, request: int, error: LockstepError | None) -> None:
        if fetch := self._fetches.get(request):
            assert error is not None, "a fetch is answered by parts or a refusal"
            fetch.arrived.put_nowait(error)
        elif (answer := self._answers.get(request)) and not answer.done():
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

    def _on_part(self, part: Part) -> None:
        if fetch := self._fetches.get(part.request):
            self._count_down(fetch.purpose, len(part.data))
            fetch.timing.note(len(part.data), self._owner.clock_ms())
            fetch.arrived.put_nowait(part)
        else:  # on its way when its fetch was cancelled
            purpose = self._late.get(part.request, Purpose.PAYLOAD)
            self._count_down(purpose, len(part.data))
            self._owner.uplink.downlink.charge(len(part.data))
            self.traffic.late_down += len(part.data)
            self._took(len(part.data))

    def _count_down(self, purpose: Purpose, count: int) -> None:
        self.traffic.count_down(count, catch_up=purpose is Purpose.CATCH_UP)

    async def _next_part(self, fetch: _Fetch, timeout_s: float) -> Part:
        try:
            async with asyncio.timeout(timeout_s):
                arrived = await fetch.arrived.get()
        except TimeoutError:
            raise UnavailableError(f"{short(self.peer)} sent nothing for {timeout_s} s") from None
        if isinstance(arrived, LockstepError):
            raise arrived
        return arrived

    def _end_fetch(self, request: int, complete: bool) -> None:
        fetch = self._fetches.pop(request)
        while not fetch.arrived.empty():
            if isinstance(part_or_end := fetch.arrived.get_nowait(), Part):
                self._took(len(part_or_end.data))
        self.protocol.end_fetch(request, complete)
        self.protocol.meter.note_fetch(fetch.timing)
        if not complete:
            self._late[request] = fetch.purpose
        self._to_write.set()
        self._leave_if_idle()

    def _took(self, count: int) -> None:
        self.protocol.taken(count, self._owner.clock_ms())
        self._to_write.set()

    # ---- the end

    def _retire(self, reason: str) -> None:
        self._retired = reason
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        busy = self._fetches or self._answers or self.serving
        if self._retired and not busy and not self._leaving and not self._ended:
            self.leave(self._retired)

    def _require_open(self) -> None:
        if self._ended:
            raise UnavailableError(f"the link to {short(self.peer)} ended: {self._ended}")

    def _end(self, error: LockstepError) -> None:
        self._ended = error
        self.protocol.end(str(error))
        name = short(self.protocol.peer) if self.protocol.peer else self.pipe.remote
        reason = f"the link to {name} ended: {error}"
        for fetch in self._fetches.values():
            fetch.arrived.put_nowait(UnavailableError(reason))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(UnavailableError(reason))

"""One open link: a pipe, the session on it, and the tasks that move its bytes.

    pipe --read--> session --events--> offers to the server, parts to whoever fetches, requests to a serving task
    pipe <-write-- session <-commands- offers, fetches, parts

A serving task has a place in the uplink's order, reads a part, waits for the window and for the
upload limit, and hands the part over; serving tasks of one link take turns. The link ends as a
whole: everyone who waits for it hears why."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from node.links.frames import PART_FRAME_OVERHEAD, Part, joined
from node.links.network import BlobRange, LinkServer, NotHeldError, Purpose, Traffic
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
from node.links.uplink import Bucket, Uplink
from node.links.upload_queue import Upload
from node.transports.base import Pipe
from protocol.errors import LockstepError, RemoteProtocolError, StorageError, UnavailableError
from protocol.ids import Digest, PeerId, short
from protocol.wire_pb2 import Offers, Refusal

TICK_SECONDS = 0.5
"""How often a link looks at the clock; with `session.SILENCE_MS` a silent peer is noticed within
five seconds."""

WRITE_SECONDS = 20
"""Longest time in which a pipe takes nothing."""

PROGRESS_SECONDS = 20
"""Longest wait for the next part of a fetch, for the answer to an offer, or for an
acknowledgement."""

QUEUE_SECONDS = 300
"""Longest wait for the first part of a fetch: a thin uplink serves one after the other, and it is
the exchange that decides when to ask somebody else."""

RETIRE_SECONDS = 2
"""How long a link stays after another has taken its place: until then the other end knows of that
one too."""

LATE_FETCHES_MAX = 64
"""Fetches that ended early whose purpose is kept for parts on their way: four times as many as may
be open."""


class LinkOwner(Protocol):
    """What a link asks of its mesh."""

    server: LinkServer
    uplink: Uplink
    clock_ms: Callable[[], int]
    peer_limit: int | None
    """Bytes per second that one peer may take."""

    def on_proven(self, link: "Link", public_key: bytes) -> None:
        """The other end proved its key. `RemoteProtocolError`: it is not the one that was
        expected."""

    def on_ended(self, link: "Link", error: LockstepError) -> None:
        """The link is of no use any more, and why."""


@dataclass(slots=True)
class _Fetch:
    digest: Digest
    purpose: Purpose
    arrived: asyncio.Queue[Part | LockstepError] = field(default_factory=asyncio.Queue)


class Link:
    """A link from the opening of its pipe to its end. `run` carries it; the rest may be used once
    it is proven."""

    def __init__(self, pipe: Pipe, kind: str, session: LinkProtocol, host: LinkOwner) -> None:
        self.pipe = pipe
        self.kind = kind
        self.session = session
        self.traffic = Traffic()
        self.proven = asyncio.Event()
        self._host = host
        self._fetches: dict[int, _Fetch] = {}
        self._late: dict[int, Purpose] = {}  # of fetches that ended early
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._serving: dict[int, tuple[Upload, asyncio.Task[None]]] = {}
        self._to_write = asyncio.Event()
        self._room = asyncio.Event()
        self._on_the_way = deque[
            tuple[int, Upload, int]
        ]()  # parts: the window's bytes sent with it, whose, its data
        self._sending = asyncio.Lock()
        self._quota = host.peer_limit and Bucket(host.peer_limit, host.clock_ms())
        self._charged = 0  # bytes of parts that the uplink knows of and the pipe does not yet
        self._tasks: asyncio.TaskGroup | None = None
        self._leaving = self._retired = ""
        self._ended: LockstepError | None = None

    @property
    def peer(self) -> PeerId:
        """Who is at the other end."""
        assert self.session.peer is not None, "a link is used once it is proven"
        return self.session.peer

    @property
    def serving(self) -> bool:
        """Whether the peer is being served."""
        return bool(self._serving)

    async def run(self) -> None:
        """Carry the link until it ends, and raise why: `UnavailableError`, `RemoteProtocolError` or
        `VersionError`."""
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
            error = errors.exceptions[0]  # type: ignore[assignment]  # all of them are LockstepError
            raise error from None
        finally:
            self._end(error)
            self._host.on_ended(self, error)
            await self.pipe.close()

    def leave(self, reason: str) -> None:
        """Say goodbye, then end."""
        self._leaving = reason
        self.session.goodbye(reason)
        self._to_write.set()

    def retire(self, reason: str) -> None:
        """Leave when nothing is under way here any more: another link takes what is new, at both
        ends by then."""
        asyncio.get_running_loop().call_later(RETIRE_SECONDS, self._retire, reason)

    async def offer(self, offers: Offers) -> None:
        """Hand over offers; returns when the peer took them. `RemoteProtocolError` when it refused
        them."""
        self._require_open()
        answer = asyncio.get_running_loop().create_future()
        request = self.session.offer(offers)
        self._answers[request] = answer
        self._to_write.set()
        try:
            async with asyncio.timeout(PROGRESS_SECONDS):
                await answer
        except TimeoutError:
            raise UnavailableError(
                f"{short(self.peer)} did not answer an offer in {PROGRESS_SECONDS} s"
            ) from None
        finally:
            self._answers.pop(request, None)
            self._leave_if_idle()

    async def fetch(self, blob: BlobRange, purpose: Purpose) -> AsyncGenerator[Part, None]:
        """The parts of a blob as the peer sends them; `NotHeldError`, `UnavailableError`,
        `RemoteProtocolError`."""
        self._require_open()
        request, fetch = (
            self.session.fetch(blob.digest, blob.offset, blob.count),
            _Fetch(blob.digest, purpose),
        )
        complete = begun = False
        self._fetches[request] = fetch
        self._to_write.set()
        try:
            while not complete:
                part = await self._next_part(fetch, PROGRESS_SECONDS if begun else QUEUE_SECONDS)
                begun = True
                self._took(len(part.data))
                complete = part.offset + len(part.data) == blob.end(part.total_bytes)
                yield part
        finally:
            del self._fetches[request]
            while not fetch.arrived.empty():
                if isinstance(part_or_end := fetch.arrived.get_nowait(), Part):
                    self._took(len(part_or_end.data))
            self.session.end_fetch(request, complete)
            if not complete:
                self._late = dict([*self._late.items(), (request, purpose)][-LATE_FETCHES_MAX:])
            self._to_write.set()
            self._leave_if_idle()

    def withdraw(self, digest: Digest, unless_soon: bool = False) -> None:
        """Ask for no more of a blob than the peer has begun, or can begin soon: `WithdrawnError`
        ends its fetch."""
        for request, fetch in self._fetches.items():
            if fetch.digest == digest:
                self.session.withdraw(request, unless_soon)
        self._to_write.set()

    # ---- the pipe

    async def _read(self) -> None:
        while data := await self.pipe.read():
            self._host.uplink.received(len(data))
            self.traffic.control_down += len(data)
            for event in self.session.receive(data, self._host.clock_ms()):
                self._on(event)
            self._credit_uploads()
            self._to_write.set()
            self._room.set()
        raise UnavailableError("the other end closed the link")

    async def _write(self) -> None:
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            for piece in joined(self.session.outgoing()):
                try:
                    async with asyncio.timeout(WRITE_SECONDS):
                        await self.pipe.write(piece)
                except TimeoutError:
                    raise UnavailableError(
                        f"the other end took nothing for {WRITE_SECONDS} s"
                    ) from None
                self.traffic.control_up += len(piece)
                charged = min(self._charged, len(piece))
                self._charged -= charged
                self._host.uplink.sent(len(piece) - charged)
            if self._leaving:
                raise UnavailableError(self._leaving)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.session.tick(self._host.clock_ms())
            self._host.uplink.look()
            self._to_write.set()

    # ---- events

    def _on(self, event: Event) -> None:
        match event:
            case Proven():
                self._host.on_proven(self, event.public_key)
                self.proven.set()
            case Offered():
                self._take_offer(event)
            case FetchRequested():
                assert self._tasks is not None, "events come while the link runs"
                upload, task = (
                    Upload(self.peer, event.digest),
                    self._tasks.create_task(self._serve(event)),
                )
                self._serving[event.request] = upload, task
                task.add_done_callback(lambda _: self._served(event.request))
            case Cancelled():
                self._on_cancelled(event)
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

    def _on_cancelled(self, event: Cancelled) -> None:
        upload, task = self._serving.get(event.request, (None, None))
        if event.unless_soon and upload and self._host.uplink.soon(upload):
            return
        if task:
            task.cancel()
        if event.gently:
            self.session.refuse(event.request, Refusal.WITHDRAWN, "as you wish")

    def _take_offer(self, event: Offered) -> None:
        try:
            self._host.server.on_offer(event.offers)
        except RemoteProtocolError as error:
            self.session.refuse(event.request, Refusal.BAD_REQUEST, str(error))
        else:
            self.session.accept(event.request)

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
        self.traffic.control_down -= len(part.data)
        if fetch := self._fetches.get(part.request):
            self.traffic.count_down(fetch.purpose, len(part.data))
            fetch.arrived.put_nowait(part)
        else:  # on its way when its fetch was cancelled
            self.traffic.count_down(self._late.get(part.request, Purpose.PAYLOAD), len(part.data))
            self.traffic.late_down += len(part.data)
            self._took(len(part.data))

    async def _next_part(self, fetch: _Fetch, seconds: float) -> Part:
        try:
            async with asyncio.timeout(seconds):
                arrived = await fetch.arrived.get()
        except TimeoutError:
            raise UnavailableError(f"{short(self.peer)} sent nothing for {seconds} s") from None
        if isinstance(arrived, LockstepError):
            raise arrived
        return arrived

    def _took(self, count: int) -> None:
        self.session.taken(count, self._host.clock_ms())
        self._to_write.set()

    # ---- serving

    async def _serve(self, asked: FetchRequested) -> None:
        server, upload = self._host.server, Upload(self.peer, asked.digest)
        try:
            found = await server.read(asked.digest, asked.offset, 1)
            if found is None:
                self.session.refuse(asked.request, Refusal.NOT_HELD, "not held here")
                return
            end = BlobRange(asked.digest, asked.offset, asked.bytes).end(found[0])
            async with self._host.uplink.turn(upload, end - asked.offset):
                await self._send_parts(asked, upload, end)
            if end == found[0]:
                server.on_served(self.peer, asked.digest)
        except RemoteProtocolError as error:
            self.session.refuse(asked.request, Refusal.BAD_REQUEST, str(error))
        except (StorageError, NotHeldError) as error:
            self.session.refuse(asked.request, Refusal.BUSY, str(error))
        finally:
            self._to_write.set()

    def _served(self, request: int) -> None:
        del self._serving[request]
        self._leave_if_idle()

    async def _send_parts(self, asked: FetchRequested, upload: Upload, end: int) -> None:
        offset, window, uplink = asked.offset, self.session.window, self._host.uplink
        purpose = self._host.server.purpose(asked.digest)
        while offset < end:
            count = min(window.part_bytes, uplink.part_bytes_max, end - offset)
            found = await self._host.server.read(asked.digest, offset, count)
            if found is None:
                raise NotHeldError("gone in the meantime")
            total, data = found
            async with self._sending:
                await self._acknowledged(lambda: window.open)
                await self._within_quota(len(data))
                await uplink.take(len(data) + PART_FRAME_OVERHEAD)
                self._charged += len(data) + PART_FRAME_OVERHEAD
                self.session.part(Part(asked.request, offset, total, data), self._host.clock_ms())
                self._on_the_way.append((window.sent, upload, len(data)))
            self._to_write.set()
            self.traffic.count_up(purpose, len(data))
            self.traffic.control_up -= len(data)
            offset += len(data)
        last = window.sent
        await self._acknowledged(lambda: window.acknowledged >= last)

    def _credit_uploads(self) -> None:
        """Tell the uplink whose parts were acknowledged: what was merely handed over says nothing
        of its rate."""
        while self._on_the_way and self._on_the_way[0][0] <= self.session.window.acknowledged:
            _, upload, count = self._on_the_way.popleft()
            self._host.uplink.progressed(upload, count)

    async def _acknowledged(self, enough: Callable[[], bool]) -> None:
        """Wait for acknowledgements, as long as they come: who takes nothing shall hold no place
        for ever."""
        window, loop = self.session.window, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PROGRESS_SECONDS) as patience:
                while not enough():
                    acknowledged = window.acknowledged
                    self._room.clear()
                    await self._room.wait()
                    if window.acknowledged > acknowledged:
                        patience.reschedule(loop.time() + PROGRESS_SECONDS)
        except TimeoutError:
            raise UnavailableError(
                f"{short(self.peer)} acknowledged nothing for {PROGRESS_SECONDS} s"
            ) from None

    async def _within_quota(self, count: int) -> None:
        if self._quota:
            if wait_ms := self._quota.wait_ms(count, self._host.clock_ms()):
                await asyncio.sleep(wait_ms / 1000)
            self._quota.charge(count, self._host.clock_ms())

    # ---- the end

    def _retire(self, reason: str) -> None:
        self._retired = reason
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        busy = self._fetches or self._answers or self._serving
        if self._retired and not busy and not self._leaving and not self._ended:
            self.leave(self._retired)

    def _require_open(self) -> None:
        if self._ended:
            raise UnavailableError(f"the link to {short(self.peer)} ended: {self._ended}")

    def _end(self, error: LockstepError) -> None:
        self._ended = error
        who = short(self.session.peer) if self.session.peer else self.pipe.remote
        reason = f"the link to {who} ended: {error}"
        for fetch in self._fetches.values():
            fetch.arrived.put_nowait(UnavailableError(reason))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(UnavailableError(reason))

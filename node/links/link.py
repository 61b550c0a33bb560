"""One open link to a peer, from the opening of its pipe to its end.

A pipe brings bytes, the protocol makes events of them, and tasks carry those on: offers to the
swarm, parts of payloads to the fetch that waits for them, requests to the half that serves the
peer. What this end wants to say goes the other way.

    pipe --read--> protocol --events--> offers to the server, parts to `fetching`,
                                        requests to `serving`
    pipe <-write-- protocol <-commands- offers, fetches, parts

When anything on the link fails, the whole link ends, and every offer and fetch on it with the same
reason: the node has other peers to ask.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from node.links.fetching import Fetching
from node.links.frames import Part, grouped, part_data
from node.links.link_table import Candidate
from node.links.network import BlobRange, LinkBrokenError, Purpose
from node.links.owner import LinkOwner
from node.links.protocol import LinkProtocol
from node.links.protocol_events import (
    Accepted,
    Cancelled,
    Event,
    FetchRequested,
    HeadShown,
    Offered,
    PeerLeft,
    Proven,
    Refused,
)
from node.links.serving import Serving
from node.traffic import Traffic
from node.transports.base import Pipe
from protocol.border.token_bucket import TokenBucket
from protocol.errors import LockstepError, RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, short
from protocol.wire_pb2 import Head, Offers, Refusal

TICK_S = 0.5
"""Pause between two looks at the clock; with `node.links.protocol.SILENCE_MS` a silent peer is
noticed within five seconds."""

WRITE_S = 20
"""Longest time in which a pipe takes nothing."""

ANSWER_S = 20
"""Longest wait for the answer to an offer."""

RETIRE_S = 2
"""Time that a link stays after another has replaced it: until then the other end knows of that one
too."""


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


class Links(LinkOwner, Protocol):
    """The mesh, as its links see it."""

    def on_proven(self, link: "Link", public_key: bytes) -> None:
        """The other end proved its key. `RemoteProtocolError`: another key was expected."""

    def on_head(self, head: Head) -> None:
        """The peer shows a head of the run."""

    def on_ended(self, link: "Link", error: LockstepError) -> None:
        """The link ended, for this reason."""


class Link:
    """A link from the opening of its pipe to its end. `run` carries it; the other methods may be
    called once it is proven.
    """

    def __init__(self, pipe: Pipe, kind: str, protocol: LinkProtocol, owner: Links) -> None:
        self.pipe = pipe
        self.kind = kind
        self.protocol = protocol
        self.traffic = Traffic()
        self.proven = asyncio.Event()
        self._owner = owner
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._to_write = asyncio.Event()
        wake, on_end = self._to_write.set, self._leave_if_idle
        self._serving = Serving(protocol, owner, wake, on_end)
        self._fetching = Fetching(protocol, owner, self.traffic, wake, on_end)
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
            async with asyncio.timeout(ANSWER_S):
                await answer
        except TimeoutError:
            raise UnavailableError(
                f"{short(self.peer)} did not answer an offer in {ANSWER_S} s"
            ) from None
        finally:
            self._answers.pop(request, None)
            self._leave_if_idle()

    def fetch(self, blob: BlobRange, purpose: Purpose) -> AsyncGenerator[Part, None]:
        """See `Fetching.fetch`; `UnavailableError` after the end of the link."""
        self._require_open()
        return self._fetching.fetch(blob, purpose)

    def withdraw(self, digest: Digest, unless_soon: bool = False) -> None:
        """See `Fetching.withdraw`."""
        self._fetching.withdraw(digest, unless_soon)

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
            case HeadShown():
                self._owner.on_head(event.head)
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
                self._fetching.on_part(event)
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
        if error and self._fetching.on_refused(request, error):
            return
        if (answer := self._answers.get(request)) and not answer.done():
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

    # ---- the end

    def _retire(self, reason: str) -> None:
        self._retired = reason
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        busy = self._fetching.busy or self._answers or self.serving
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
        broke = isinstance(error, UnavailableError) and not self._leaving
        was_heard = self.protocol.hears(self._owner.clock_ms())
        self._fetching.end((LinkBrokenError if broke and was_heard else UnavailableError)(reason))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(UnavailableError(reason))

"""One link between two nodes, as one of its ends sees it. Pure: bytes and commands in, events and
bytes out. Its states are those of `node.links.handshake`.

Rules
- Both ends speak first, at once. Until the other end has proved its key, only its hello, proof and
  goodbye are heard.
- The caller hands in the bytes that arrive (`receive`) and the time (`tick`), and writes the frames
  of `outgoing` in order. An end that breaks the rules raises `RemoteProtocolError` here, a silent
  one `UnavailableError`; the link has ended then, and takes no more bytes.
- A heartbeat leaves every second once both ends have greeted, so a dead peer is noticed within five
  seconds. Time in which this process itself stood still does not count as silence.
- Parts are acknowledged in bytes, when their fetch has taken them; `node.links.window` limits the
  bytes on their way. Only requested parts are taken, and for a while those that were on their way
  when their fetch was cancelled.
- No message of a peer makes anything here grow without limit: open requests, parts, and frames that
  the peer does not read are all counted (`node.links.requests`).
- The fetch checks a blob's own digest; a broken fetch goes on later, here or elsewhere, at its
  offset.
"""

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.links.frames import FrameReader, Part, encode
from node.links.handshake import Handshake, State
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
from node.links.quality.meter import LinkMeter
from node.links.requests import OwnRequests, PeerRequests, Received
from node.links.shown_heads import ShownHeads
from node.links.window import Window
from protocol.border.text import clean
from protocol.codec.heads import Heads
from protocol.errors import LocalProtocolError, LockstepError, RemoteProtocolError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, RunId, parse_digest, peer_id
from protocol.limits import OFFERS_MAX
from protocol.wire_pb2 import (
    Beat,
    Cancel,
    Goodbye,
    LinkFetch,
    LinkMessage,
    LinkOffers,
    Offers,
    Refusal,
    Taken,
)

BEAT_MS = 1_000
"""Pause between heartbeats."""

SILENCE_MS = 4_500
"""Silence after which a peer is gone: noticed within five seconds, with the clock's coarseness."""

PROOF_MS = 10_000
"""Longest time from the first byte to the proof: a stranger holds a place no longer."""

STOOD_STILL_MS = 1_500
"""Time between two ticks above which this process did not run."""

FRAMES_WAITING_MAX = 4_096
"""Frames that may wait here for a peer that sends but does not read; an honest one has some
dozens."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The names under which this end greets."""

    key: Ed25519PrivateKey
    run_id: RunId
    instance: int
    """Random, once per process."""
    heads: Heads | None = None
    """The heads of the run that this end knows, which it shows; None: it shows none."""

    @property
    def peer(self) -> PeerId:
        """The id under which peers know it."""
        return peer_id(public_bytes(self.key))


@dataclass(slots=True)
class _Heartbeat:
    """Times of one link, in milliseconds of this end's clock."""

    began_ms: int
    heard_ms: int
    ticked_ms: int
    beat_ms: int
    to_answer: Beat | None = None
    """The newest beat of the peer: answering only that one, a flood of beats costs nothing."""

    def forgive(self, now_ms: int) -> None:
        """Forgive the time since the last tick in which this process stood still."""
        stood_still_ms = now_ms - self.ticked_ms - STOOD_STILL_MS
        if stood_still_ms > 0:  # bytes that were read after it do not move into the future
            self.heard_ms = min(now_ms, self.heard_ms + stood_still_ms)
            self.began_ms = min(now_ms, self.began_ms + stood_still_ms)
        self.ticked_ms = now_ms


class LinkProtocol:
    """The machine of one end. `dialled`: whether this end opened the pipe. `nonce`: 32 random
    bytes.
    """

    def __init__(self, identity: Identity, nonce: bytes, dialled: bool, now_ms: int) -> None:
        self.dialled = dialled
        self.meter = LinkMeter()
        self.window = Window()
        self.peer_requests = PeerRequests()
        self.received = Received()
        self._handshake = Handshake(identity.key, identity.run_id, identity.instance, nonce)
        self._heads = ShownHeads(identity.heads)
        self._requests = OwnRequests()
        self._heartbeat = _Heartbeat(now_ms, now_ms, now_ms, now_ms)
        self._reader = FrameReader()
        self._outgoing: list[bytes] = []
        self._send(LinkMessage(hello=self._handshake.hello(self._heads.due(now_ms))))

    @property
    def state(self) -> State:
        """The state of the link."""
        return self._handshake.state

    @property
    def peer(self) -> PeerId | None:
        """The peer, once it is proven."""
        return self._handshake.peer

    @property
    def instance(self) -> int:
        """The peer's process, once it has greeted."""
        return self._handshake.instance

    @property
    def control_bytes_received(self) -> int:
        """Bytes of the frames received so far, without the data of parts."""
        return self._reader.control_bytes

    @property
    def waiting_frames(self) -> int:
        """Frames that `outgoing` has not given yet."""
        return len(self._outgoing)

    def outgoing(self) -> list[bytes]:
        """Frames to write now, in order; each is given once."""
        if ack := self.received.acknowledge():
            self._send(LinkMessage(ack=ack))
        if beat := self._heartbeat.to_answer:
            self._send(LinkMessage(beat=Beat(sent_ms=beat.sent_ms, reply=True)))
            self._heartbeat.to_answer = None
        frames, self._outgoing = self._outgoing, []
        return frames

    # ---- from the pipe and the clock

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """The events in the bytes that arrived. `RemoteProtocolError` or `VersionError`: the link
        has ended for this reason. `LocalProtocolError` after the end.
        """
        if self.state is State.ENDED:
            raise LocalProtocolError(
                f"expected no bytes after the end of a link, got {len(data)}; "
                f"it ended because: {self._handshake.end_reason}"
            )
        try:
            return self._receive(data, now_ms)
        except LockstepError as error:
            self.end(str(error))
            raise

    def hears(self, now_ms: int) -> bool:
        """Whether the peer was heard just now: at most one of its beats is missing."""
        return now_ms - self._heartbeat.heard_ms < 2 * BEAT_MS

    def tick(self, now_ms: int) -> None:
        """Send a heartbeat when it is time. `UnavailableError`: the link has ended, because the
        peer fell silent, or never proved its key.
        """
        self._heartbeat.forgive(now_ms)
        try:
            self._check_silence(now_ms)
        except UnavailableError as error:
            self.end(str(error))
            raise
        if self.state is State.GREETING or self._outgoing:
            # No beat may overtake the own proof; and a waiting frame is a sign of life as well.
            return
        if now_ms - self._heartbeat.beat_ms >= BEAT_MS:
            self._heartbeat.beat_ms = now_ms
            self._send(LinkMessage(beat=Beat(sent_ms=now_ms, head=self._heads.due(now_ms))))

    def end(self, reason: str) -> None:
        """End the link, because its pipe broke or its owner gives it up; may be called twice."""
        self._handshake.end(reason)

    # ---- commands

    def offer(self, offers: Offers) -> int:
        """Offer blobs to the peer; returns the number of its answer. `UnavailableError`: too many
        earlier offers are not answered yet.
        """
        self._require_proven_peer()
        request = self._requests.open_offer(self._handshake.name)
        self._send(LinkMessage(offers=LinkOffers(request=request, offers=offers)))
        return request

    def accept(self, request: int) -> None:
        """Accept an offer of the peer."""
        self.peer_requests.close(request)
        self._send(LinkMessage(taken=Taken(request=request)))

    def fetch(self, digest: Digest, offset: int, count: int = 0) -> int:
        """Ask for a blob, or for `count` bytes of it; returns the number of its parts.
        `UnavailableError`: too many fetches are open.
        """
        self._require_proven_peer()
        end = offset + count if count else 0
        request = self._requests.open_fetch(end, self._handshake.name)
        fetch = LinkFetch(request=request, digest=digest, offset=offset, bytes=count)
        self._send(LinkMessage(fetch=fetch))
        return request

    def withdraw(self, request: int, unless_soon: bool = False) -> None:
        """Ask for no more of a fetch than the peer has begun, or can begin soon; its refusal
        follows, or the rest of its parts.
        """
        if self._requests.is_fetch(request):
            cancel = Cancel(request=request, gently=True, unless_soon=unless_soon)
            self._send(LinkMessage(cancel=cancel))

    def taken(self, count: int, now_ms: int) -> None:
        """Count bytes of parts that their fetches have taken."""
        self.received.take(count, now_ms)

    def end_fetch(self, request: int, complete: bool) -> None:
        """End a fetch; an incomplete one is cancelled at the peer."""
        if self._requests.close_fetch(request) and not complete:
            self.received.allow_late()
            self._send(LinkMessage(cancel=Cancel(request=request)))

    def part(self, part: Part, now_ms: int) -> None:
        """Send the next part, of about `window.part_bytes`, when `window.open`. A part of a
        cancelled fetch is dropped.
        """
        if not self.peer_requests.is_fetch(part.request):
            return
        if not self.window.open:
            raise LocalProtocolError(
                "expected a part when the window is open, got one while it is not"
            )
        self.peer_requests.serve(part)
        self.window.send(len(part.data), now_ms)
        self._send(part)

    def refuse(self, request: int, code: int, reason: str) -> None:
        """Refuse an offer or a fetch of the peer."""
        self.peer_requests.close(request)
        refusal = Refusal(request=request, code=Refusal.Code.Name(code), reason=clean(reason))
        self._send(LinkMessage(refusal=refusal))

    def goodbye(self, reason: str) -> None:
        """Say goodbye; the last message."""
        self._send(LinkMessage(goodbye=Goodbye(reason=clean(reason))))

    # ---- arriving messages

    def _receive(self, data: bytes, now_ms: int) -> list[Event]:
        if len(self._outgoing) > FRAMES_WAITING_MAX:
            raise RemoteProtocolError(
                f"expected a peer that reads, got one for which {len(self._outgoing)} frames wait"
            )
        self._heartbeat.heard_ms = now_ms
        events = list[Event]()
        for message in self._reader.feed(data):
            if isinstance(message, Part):
                self._handshake.require_proven("a part")
                events.append(self._on_part(message))
            else:
                events += self._on_control(message, now_ms)
            if self.state is State.ENDED:
                break  # nothing follows a goodbye
        if self.state is State.PROVEN:
            events += self._heads.weigh(now_ms)
        return events

    def _on_control(self, message: LinkMessage, now_ms: int) -> list[Event]:
        kind = message.WhichOneof("kind")
        if kind in ("hello", "proof", "goodbye"):
            return self._on_meeting(kind, message)
        self._handshake.require_proven(f"a {kind}" if kind else "an unknown message")
        match kind:
            case "beat":
                self._on_beat(message.beat, now_ms)
            case "ack":
                self.window.acknowledge(message.ack.part_bytes, now_ms, message.ack.taken_ms)
            case "offers":
                return self._on_offer(message.offers)
            case "taken":
                return self._on_answer(Accepted(message.taken.request))
            case "fetch":
                return self._on_fetch(message.fetch)
            case "cancel":
                return self._on_cancel(message.cancel)
            case "refusal":
                refusal = message.refusal
                reason = clean(refusal.reason)
                return self._on_answer(Refused(refusal.request, refusal.code, reason))
        return []  # a kind of a newer version, ignored

    def _on_meeting(self, kind: str, message: LinkMessage) -> list[Event]:
        if kind == "goodbye":
            reason = clean(message.goodbye.reason)
            self.end(f"the peer said goodbye: {reason}")
            return [PeerLeft(reason)]
        if kind == "hello":
            if message.hello.HasField("head"):
                self._heads.hear(message.hello.head)
            self._send(LinkMessage(proof=self._handshake.greet(message.hello)))
            return []
        peer = self._handshake.prove(message.proof)
        return [Proven(peer, self._handshake.public_key, self.instance)]

    def _on_beat(self, beat: Beat, now_ms: int) -> None:
        if beat.HasField("head"):
            self._heads.hear(beat.head)
        if not beat.reply:
            self._heartbeat.to_answer = beat
        elif beat.sent_ms <= now_ms:
            self.meter.note_round_trip(now_ms - beat.sent_ms)

    def _on_offer(self, offer: LinkOffers) -> list[Event]:
        if offer.offers.sender != self.peer:
            raise RemoteProtocolError(
                f"expected offers of {self.peer}, got some of {offer.offers.sender[:40]!r}"
            )
        if len(offer.offers.offers) > OFFERS_MAX:
            raise RemoteProtocolError(
                f"expected at most {OFFERS_MAX} offers, got {len(offer.offers.offers)}"
            )
        self.peer_requests.open_offer(offer.request)
        return [Offered(offer.request, offer.offers)]

    def _on_fetch(self, fetch: LinkFetch) -> list[Event]:
        digest = parse_digest(fetch.digest)
        end = fetch.offset + fetch.bytes if fetch.bytes else 0
        self.peer_requests.open_fetch(fetch.request, end)
        return [FetchRequested(fetch.request, digest, fetch.offset, fetch.bytes)]

    def _on_cancel(self, cancel: Cancel) -> list[Event]:
        if not self.peer_requests.is_fetch(cancel.request):
            return []  # late: its last part, or its refusal, is on the way already
        if not cancel.gently:  # a gently cancelled fetch goes on until it is refused
            self.peer_requests.close(cancel.request)
        return [Cancelled(cancel.request, cancel.gently, cancel.gently and cancel.unless_soon)]

    def _on_answer(self, answer: Accepted | Refused) -> list[Event]:
        # False: late, the answer to a fetch that was cancelled meanwhile.
        return [answer] if self._requests.close_answered(answer) else []

    def _on_part(self, part: Part) -> Part:
        # Late parts of a cancelled fetch are events too: their bytes are counted and acknowledged.
        self.received.arrive(part, is_late=not self._requests.expects(part))
        return part

    # ---- helpers

    def _check_silence(self, now_ms: int) -> None:
        silent_ms = now_ms - self._heartbeat.heard_ms
        if silent_ms >= SILENCE_MS:
            raise UnavailableError(
                f"{self._handshake.name} was silent for {silent_ms / 1000:.1f} s"
            )
        if self.peer is None and now_ms - self._heartbeat.began_ms >= PROOF_MS:
            raise UnavailableError(
                f"{self._handshake.name} did not prove its key within {PROOF_MS / 1000:g} s"
            )

    def _require_proven_peer(self) -> None:
        if self.state is not State.PROVEN:
            raise LocalProtocolError(
                f"expected a proven peer before a request, got a link that is {self.state.value}"
            )

    def _send(self, message: LinkMessage | Part) -> None:
        self._outgoing.append(encode(message))

"""One link between two nodes, as one of its ends sees it. Pure: bytes and commands in, events and
bytes out.

               start                   hello                    proof
    (nothing) -------> greeting ----------------> greeted ----------------> proven ------> ended
                       hello sent                 proof sent                  |   silence, nonsense, goodbye, or
                                                                              |   the pipe breaks: at any time
                       offers, fetches, parts, acknowledgements <-------------'

Rules
- Both ends speak first, at once. Nothing but hello, proof and goodbye is heard before the other end has proved its key.
- The caller hands in what arrived (`receive`), and time (`tick`), and writes what `outgoing` gives, in order. Who
  breaks the rules raises `RemoteProtocolError` here, who falls silent `UnavailableError`: the link is over then.
- A heartbeat leaves every second once both ends have greeted, so a peer that is gone is noticed within five. Time in
  which this process itself stood still is not the peer's silence.
- Parts are acknowledged in bytes, when their taker has them; how many may be on their way says `node.links.window`.
  Only what was asked for is taken, and for a while what was on its way when its fetch was cancelled.
- Requests are numbered upwards by the end that makes them: no number comes twice.
- What a peer says makes nothing here grow: open requests, parts and frames that wait for it to read are all counted.
- A blob's own digest is checked by whoever fetches it; a broken fetch goes on later, here or elsewhere, at its offset.
"""

from collections.abc import Sized
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN, FrameReader, Part, encode
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
from node.links.window import WINDOW_BYTES_MAX, Window
from protocol.errors import LocalProtocolError, RemoteProtocolError, UnavailableError, VersionError
from protocol.handshake import Greeting, check_greeting, public_bytes, sign_link, verify_link
from protocol.ids import Digest, PeerId, RunId, parse_digest, short
from protocol.limits import OFFERS_MAX, PROTOCOL_VERSION, TEXT_BYTES_MAX
from protocol.wire_pb2 import (
    Ack,
    Beat,
    Cancel,
    Goodbye,
    LinkFetch,
    LinkHello,
    LinkMessage,
    LinkOffers,
    LinkProof,
    Offers,
    Refusal,
    Taken,
)

BEAT_MS = 1_000
"""A heartbeat leaves this often."""

SILENCE_MS = 4_500
"""A peer that says nothing for so long is gone: noticed within five seconds, with the clock's
coarseness."""

PROOF_MS = 10_000
"""Longest time from the first byte to the proof: a stranger holds a place no longer."""

STOOD_STILL_MS = 1_500
"""What is above this between two ticks is time in which this process did not run."""

FETCHES_MAX = 16
"""Fetches that one peer may have open on a link."""

OFFERS_OPEN_MAX = 8
"""Offers that one peer may have open on a link: an honest one sends one at a time."""

FRAMES_WAITING_MAX = 4_096
"""Frames that may wait here for a peer that sends but does not read; an honest one has some
dozens."""

LATE_BYTES_MAX = 2 * WINDOW_BYTES_MAX
"""Parts that may still come when a fetch is cancelled: a window is on its way, and acknowledgements
ahead of the cancellation set free another."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this end is."""

    key: Ed25519PrivateKey
    run_id: RunId
    instance: int
    """Random, once per process."""


class LinkProtocol:
    """The machine of one end. `dialled`: whether this end opened the pipe. `nonce`: 32 random
    bytes."""

    def __init__(self, identity: Identity, nonce: bytes, dialled: bool, now_ms: int) -> None:
        self.dialled = dialled
        self.peer: PeerId | None = None
        self.instance = 0
        self.rtt_ms: int | None = None
        self.window = Window()
        self._identity = identity
        self._own = Greeting(public_bytes(identity.key), nonce)
        self._other: Greeting | None = None
        self._reader = FrameReader()
        self._outgoing: list[bytes] = []
        self._began_ms = self._heard_ms = self._ticked_ms = now_ms
        self._beat_ms = now_ms
        self._beat_to_answer: Beat | None = None
        self._peer_left = False
        self._requests = 0
        self._peer_requests = 0
        self._fetching: dict[int, int] = {}  # with the end that was asked for, 0 for the blob's
        self._offering: set[int] = set()
        self._asked: dict[int, int] = {}
        self._offered: set[int] = set()
        self._arrived_bytes = 0
        self._taken_bytes = self._taken_ms = 0
        self._acknowledged_bytes = 0
        self._late_bytes_left = 0
        self._send(
            LinkMessage(
                hello=LinkHello(
                    protocol_version=PROTOCOL_VERSION,
                    run_id=identity.run_id,
                    public_key=self._own.public_key,
                    nonce=nonce,
                    instance=identity.instance,
                )
            )
        )

    def outgoing(self) -> list[bytes]:
        """Frames to write now, in order; they are given once."""
        if (
            self._acknowledged_bytes < self._taken_bytes
        ):  # one for all that was taken since the last
            self._acknowledged_bytes = self._taken_bytes
            self._send(LinkMessage(ack=Ack(part_bytes=self._taken_bytes, taken_ms=self._taken_ms)))
        if self._beat_to_answer is not None:  # the newest only: beats that outrun us cost nothing
            self._send(LinkMessage(beat=Beat(sent_ms=self._beat_to_answer.sent_ms, reply=True)))
            self._beat_to_answer = None
        frames, self._outgoing = self._outgoing, []
        return frames

    # ---- from the pipe and the clock

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """What the bytes mean. `RemoteProtocolError` or `VersionError`: the link is over, with this
        reason."""
        if len(self._outgoing) > FRAMES_WAITING_MAX:
            raise RemoteProtocolError(
                f"expected a peer that reads, got one for which {len(self._outgoing)} frames wait"
            )
        self._heard_ms = now_ms
        events = list[Event]()
        for message in self._reader.feed(data):
            if self._peer_left:
                break  # nothing follows a goodbye
            if isinstance(message, Part):
                self._require_proven("a part")
                events += self._on_part(message)
            else:
                events += self._on_control(message, now_ms)
        return events

    def tick(self, now_ms: int) -> None:
        """Send a heartbeat when it is time. `UnavailableError`: the peer fell silent, or never
        proved its key."""
        stood_still_ms = now_ms - self._ticked_ms - STOOD_STILL_MS
        if stood_still_ms > 0:  # what is heard already, after it, is not moved into the future
            self._heard_ms = min(now_ms, self._heard_ms + stood_still_ms)
            self._began_ms = min(now_ms, self._began_ms + stood_still_ms)
        self._ticked_ms = now_ms
        silent_ms = now_ms - self._heard_ms
        if silent_ms >= SILENCE_MS:
            raise UnavailableError(f"{self._name} was silent for {silent_ms / 1000:.1f} s")
        if self.peer is None and now_ms - self._began_ms >= PROOF_MS:
            raise UnavailableError(
                f"{self._name} did not prove its key within {PROOF_MS / 1000:g} s"
            )
        if self._other is None or self._outgoing:
            # no beat may overtake the own proof; and whatever waits is a sign of life as well
            return
        if now_ms - self._beat_ms >= BEAT_MS:
            self._beat_ms = now_ms
            self._send(LinkMessage(beat=Beat(sent_ms=now_ms)))

    # ---- commands

    def offer(self, offers: Offers) -> int:
        """Say what is held here; returns the number under which it will be accepted or refused.

        `UnavailableError`: the peer has not answered those before."""
        request = self._next_request(self._offering, OFFERS_OPEN_MAX)
        self._offering.add(request)
        self._send(LinkMessage(offers=LinkOffers(request=request, offers=offers)))
        return request

    def accept(self, request: int) -> None:
        """The peer's offer is taken."""
        self._offered.discard(request)
        self._send(LinkMessage(taken=Taken(request=request)))

    def fetch(self, digest: Digest, offset: int, count: int = 0) -> int:
        """Ask for a blob, or for `count` bytes of it; returns the number under which its parts will
        come.

        `UnavailableError`: too many at once."""
        request = self._next_request(self._fetching, FETCHES_MAX)
        self._fetching[request] = offset + count if count else 0
        self._send(
            LinkMessage(fetch=LinkFetch(request=request, digest=digest, offset=offset, bytes=count))
        )
        return request

    def withdraw(self, request: int, unless_soon: bool = False) -> None:
        """Ask for no more of a fetch than has been begun, or can begin soon; its refusal follows,
        or the rest."""
        if request in self._fetching:
            self._send(
                LinkMessage(cancel=Cancel(request=request, gently=True, unless_soon=unless_soon))
            )

    def taken(self, count: int, now_ms: int) -> None:
        """So many bytes of parts are in their taker's hands."""
        if self._taken_bytes + count > self._arrived_bytes:
            raise LocalProtocolError(
                f"expected at most {self._arrived_bytes - self._taken_bytes} bytes taken, for no more came, got {count}"
            )
        self._taken_bytes += count
        self._taken_ms = now_ms

    def end_fetch(self, request: int, complete: bool) -> None:
        """No more parts of this fetch are wanted; an incomplete one is cancelled at the peer."""
        if self._fetching.pop(request, None) is not None and not complete:
            self._late_bytes_left = LATE_BYTES_MAX
            self._send(LinkMessage(cancel=Cancel(request=request)))

    def part(self, part: Part, now_ms: int) -> None:
        """The next part for the peer, of about `window.part_bytes`, when `window.open`. None of a
        cancelled fetch."""
        if part.request not in self._asked:
            return
        if not self.window.open:
            raise LocalProtocolError(
                "expected a part when the window is open, got one while it is not"
            )
        end = self._asked[part.request]
        if not _well_cut(part, end):
            raise LocalProtocolError(_badly_cut(part))
        if part.offset + len(part.data) == min(end or part.total_bytes, part.total_bytes):
            del self._asked[part.request]
        self.window.left(len(part.data), now_ms)
        self._send(part)

    def refuse(self, request: int, code: int, reason: str) -> None:
        """Turn an offer or a fetch of the peer down."""
        self._offered.discard(request)
        self._asked.pop(request, None)
        self._send(
            LinkMessage(
                refusal=Refusal(request=request, code=Refusal.Code.Name(code), reason=_text(reason))
            )
        )

    def goodbye(self, reason: str) -> None:
        """The last word."""
        self._send(LinkMessage(goodbye=Goodbye(reason=_text(reason))))

    # ---- what arrives

    def _on_control(self, message: LinkMessage, now_ms: int) -> list[Event]:
        kind = message.WhichOneof("kind")
        if kind in ("hello", "proof", "goodbye"):
            return self._on_meeting(kind, message)
        self._require_proven(f"a {kind}" if kind else "something unknown")
        match kind:
            case "beat":
                self._on_beat(message.beat, now_ms)
            case "ack":
                self.window.acknowledge(message.ack.part_bytes, now_ms, message.ack.taken_ms)
            case "offers":
                return self._on_offer(message.offers)
            case "taken":
                return self._on_answer(message.taken.request, Accepted(message.taken.request))
            case "fetch":
                return self._on_fetch(message.fetch)
            case "cancel":
                return self._on_cancel(message.cancel)
            case "refusal":
                refusal = message.refusal
                return self._on_answer(
                    refusal.request,
                    Refused(refusal.request, refusal.code, refusal.reason[:TEXT_BYTES_MAX]),
                )
        return []  # a newer version's kind, of no use here

    def _on_meeting(self, kind: str, message: LinkMessage) -> list[Event]:
        if kind == "goodbye":
            self._peer_left = True
            return [PeerLeft(message.goodbye.reason[:TEXT_BYTES_MAX])]
        if kind == "hello":
            self._on_hello(message.hello)
            return []
        if self._other is None or self.peer is not None:
            raise RemoteProtocolError("expected one proof, after the hello")
        peer = verify_link(message.proof.signature, self._identity.run_id, self._other, self._own)
        self.peer = peer
        return [Proven(peer, self._other.public_key, self.instance)]

    def _on_hello(self, hello: LinkHello) -> None:
        if self._other is not None:
            raise RemoteProtocolError("expected one hello, got a second")
        if hello.protocol_version != PROTOCOL_VERSION:
            raise VersionError(
                f"the peer speaks protocol version {hello.protocol_version}, this node {PROTOCOL_VERSION}: update one"
            )
        if hello.run_id != self._identity.run_id:
            raise RemoteProtocolError(
                f"expected a peer of run {self._identity.run_id}, got one of {hello.run_id[:40]!r}"
            )
        other = Greeting(hello.public_key, hello.nonce)
        check_greeting(self._own, other)
        self._other, self.instance = other, hello.instance
        signature = sign_link(self._identity.key, self._identity.run_id, self._own, other)
        self._send(LinkMessage(proof=LinkProof(signature=signature)))

    def _on_beat(self, beat: Beat, now_ms: int) -> None:
        if beat.reply:
            if beat.sent_ms <= now_ms:
                self.rtt_ms = now_ms - beat.sent_ms
        else:
            self._beat_to_answer = beat

    def _on_offer(self, offer: LinkOffers) -> list[Event]:
        if offer.offers.sender != self.peer:
            raise RemoteProtocolError(
                f"expected offers of {self.peer}, got some of {offer.offers.sender[:40]!r}"
            )
        if len(offer.offers.offers) > OFFERS_MAX:
            raise RemoteProtocolError(
                f"expected at most {OFFERS_MAX} offers, got {len(offer.offers.offers)}"
            )
        self._open_request(offer.request, self._offered, OFFERS_OPEN_MAX)
        self._offered.add(offer.request)
        return [Offered(offer.request, offer.offers)]

    def _on_fetch(self, fetch: LinkFetch) -> list[Event]:
        digest = parse_digest(fetch.digest)
        self._open_request(fetch.request, self._asked, FETCHES_MAX)
        self._asked[fetch.request] = fetch.offset + fetch.bytes if fetch.bytes else 0
        return [FetchRequested(fetch.request, digest, fetch.offset, fetch.bytes)]

    def _open_request(self, request: int, open_requests: Sized, count_max: int) -> None:
        if request <= self._peer_requests:
            raise RemoteProtocolError(
                f"expected a request numbered above {self._peer_requests}, got {request}"
            )
        if len(open_requests) >= count_max:
            raise RemoteProtocolError(
                f"expected at most {count_max} open requests of a kind, got one more"
            )
        self._peer_requests = request

    def _on_cancel(self, cancel: Cancel) -> list[Event]:
        if cancel.request not in self._asked:
            return []  # its last part, or its refusal, is on the way already
        if not cancel.gently:  # else it goes on until it is refused
            del self._asked[cancel.request]
        return [Cancelled(cancel.request, cancel.gently, cancel.gently and cancel.unless_soon)]

    def _on_answer(self, request: int, event: Accepted | Refused) -> list[Event]:
        if request in self._offering:
            self._offering.discard(request)
            return [event]
        if request in self._fetching and isinstance(event, Refused):
            del self._fetching[request]
            return [event]
        if request in self._fetching or not 0 < request <= self._requests:
            raise RemoteProtocolError(
                f"expected the answer to a request, got {type(event).__name__} to {request}"
            )
        return []  # of a fetch that was cancelled meanwhile

    def _on_part(self, part: Part) -> list[Event]:
        end = self._fetching.get(part.request)
        if not _well_cut(part, end or 0) and end is not None:
            raise RemoteProtocolError(_badly_cut(part))
        if end is None:
            self._late_bytes_left -= len(part.data)
            if self._late_bytes_left < 0:
                raise RemoteProtocolError(
                    f"expected parts of what was asked for, got some of request {part.request}"
                )
        self._arrived_bytes += len(part.data)
        if self._arrived_bytes - self._taken_bytes > WINDOW_BYTES_MAX + PART_BYTES_MAX:
            raise RemoteProtocolError(
                f"expected at most {WINDOW_BYTES_MAX} unacknowledged bytes, got more"
            )
        return [part]  # of a cancelled fetch too: its bytes are counted and acknowledged

    # ---- helpers

    @property
    def _name(self) -> str:
        return f"peer {short(self.peer)}" if self.peer else "the other end"

    def _require_proven(self, what: str) -> None:
        if self.peer is None:
            raise RemoteProtocolError(f"expected a proof before anything else, got {what}")

    def _next_request(self, open_requests: Sized, count_max: int) -> int:
        if self.peer is None:
            raise LocalProtocolError("expected a proven peer before a request, got none")
        if len(open_requests) >= count_max:
            raise UnavailableError(f"{self._name} is busy with {count_max} requests of this node")
        self._requests += 1
        return self._requests

    def _send(self, message: LinkMessage | Part) -> None:
        self._outgoing.append(encode(message))


def _well_cut(part: Part, end: int) -> bool:
    """Whether a part lies in what was asked of its blob (`end` 0: all), and is large enough or the
    last."""
    missing = min(end or part.total_bytes, part.total_bytes) - part.offset - len(part.data)
    return missing == 0 or (missing > 0 and len(part.data) >= PART_BYTES_MIN)


def _badly_cut(part: Part) -> str:
    return (
        f"expected a part of {PART_BYTES_MIN} bytes or more, or the last, got {len(part.data)} at {part.offset} of "
        f"{part.total_bytes}"
    )


def _text(reason: str) -> str:
    """A reason as it may travel: bounded, and free of what no UTF-8 can say."""
    return reason.encode(errors="replace")[:TEXT_BYTES_MAX].decode(errors="ignore")

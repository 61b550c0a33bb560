"""One link between two nodes, as one of its ends sees it. Pure: bytes and commands in, events and bytes out.

               start                   hello                    proof
    (nothing) -------> greeting ----------------> greeted ----------------> proven ------> ended
                       hello sent                 proof sent                  |   silence, nonsense, goodbye, or
                                                                              |   the pipe breaks: at any time
                       offers, fetches, parts, acknowledgements <-------------'

Rules
- Both ends speak first, at once. Nothing but hello, proof and goodbye is heard before the other end has proved its key.
- The caller hands in what arrived (`receive`), and time (`tick`), and writes what `outgoing` gives, in order. Who
  breaks the rules raises `RemoteProtocolError` here, who falls silent `UnavailableError`: the link is over then.
- A heartbeat leaves every second, so a peer that is gone is noticed within five. Time in which this process itself
  stood still is not the peer's silence.
- Parts are acknowledged in bytes, when their taker has them; how many may be on their way says `node.links.window`.
- A blob's own digest is checked by whoever fetches it; a broken fetch goes on later, here or elsewhere, at its offset.
"""

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN, FrameReader, Part, encode
from node.links.session_events import Accepted, Asked, Cancelled, Event, Left, Offered, Proven, Refused
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
"""A peer that says nothing for so long is gone: noticed within five seconds, with the clock's coarseness."""

PROOF_MS = 10_000
"""Longest time from the first byte to the proof: a stranger holds a place no longer."""

STOOD_STILL_MS = 1_500
"""A longer time between two ticks means that this process did not run."""

FETCHES_MAX = 16
"""Fetches that one peer may have open on a link."""

OFFERS_OPEN_MAX = 8
"""Offers that one peer may have open on a link: an honest one sends one at a time."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this end is."""

    key: Ed25519PrivateKey
    run_id: RunId
    instance: int
    """Random, once per process."""


class Session:
    """The machine of one end. `dialled`: whether this end opened the pipe. `nonce`: 32 random bytes."""

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
        self._requests = 0
        self._fetching: set[int] = set()
        self._offering: set[int] = set()
        self._asked: set[int] = set()
        self._offered: set[int] = set()
        self._taken_bytes = 0
        self._arrived_bytes = 0
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
        frames, self._outgoing = self._outgoing, []
        return frames

    # ---- from the pipe and the clock

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """What the bytes mean. `RemoteProtocolError` or `VersionError`: the link is over, with this reason."""
        self._heard_ms = now_ms
        events = list[Event]()
        for message in self._reader.feed(data):
            if isinstance(message, Part):
                self._require_proven("a part")
                events += self._on_part(message)
            else:
                events += self._on_control(message, now_ms)
        return events

    def tick(self, now_ms: int) -> None:
        """Send a heartbeat when it is time. `UnavailableError`: the peer fell silent, or never proved its key."""
        stood_still_ms = now_ms - self._ticked_ms
        if stood_still_ms > STOOD_STILL_MS:
            self._heard_ms += stood_still_ms
            self._began_ms += stood_still_ms
        self._ticked_ms = now_ms
        silent_ms = now_ms - self._heard_ms
        if silent_ms >= SILENCE_MS:
            raise UnavailableError(f"{self._name} was silent for {silent_ms / 1000:.1f} s")
        if self.peer is None and now_ms - self._began_ms >= PROOF_MS:
            raise UnavailableError(f"{self._name} did not prove its key within {PROOF_MS / 1000:g} s")
        if now_ms - self._beat_ms >= BEAT_MS and not self._outgoing:  # whatever waits is a sign of life as well
            self._beat_ms = now_ms
            self._send(LinkMessage(beat=Beat(sent_ms=now_ms)))

    # ---- commands

    def offer(self, offers: Offers) -> int:
        """Say what is held here; returns the number under which it will be accepted or refused."""
        request = self._next_request()
        self._offering.add(request)
        self._send(LinkMessage(offers=LinkOffers(request=request, offers=offers)))
        return request

    def accept(self, request: int) -> None:
        """The peer's offer is taken."""
        self._offered.discard(request)
        self._send(LinkMessage(taken=Taken(request=request)))

    def fetch(self, digest: Digest, offset: int) -> int:
        """Ask for a blob; returns the number under which its parts will come."""
        request = self._next_request()
        self._fetching.add(request)
        self._send(LinkMessage(fetch=LinkFetch(request=request, digest=digest, offset=offset)))
        return request

    def taken(self, count: int) -> None:
        """So many bytes of parts are in their taker's hands."""
        self._taken_bytes += count
        self._send(LinkMessage(ack=Ack(part_bytes=self._taken_bytes)))

    def end_fetch(self, request: int, complete: bool) -> None:
        """No more parts of this fetch are wanted; an incomplete one is cancelled at the peer."""
        if request in self._fetching:
            self._fetching.discard(request)
            if not complete:
                self._send(LinkMessage(cancel=Cancel(request=request)))

    def part(self, part: Part, now_ms: int) -> None:
        """The next part for the peer, of at most `window.part_bytes`, when `window.open`. None of a cancelled fetch."""
        if part.request not in self._asked:
            return
        if not self.window.open:
            raise LocalProtocolError("expected a part when the window is open, it is not")
        if part.offset + len(part.data) == part.total_bytes:
            self._asked.discard(part.request)
        self.window.left(len(part.data), now_ms)
        self._send(part)

    def refuse(self, request: int, code: int, reason: str) -> None:
        """Turn an offer or a fetch of the peer down."""
        self._offered.discard(request)
        self._asked.discard(request)
        text = reason.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
        self._send(LinkMessage(refusal=Refusal(request=request, code=Refusal.Code.Name(code), reason=text)))

    def goodbye(self, reason: str) -> None:
        """The last word."""
        self._send(LinkMessage(goodbye=Goodbye(reason=reason[:TEXT_BYTES_MAX])))

    # ---- what arrives

    def _on_control(self, message: LinkMessage, now_ms: int) -> list[Event]:
        kind = message.WhichOneof("kind")
        if kind in ("hello", "proof", "goodbye"):
            return self._on_meeting(kind, message)
        self._require_proven(f"a {kind}")
        match kind:
            case "beat":
                self._on_beat(message.beat, now_ms)
            case "ack":
                self.window.acknowledge(message.ack.part_bytes, now_ms)
            case "offers":
                return self._on_offer(message.offers)
            case "taken":
                return self._on_answer(message.taken.request, Accepted(message.taken.request))
            case "fetch":
                return self._on_fetch(message.fetch)
            case "cancel":
                self._asked.discard(message.cancel.request)
                return [Cancelled(message.cancel.request)]
            case "refusal":
                refusal = message.refusal
                return self._on_answer(
                    refusal.request, Refused(refusal.request, refusal.code, refusal.reason[:TEXT_BYTES_MAX])
                )
        return []  # a newer version's kind, of no use here

    def _on_meeting(self, kind: str, message: LinkMessage) -> list[Event]:
        if kind == "goodbye":
            return [Left(message.goodbye.reason[:TEXT_BYTES_MAX])]
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
            self.rtt_ms = max(0, now_ms - beat.sent_ms) if beat.sent_ms <= now_ms else self.rtt_ms
        else:
            self._send(LinkMessage(beat=Beat(sent_ms=beat.sent_ms, reply=True)))

    def _on_offer(self, offer: LinkOffers) -> list[Event]:
        if offer.offers.sender != self.peer:
            raise RemoteProtocolError(f"expected offers of {self.peer}, got some of {offer.offers.sender[:40]!r}")
        if len(offer.offers.offers) > OFFERS_MAX:
            raise RemoteProtocolError(f"expected at most {OFFERS_MAX} offers, got {len(offer.offers.offers)}")
        self._open_request(offer.request, self._offered, OFFERS_OPEN_MAX)
        return [Offered(offer.request, offer.offers)]

    def _on_fetch(self, fetch: LinkFetch) -> list[Event]:
        digest = parse_digest(fetch.digest)
        self._open_request(fetch.request, self._asked, FETCHES_MAX)
        return [Asked(fetch.request, digest, fetch.offset)]

    def _open_request(self, request: int, open_requests: set[int], count_max: int) -> None:
        if request in self._asked or request in self._offered:
            raise RemoteProtocolError(f"expected a new request, got number {request} again")
        if len(open_requests) >= count_max:
            raise RemoteProtocolError(f"expected at most {count_max} open requests of a kind, got one more")
        open_requests.add(request)

    def _on_answer(self, request: int, event: Accepted | Refused) -> list[Event]:
        if request in self._offering:
            self._offering.discard(request)
            return [event]
        if request in self._fetching and isinstance(event, Refused):
            self._fetching.discard(request)
            return [event]
        if request <= self._requests:
            return []  # of a fetch that was cancelled meanwhile
        raise RemoteProtocolError(f"expected the answer to a request, got one to number {request}")

    def _on_part(self, part: Part) -> list[Event]:
        if part.request > self._requests:
            raise RemoteProtocolError(f"expected a part of a fetch, got one of number {part.request}")
        end = part.offset + len(part.data)
        if end > part.total_bytes or (end < part.total_bytes and len(part.data) < PART_BYTES_MIN):
            raise RemoteProtocolError(
                f"expected a part of {PART_BYTES_MIN} bytes or the last, got {len(part.data)} at {part.offset} of "
                f"{part.total_bytes}"
            )
        self._arrived_bytes += len(part.data)
        if self._arrived_bytes - self._taken_bytes > WINDOW_BYTES_MAX + PART_BYTES_MAX:
            raise RemoteProtocolError(f"expected at most {WINDOW_BYTES_MAX} unacknowledged bytes, got more")
        return [part]  # of a cancelled fetch too: its bytes are counted and acknowledged

    # ---- helpers

    @property
    def _name(self) -> str:
        return f"peer {short(self.peer)}" if self.peer else "the other end"

    def _require_proven(self, what: str) -> None:
        if self.peer is None:
            raise RemoteProtocolError(f"expected a proof before anything else, got {what}")

    def _next_request(self) -> int:
        if self.peer is None:
            raise LocalProtocolError("expected a proven peer before a request")
        self._requests += 1
        return self._requests

    def _send(self, message: LinkMessage | Part) -> None:
        self._outgoing.append(encode(message))

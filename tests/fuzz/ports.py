"""What reaches a port before anybody is known, and what the other end of a session says.

crowd                 a gate's connections: bytes that say who comes, sends, proves a key and goes
link meeting          the first messages of a link, in frames whose digests are right
link proven           messages of a peer that has proved its key, to an end that has asked for parts
coordinator message   a message of a session, as a node's client takes it
page                  a request to the public page, as it comes from a socket
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from border.crowd import EVERYBODY_BYTES_MAX, Crowd
from lockstep.page.model import Model
from lockstep.page.site import Site
from node.control.channel import clean_reason
from node.control.client import CoordinatorClient
from node.links import frames
from node.links.handshake import Handshake, State
from node.links.protocol import FRAMES_WAITING_MAX, Identity, LinkProtocol
from node.links.protocol_events import PeerLeft, Proven
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
from protocol.errors import LockstepError, RemoteProtocolError
from protocol.ids import sha256
from tests.fuzz.targets import KEY, PEER, RUN, Target, framed, link_messages, parsed

OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))

PLACES = 8
HOSTS = ("192.0.2.1", "192.0.2.2", "198.51.100.7", "2001:db8::1", "2001:db8:0:1::1", "a name")
MS_PER_STEP = 500
STEPS = 48


def judge_crowd(blob: bytes) -> None:
    """Whoever comes, no bound is passed; and when all have gone nothing is left of them."""
    crowd, now_ms, inside = Crowd(PLACES), 0, set[int]()
    for number, (what, which) in enumerate(zip(blob[:STEPS:2], blob[1:STEPS:2], strict=False)):
        now_ms += MS_PER_STEP * (what >> 4)
        one = sorted(inside)[which % len(inside)] if inside else number
        match what % 7:
            case 0 | 1:
                inside.add(number)
                inside -= {*crowd.come(number, HOSTS[which % len(HOSTS)], now_ms)}
            case 2:
                inside -= {*crowd.take(one, crowd.room(one), now_ms)}
            case 3:
                crowd.answer(one, which << 8, now_ms)
            case 4:
                crowd.hear(one, now_ms)
            case 5:
                crowd.prove(one, now_ms)
            case 6:
                inside -= {*crowd.late(now_ms), one}
                crowd.leave(one, now_ms)
        assert len(crowd) == len(inside) <= PLACES, "connections"
        assert 0 <= crowd.bytes <= EVERYBODY_BYTES_MAX, "bytes"
    for number in inside:
        crowd.leave(number, now_ms)
    assert (len(crowd), crowd.bytes, crowd.unproven) == (0, 0, 0), "something is left"


# ---- links


def in_frames(blob: bytes) -> Iterator[bytes]:
    """The bytes as frames: of each the kind, the length in two bytes, and the body."""
    while len(blob) > 3:
        count = int.from_bytes(blob[1:3])
        yield framed(blob[0] % 3, blob[3 : 3 + count])
        blob = blob[3 + count :]


def out_of_frames(streams: Iterator[bytes]) -> bytes:
    """Bytes of which `in_frames` makes these frames."""
    return b"".join(
        bytes([each[2]])
        + (len(each) - frames.HEADER_BYTES).to_bytes(2)
        + each[frames.HEADER_BYTES :]
        for each in streams
    )


def _link() -> LinkProtocol:
    return LinkProtocol(Identity(KEY, RUN, 7), bytes(32), dialled=True, now_ms=0)


def judge_meeting(blob: bytes) -> None:
    """A stranger is greeted, proves its key or says goodbye; nothing else waits to be written."""
    link = _link()
    try:
        for frame in in_frames(blob):
            for event in link.receive(frame, 1):
                assert isinstance(event, Proven | PeerLeft), event
            if link.state in (State.PROVEN, State.ENDED):
                return
            assert link.waiting_frames <= 2, "it answers a stranger"
    except RemoteProtocolError:
        assert link.state is State.ENDED
        raise


def judge_proven(blob: bytes) -> None:
    """Nothing that a peer says makes more wait here than the bound."""
    link = _link()
    link._handshake.state, link._handshake.peer = State.PROVEN, PEER
    link._requests.open_offer("the peer")
    for digest in (b"one", b"two"):
        link.fetch(sha256(digest), 0)
    try:
        for frame in in_frames(blob):
            link.receive(frame, 1)
            assert link.waiting_frames <= FRAMES_WAITING_MAX
            if link.state is State.ENDED:
                return
    except RemoteProtocolError:
        assert link.state is State.ENDED
        raise
    assert sum(map(len, link.outgoing())) <= 4096 + 64 * len(blob), "it says more than it hears"


def _meetings() -> tuple[bytes, ...]:
    other = Handshake(OTHER_KEY, RUN, 8, b"n" * 32)
    own = Handshake(KEY, RUN, 7, bytes(32))
    hello = wire.LinkMessage(hello=other.hello())
    proof = wire.LinkMessage(proof=other.greet(own.hello()))
    said = [frames.encode(each) for each in (hello, proof)]
    bye = frames.encode(wire.LinkMessage(goodbye=wire.Goodbye(reason="later")))
    return out_of_frames(iter(said)), out_of_frames(iter([*said, bye]))


def _talks() -> tuple[bytes, ...]:
    messages = [
        link_messages()[0],
        wire.LinkMessage(taken=wire.Taken(request=1)),
        wire.LinkMessage(fetch=wire.LinkFetch(request=2, digest=sha256(b"x"), offset=5, bytes=9)),
        wire.LinkMessage(cancel=wire.Cancel(request=2, gently=True)),
        wire.LinkMessage(beat=wire.Beat(sent_ms=5)),
        wire.LinkMessage(refusal=wire.Refusal(request=2, reason="busy")),
        frames.Part(3, 0, 4, b"abcd"),
    ]
    said = [frames.encode(message) for message in messages]
    return out_of_frames(iter(said)), *(out_of_frames(iter([each])) for each in said)


# ---- the session


@dataclass
class _Listener:
    received_count: int = field(default=0)

    def members_changed(self, members: object) -> None:
        pass

    def received(self, message: wire.CoordinatorMessage) -> None:
        self.received_count += 1


@cache
def _client() -> CoordinatorClient:
    return CoordinatorClient(parse_link("127.0.0.1:1"), KEY)


def judge_coordinator_message(blob: bytes) -> None:
    """What a node is told can be shown, and its member list has ids alone."""
    message: Any = parsed(wire.CoordinatorMessage, blob)
    client = _client()
    clean_reason(message)
    kind = message.WhichOneof("kind")
    reason = getattr(getattr(message, kind), "reason", "") if kind else ""
    assert isinstance(reason, int) or reason.isprintable(), "unprintable words"
    try:
        client._dispatch(message, _Listener())  # type: ignore[arg-type]
    except LockstepError as error:
        ends = kind in ("refused", "evicted") or isinstance(error, RemoteProtocolError)
        if not (ends and str(error).isprintable()):
            raise AssertionError(f"an error of {kind}") from error
    assert client.notice.isprintable()
    assert all(len(peer) == len(PEER) for peer in client.members.members)


def _coordinator_messages() -> tuple[bytes, ...]:
    member = wire.Member(peer_id=PEER, addresses=["192.0.2.1:5"])
    messages = (
        wire.CoordinatorMessage(members=wire.Members(members=[member], gone=[RUN], changes=True)),
        wire.CoordinatorMessage(refused=wire.Refused(reason="the run is full")),
        wire.CoordinatorMessage(evicted=wire.Evicted(reason="silent for 3 s")),
        wire.CoordinatorMessage(heartbeat=wire.HeartbeatReply(sent_ms=5, received_ms=6)),
        wire.CoordinatorMessage(notice=wire.Notice(text="a new release")),
        wire.CoordinatorMessage(skipped=wire.RoundSkipped(round=5, reason="late")),
    )
    return tuple(message.SerializeToString() for message in messages)


# ---- the public page


class _Reads:
    """The protocol of a connection that takes all."""

    _reading_paused = False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@cache
def _page() -> tuple[Site, Model, web.UrlDispatcher]:
    model = Model(Path("nowhere"))
    model._listed = "step-7", (("model.safetensors", 100),)
    application = web.Application()
    application.add_routes(
        [web.get("/model/{name}/{file}", model.answer), web.get("/{path:.*}", _nothing)]
    )
    return Site(lambda part: {}), model, application.router


async def _nothing(_: web.Request) -> web.Response:
    return web.Response()


def judge_page(blob: bytes) -> None:
    """A request is refused by the parser, or answered."""
    try:
        messages, _, _ = HttpRequestParser(
            _Reads(), None, 2**16, max_line_size=2048, max_field_size=2048, max_headers=64
        ).feed_data(blob)
    except HttpProcessingError as error:
        raise RemoteProtocolError(str(error)) from None
    site, model, router = _page()
    for message, _ in messages[:4]:
        request = web.Request(message, *[mock.Mock()] * 5)
        match = _now(router.resolve(request))
        request._match_info = match
        if "path" in match:
            site.answer(match["path"])
        elif "file" in match:
            assert _now(model.answer(request)).status in (404, 416)


def _now(coroutine: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    with contextlib.closing(coroutine):
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
    raise AssertionError("it waits")


def _requests() -> tuple[bytes, ...]:
    lines = (
        "GET / HTTP/1.1",
        "GET /run.json HTTP/1.1",
        "HEAD /model/step-7/model.safetensors HTTP/1.1",
        "GET /assets/page.js?x=%2e%2e HTTP/1.1",
    )
    headers = "Host: example.org\r\nRange: bytes=5-9\r\nAccept-Encoding: gzip\r\n\r\n"
    return tuple(f"{line}\r\n{headers}".encode() for line in lines)


def targets() -> dict[str, Target]:
    """The readers by name."""
    crowds = bytes(range(64)), bytes(2 * PLACES) + bytes([2, 1, 5, 0, 6, 3] * 4)
    return {
        "crowd": Target(judge_crowd, crowds, 20),
        "link meeting": Target(judge_meeting, _meetings(), 30),
        "link proven": Target(judge_proven, _talks()),
        "coordinator message": Target(judge_coordinator_message, _coordinator_messages()),
        "page": Target(judge_page, _requests(), 30),
    }

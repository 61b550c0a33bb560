"""Two ends of a link over a queue of bytes: their proofs, their requests, and the harm that no
message of a peer does.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN, FrameReader, Message, Part, encode
from node.links.handshake import State
from node.links.protocol import (
    BEAT_MS,
    FRAMES_WAITING_MAX,
    PROOF_MS,
    SILENCE_MS,
    Identity,
    LinkProtocol,
)
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
from node.links.requests import FETCHES_MAX, LATE_BYTES_MAX, OFFERS_OPEN_MAX
from node.links.window import WINDOW_BYTES_MAX
from protocol.errors import LocalProtocolError, RemoteProtocolError, UnavailableError, VersionError
from protocol.handshake import Greeting, public_bytes, sign_link
from protocol.ids import PeerId, RunId, peer_id, sha256
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
    OfferedPayload,
    Offers,
    Refusal,
    Taken,
)

RUN = RunId("ab" * 16)
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3)]
PEERS = [peer_id(public_bytes(key)) for key in KEYS]
DIGEST = sha256(b"a blob")
NOW_MS = 1_000_000
TICK_MS = 500

Events = list[Event]


def session(number: int = 0, nonce: int | None = None, run: RunId = RUN) -> LinkProtocol:
    """An end of the link: by default node 0, under a nonce of its own."""
    identity = Identity(KEYS[number], run, instance=70 + number)
    return LinkProtocol(identity, bytes([nonce or 10 + number]) * 32, number == 0, NOW_MS)


def sent(end: LinkProtocol) -> bytes:
    return b"".join(end.outgoing())


def said(end: LinkProtocol) -> list[Message]:
    return list(FrameReader().feed(sent(end)))


def hear(end: LinkProtocol, *messages: Message, now_ms: int = NOW_MS) -> Events:
    return end.receive(b"".join(map(encode, messages)), now_ms)


def exchange(one: LinkProtocol, other: LinkProtocol, now_ms: int = NOW_MS) -> tuple[Events, Events]:
    """Carry bytes both ways until nobody has more; what each end made of them."""
    at_one, at_other = Events(), Events()
    while (there := sent(one)) + (back := sent(other)):
        at_other += other.receive(there, now_ms)
        at_one += one.receive(back, now_ms)
    return at_one, at_other


def linked() -> tuple[LinkProtocol, LinkProtocol]:
    """Two ends that have met."""
    one, other = session(0), session(1)
    exchange(one, other)
    return one, other


def offers(count: int = 1, sender: PeerId = PEERS[1]) -> Offers:
    listed = [
        OfferedPayload(round=number, digest=DIGEST, payload_bytes=9) for number in range(count)
    ]
    return Offers(run_id=RUN, sender=sender, offers=listed)


def hello(number: int = 1, **fields: Any) -> LinkMessage:
    greeting = {"public_key": public_bytes(KEYS[number]), "nonce": bytes([10 + number]) * 32}
    return LinkMessage(
        hello=LinkHello(
            **{
                "protocol_version": PROTOCOL_VERSION,
                "run_id": RUN,
                "instance": 7,
                **greeting,
                **fields,
            }
        )
    )


def proof(signature: bytes) -> LinkMessage:
    return LinkMessage(proof=LinkProof(signature=signature))


def ask(request: int) -> LinkMessage:
    return LinkMessage(fetch=LinkFetch(request=request, digest=DIGEST, offset=0))


# ---- the meeting


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_two_ends_prove_their_keys_in_every_order_of_arrival(seed: int) -> None:
    order = random.Random(seed)
    ends = [session(0), session(1)]
    wires, events = [b"", b""], [Events(), Events()]
    for steps in range(1_000):
        for number, end in enumerate(ends):
            if order.random() < 0.5 or steps > 900:
                wires[number] += sent(end)
        number = order.randrange(2)
        cut = order.randint(0, len(wires[number]))
        events[1 - number] += ends[1 - number].receive(wires[number][:cut], NOW_MS)
        wires[number] = wires[number][cut:]
    assert wires == [b"", b""]
    assert events[0] == [Proven(PEERS[1], public_bytes(KEYS[1]), 71)]
    assert events[1] == [Proven(PEERS[0], public_bytes(KEYS[0]), 70)]
    assert [end.peer for end in ends] == [PEERS[1], PEERS[0]]


def test_a_peer_of_another_run_or_version_or_with_the_own_key_is_refused_in_words() -> None:
    for error, words, fields in [
        (
            RemoteProtocolError,
            f"expected a peer of run {RUN}, got one of '{'cd' * 16}'",
            {"run_id": "cd" * 16},
        ),
        (RemoteProtocolError, "expected a peer of run", {"run_id": ""}),
        (
            VersionError,
            "the peer speaks protocol version 2, this node 1: update one",
            {"protocol_version": 2},
        ),
        (
            RemoteProtocolError,
            "got a greeting with this node's own key",
            {"public_key": public_bytes(KEYS[0])},
        ),
        (
            RemoteProtocolError,
            "expected a key of 32 and a nonce of 32 bytes, got 32 and 5",
            {"nonce": b"short"},
        ),
    ]:
        with pytest.raises(error, match=words):
            hear(session(), hello(**fields))


def test_the_own_bytes_reflected_prove_nothing() -> None:
    end = session()
    with pytest.raises(RemoteProtocolError, match="own key"):
        end.receive(sent(end), NOW_MS)


def test_the_bytes_of_another_meeting_prove_nothing() -> None:
    one, other = session(0), session(1)
    recorded = sent(other)
    other.receive(sent(one), NOW_MS)
    recorded += sent(other)
    assert one.receive(recorded, NOW_MS) == [Proven(PEERS[1], public_bytes(KEYS[1]), 71)]
    again = session(0, nonce=99)
    with pytest.raises(RemoteProtocolError, match="expected a signature of the key that is named"):
        again.receive(recorded, NOW_MS)


def test_an_end_that_relays_anothers_greeting_under_its_own_key_is_refused() -> None:
    """In the middle: one's nonce under the middle's key to the third; the third's proof back to
    one.
    """
    one, third = session(0), session(2)
    sent(one), sent(third)
    hear(third, hello(1, nonce=bytes([10]) * 32))
    stolen = said(third)
    hear(one, hello(2, nonce=bytes([12]) * 32))
    with pytest.raises(RemoteProtocolError, match="expected a signature of the key that is named"):
        hear(one, *stolen)
    assert one.peer is None


def test_a_proof_of_another_key_is_refused() -> None:
    end = session()
    mine, theirs = (
        Greeting(public_bytes(KEYS[0]), bytes([10]) * 32),
        Greeting(public_bytes(KEYS[1]), bytes([11]) * 32),
    )
    for signature in (
        sign_link(KEYS[2], RUN, theirs, mine),
        sign_link(KEYS[1], RUN, mine, theirs),
        b"",
        bytes(64),
    ):
        end = session()
        with pytest.raises(RemoteProtocolError, match="expected a"):
            hear(end, hello(), proof(signature))
        assert end.peer is None
    hear(end := session(), hello(), proof(sign_link(KEYS[1], RUN, theirs, mine)))
    assert end.peer == PEERS[1]


@pytest.mark.parametrize(
    "message",
    [
        LinkMessage(beat=Beat(sent_ms=1)),
        LinkMessage(ack=Ack(part_bytes=0)),
        LinkMessage(offers=LinkOffers(request=1, offers=offers())),
        LinkMessage(taken=Taken(request=1)),
        ask(1),
        LinkMessage(cancel=Cancel(request=1)),
        LinkMessage(refusal=Refusal(request=1)),
        LinkMessage(),
        Part(1, 0, 1, b"x"),
    ],
    ids=lambda message: message.WhichOneof("kind") if isinstance(message, LinkMessage) else "part",
)
@pytest.mark.parametrize("greeted", [False, True])
def test_messages_before_the_proof_are_refused(message: Message, greeted: bool) -> None:
    end = session()
    if greeted:
        hear(end, hello())
    with pytest.raises(RemoteProtocolError, match="expected a proof before anything else, got"):
        hear(end, message)


def test_a_proof_before_the_hello_or_a_second_of_either_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="expected one proof, after the hello"):
        hear(session(), proof(bytes(64)))
    one, _ = linked()
    with pytest.raises(RemoteProtocolError, match="expected one proof, after the hello"):
        hear(one, proof(bytes(64)))
    one, _ = linked()
    with pytest.raises(RemoteProtocolError, match="expected one hello, got a second"):
        hear(one, hello())


def test_requests_to_an_unproven_peer_are_our_own_mistake() -> None:
    for call in (lambda end: end.fetch(DIGEST, 0), lambda end: end.offer(offers())):
        with pytest.raises(LocalProtocolError, match="expected a proven peer"):
            call(session())


# ---- time


def ticks(end: LinkProtocol, from_ms: int, to_ms: int, step_ms: int = TICK_MS) -> int:
    """Tick until the end says that the peer is gone; when it did."""
    for now_ms in range(from_ms + step_ms, to_ms + 1, step_ms):
        try:
            end.tick(now_ms)
        except UnavailableError:
            return now_ms
        end.outgoing()
    return 0


@pytest.mark.parametrize("offset_ms", [0, 1, 250, 499])
def test_a_silent_peer_is_noticed_within_five_seconds(offset_ms: int) -> None:
    one, _ = linked()
    one.tick(NOW_MS - offset_ms)
    noticed_ms = ticks(one, NOW_MS - offset_ms, NOW_MS + 60_000)
    assert SILENCE_MS <= noticed_ms - NOW_MS <= 5_000
    with pytest.raises(UnavailableError, match=rf"peer {PEERS[1][:8]} was silent for 6.0 s"):
        one.tick(NOW_MS + 6_000)


def test_two_idle_ends_keep_each_other_and_know_the_round_trip() -> None:
    one, other = linked()
    for now_ms in range(NOW_MS, NOW_MS + 60_000, TICK_MS):
        one.tick(now_ms)
        other.tick(now_ms)
        there, back = sent(one), sent(other)
        other.receive(there, now_ms + 30)
        one.receive(back, now_ms + 30)
        other_replies, one_replies = sent(other), sent(one)
        one.receive(other_replies, now_ms + 60)
        other.receive(one_replies, now_ms + 60)
    assert one.meter.newest_ms == other.meter.newest_ms == 60


def test_a_beat_leaves_each_second_unless_frames_wait() -> None:
    one, _ = linked()
    beats = 0
    for now_ms in range(NOW_MS + TICK_MS, NOW_MS + 4_001, TICK_MS):
        one.tick(now_ms)
        beats += len(said(one))
    assert beats == 4_000 // BEAT_MS
    one.fetch(DIGEST, 0)
    one.tick(NOW_MS + 4_400)
    assert [
        message.WhichOneof("kind") for message in said(one) if isinstance(message, LinkMessage)
    ] == ["fetch"]


def test_a_peer_that_answers_the_hello_late_hears_no_beat_before_the_proof() -> None:
    one, other = session(0), session(1)
    wire = sent(one)
    for now_ms in (NOW_MS + 1_500, NOW_MS + 3_000):  # the other's hello is on a slow way
        one.tick(now_ms)
        wire += sent(one)
    one.receive(sent(other), NOW_MS + 3_000)
    one.tick(NOW_MS + 3_000)
    one.tick(NOW_MS + 4_100)
    wire += sent(one)
    assert [type(event) for event in other.receive(wire, NOW_MS + 3_100)] == [Proven]


def test_a_stranger_that_trickles_bytes_is_gone_after_the_time_for_a_proof() -> None:
    end, wire = session(), encode(hello(public_key=b"x" * 32))
    for now_ms in range(NOW_MS + TICK_MS, NOW_MS + PROOF_MS, TICK_MS):
        end.receive(wire[:1], now_ms)
        wire = wire[1:]
        end.tick(now_ms)
    end.receive(wire[:1], NOW_MS + PROOF_MS)
    with pytest.raises(UnavailableError, match="the other end did not prove its key within 10 s"):
        end.tick(NOW_MS + PROOF_MS)


@pytest.mark.parametrize("heard_first", [False, True])
def test_time_in_which_this_process_stood_still_is_forgiven_and_not_twice(
    heard_first: bool,
) -> None:
    one, other = linked()
    one.tick(NOW_MS + 500)
    awake_ms = NOW_MS + 500 + 3_600_000
    if heard_first:  # what waited in the pipe is read before the clock is looked at
        one.receive(b"", awake_ms)
    one.tick(awake_ms)
    noticed_ms = ticks(one, awake_ms, awake_ms + 60_000)
    assert 2_000 <= noticed_ms - awake_ms <= 5_000
    assert other.peer == PEERS[0]


def test_a_process_that_is_always_slow_still_notices_a_silent_peer() -> None:
    one, _ = linked()
    one.tick(NOW_MS)
    assert 0 < ticks(one, NOW_MS, NOW_MS + 60_000, step_ms=2_500) <= NOW_MS + 10_000


# ---- requests


def test_an_offer_is_taken_or_refused_under_its_number() -> None:
    one, other = linked()
    first, second = other.offer(offers(3)), other.offer(offers(1))
    assert exchange(one, other)[0] == [Offered(first, offers(3)), Offered(second, offers(1))]
    one.accept(first)
    one.refuse(second, Refusal.BAD_REQUEST, "no")
    assert exchange(one, other)[1] == [Accepted(first), Refused(second, Refusal.BAD_REQUEST, "no")]


def blob_parts(
    request: int, blob: bytes, size: int = PART_BYTES_MIN, offset: int = 0
) -> list[Part]:
    return [
        Part(request, at, len(blob), blob[at : at + size]) for at in range(offset, len(blob), size)
    ]


def test_a_fetch_gets_its_parts_in_order_and_its_taker_opens_the_window_again() -> None:
    one, other = linked()
    blob = random.Random(0).randbytes(300_000)
    request = one.fetch(DIGEST, 1_000)
    assert exchange(one, other)[1] == [FetchRequested(request, DIGEST, 1_000, 0)]
    arrived, offset = Events(), 1_000
    while offset < len(blob):
        while other.window.open and offset < len(blob):
            data = blob[offset : offset + other.window.part_bytes]
            other.part(Part(request, offset, len(blob), data), NOW_MS)
            offset += len(data)
        events, _ = exchange(one, other)
        for event in events:
            assert isinstance(event, Part)
            one.taken(len(event.data), NOW_MS)
        arrived += events
        exchange(one, other)
    assert b"".join(part.data for part in arrived if isinstance(part, Part)) == blob[1_000:]
    one.end_fetch(request, complete=True)
    assert exchange(one, other) == ([], [])
    assert other.window.acknowledged == other.window.sent == len(blob) - 1_000


def test_a_refused_fetch_says_why() -> None:
    one, other = linked()
    request = one.fetch(DIGEST, 0)
    exchange(one, other)
    other.refuse(request, Refusal.NOT_HELD, "x" * 1_000 + "é")
    assert exchange(one, other)[0] == [Refused(request, Refusal.NOT_HELD, "x" * TEXT_BYTES_MAX)]


def test_parts_on_their_way_when_their_fetch_is_cancelled_are_counted_and_no_more_leave() -> None:
    one, other = linked()
    request = one.fetch(DIGEST, 0)
    exchange(one, other)
    parts = blob_parts(request, bytes(8 * PART_BYTES_MIN))
    other.part(parts[0], NOW_MS)
    wire = sent(other)
    one.end_fetch(request, complete=False)
    one.end_fetch(request, complete=False)  # a second word changes nothing
    assert one.receive(wire, NOW_MS) == [parts[0]]
    one.taken(PART_BYTES_MIN, NOW_MS)
    assert exchange(one, other)[1] == [Cancelled(request, False)]
    other.part(parts[1], NOW_MS)
    other.refuse(request, Refusal.BUSY, "too late to matter")
    assert exchange(one, other) == ([], [])
    assert other.window.sent == other.window.acknowledged == PART_BYTES_MIN


def test_a_cancel_that_meets_the_last_part_is_no_event() -> None:
    one, other = linked()
    request = one.fetch(DIGEST, 0)
    exchange(one, other)
    other.part(Part(request, 0, 3, b"end"), NOW_MS)
    one.end_fetch(request, complete=False)
    assert exchange(one, other) == ([Part(request, 0, 3, b"end")], [])


def test_parts_without_a_fetch_are_refused() -> None:
    for request in (0, 1, 5, 2**32 - 1):
        one, other = linked()
        offered = one.offer(offers(sender=PEERS[0]))
        assert offered == 1
        with pytest.raises(
            RemoteProtocolError,
            match=f"expected parts of open fetches, got some of .* {request}",
        ):
            hear(one, Part(request, 0, 1, b"x"))
    one, other = linked()
    request = one.fetch(DIGEST, 0)
    exchange(one, other)
    other.part(Part(request, 0, 3, b"end"), NOW_MS)
    exchange(one, other)
    one.end_fetch(request, complete=True)
    with pytest.raises(RemoteProtocolError, match="expected parts of open fetches"):
        hear(one, Part(request, 0, 3, b"end"))


def test_a_peer_that_does_not_stop_after_a_cancel_is_refused() -> None:
    one, _ = linked()
    request = one.fetch(DIGEST, 0)
    one.end_fetch(request, complete=False)
    part = Part(request, 0, 2**40, bytes(PART_BYTES_MAX))
    for _ in range(LATE_BYTES_MAX // PART_BYTES_MAX):
        assert hear(one, part) == [part]
        one.taken(PART_BYTES_MAX, NOW_MS)
    with pytest.raises(RemoteProtocolError, match="expected parts of open fetches"):
        hear(one, part)


@pytest.mark.parametrize(
    ("offset", "total", "count", "fine"),
    [
        (0, 1, 1, True),
        (0, PART_BYTES_MIN + 1, PART_BYTES_MIN, True),
        (0, 2**63, PART_BYTES_MAX, True),
        (2**64 - 1 - PART_BYTES_MIN, 2**64 - 1, PART_BYTES_MIN, True),
        (0, PART_BYTES_MIN + 1, PART_BYTES_MIN - 1, False),
        (0, 2, 1, False),
        (0, 1, 2, False),
        (0, PART_BYTES_MIN, PART_BYTES_MIN + 1, False),
        (5, 5, 1, False),
        (2**64 - 1, 0, 1, False),
    ],
)
def test_a_part_too_small_or_beyond_its_blob_is_refused_and_never_sent(
    offset: int, total: int, count: int, fine: bool
) -> None:
    one, other = linked()
    part = Part(one.fetch(DIGEST, 0), offset, total, bytes(count))
    exchange(one, other)
    if fine:
        other.part(part, NOW_MS)
        assert hear(one, part) == [part]
        return
    with pytest.raises(LocalProtocolError, match=f"got {count} at {offset} of {total}"):
        other.part(part, NOW_MS)
    with pytest.raises(RemoteProtocolError, match=f"got {count} at {offset} of {total}"):
        hear(one, part)


def test_a_part_leaves_only_through_an_open_window() -> None:
    one, other = linked()
    request = one.fetch(DIGEST, 0)
    exchange(one, other)
    parts = iter(blob_parts(request, bytes(2**20)))
    while other.window.open:
        other.part(next(parts), NOW_MS)
    with pytest.raises(LocalProtocolError, match="expected a part when the window is open"):
        other.part(next(parts), NOW_MS)


def test_a_peer_that_sends_more_than_any_window_unacknowledged_is_refused() -> None:
    one, _ = linked()
    part = Part(one.fetch(DIGEST, 0), 0, 2**40, bytes(PART_BYTES_MAX))
    for _ in range(WINDOW_BYTES_MAX // PART_BYTES_MAX + 1):
        hear(one, part)
    with pytest.raises(
        RemoteProtocolError, match=f"expected at most {WINDOW_BYTES_MAX} unacknowledged bytes"
    ):
        hear(one, part)


def test_no_end_acknowledges_more_than_arrived() -> None:
    one, other = linked()
    with pytest.raises(RemoteProtocolError, match=r"expected 0\.\.0 bytes acknowledged, got 1"):
        hear(one, LinkMessage(ack=Ack(part_bytes=1)))
    with pytest.raises(
        LocalProtocolError, match="expected at most 0 bytes taken, as many as arrived, got 1"
    ):
        other.taken(1, NOW_MS)


def test_many_parts_taken_at_once_are_acknowledged_in_one_frame() -> None:
    one, other = linked()
    request = one.fetch(DIGEST, 0)
    exchange(one, other)
    for part in blob_parts(request, bytes(5 * PART_BYTES_MIN)):
        other.part(part, NOW_MS)
    for event in one.receive(sent(other), NOW_MS):
        assert isinstance(event, Part)
        one.taken(len(event.data), NOW_MS)
    assert said(one) == [LinkMessage(ack=Ack(part_bytes=5 * PART_BYTES_MIN, taken_ms=NOW_MS))]
    assert said(one) == []


def test_a_request_number_never_comes_twice() -> None:
    for second in (
        ask(7),
        ask(6),
        LinkMessage(offers=LinkOffers(request=7, offers=offers(sender=PEERS[1]))),
    ):
        one, _ = linked()
        assert hear(one, ask(7)) == [FetchRequested(7, DIGEST, 0, 0)]
        hear(one, LinkMessage(cancel=Cancel(request=7)))
        with pytest.raises(RemoteProtocolError, match="expected a request numbered above 7, got "):
            hear(one, second)
    with pytest.raises(RemoteProtocolError, match="expected a request numbered above 0, got 0"):
        hear(linked()[0], ask(0))


def test_a_peer_with_too_many_open_requests_is_refused_and_this_end_is_never_such_a_peer() -> None:
    one, _ = linked()
    for number in range(FETCHES_MAX):
        assert hear(one, ask(number + 1)) != []
    with pytest.raises(RemoteProtocolError, match=f"expected at most {FETCHES_MAX} open requests"):
        hear(one, ask(FETCHES_MAX + 1))
    one, _ = linked()
    for call, count_max in [
        (lambda: one.fetch(DIGEST, 0), FETCHES_MAX),
        (lambda: one.offer(offers()), OFFERS_OPEN_MAX),
    ]:
        for _ in range(count_max):
            call()
        with pytest.raises(
            UnavailableError, match=f"is busy with {count_max} requests of this node"
        ):
            call()


def test_a_place_among_the_open_requests_is_free_again_after_every_kind_of_end() -> None:
    one, other = linked()
    for number in range(5 * FETCHES_MAX):
        request = one.fetch(DIGEST, 0)
        exchange(one, other)
        if number % 3 == 0:
            one.end_fetch(request, complete=False)
        elif number % 3 == 1:
            other.refuse(request, Refusal.BUSY, "")
        else:
            other.part(Part(request, 0, 1, b"x"), NOW_MS)
            exchange(one, other)
            one.taken(1, NOW_MS)
            one.end_fetch(request, complete=True)
        offer = one.offer(offers(sender=PEERS[0]))
        exchange(one, other)
        if number % 2:
            other.accept(offer)
        else:
            other.refuse(offer, Refusal.BUSY, "")
        exchange(one, other)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (LinkMessage(taken=Taken(request=3)), "got Accepted to 3"),
        (LinkMessage(taken=Taken(request=0)), "got Accepted to 0"),
        (LinkMessage(taken=Taken(request=1)), "got Accepted to 1"),
        (LinkMessage(refusal=Refusal(request=3)), "got Refused to 3"),
        (
            LinkMessage(fetch=LinkFetch(request=1, digest=b"short")),
            "expected a digest of 32 bytes, got 5",
        ),
        (
            LinkMessage(offers=LinkOffers(request=1, offers=offers(sender=PEERS[2]))),
            f"expected offers of {PEERS[1]}",
        ),
        (
            LinkMessage(offers=LinkOffers(request=1, offers=offers(OFFERS_MAX + 1))),
            f"at most {OFFERS_MAX} offers",
        ),
    ],
)
def test_an_answer_to_nothing_or_a_request_out_of_bounds_is_refused(
    message: LinkMessage, words: str
) -> None:
    one, _ = linked()
    assert one.fetch(DIGEST, 0) == 1
    with pytest.raises(RemoteProtocolError, match=words):
        hear(one, message)


def test_a_kind_of_a_newer_version_is_let_be() -> None:
    one, _ = linked()
    assert hear(one, LinkMessage.FromString(b"\xfa\x07\x02hi")) == []


# ---- the end, and harm


@pytest.mark.parametrize("proven", [False, True])
def test_nothing_follows_a_goodbye(proven: bool) -> None:
    one, other = linked() if proven else (session(0), session(1))
    other.goodbye("gone fishing: " + "\ud800" + "ü" * 400)
    wire = (
        sent(other)
        if proven
        else encode(LinkMessage(goodbye=Goodbye(reason="gone fishing: ?" + "ü" * 300)))
    )
    events = one.receive(wire + encode(ask(1)) + encode(Part(9, 0, 1, b"x")), NOW_MS)
    assert [type(event) for event in events] == [PeerLeft]
    assert isinstance(events[0], PeerLeft)
    assert events[0].reason.startswith("gone fishing: ?üü")
    assert len(events[0].reason) <= TEXT_BYTES_MAX
    assert one.state is State.ENDED
    with pytest.raises(
        LocalProtocolError, match=r"after the end of a link, got \d+; .* said goodbye: gone fishing"
    ):
        one.receive(encode(ask(2)), NOW_MS)


@pytest.mark.parametrize("harm", ["nonsense", "silence", "a broken pipe"])
def test_a_link_that_ended_takes_no_more_bytes(harm: str) -> None:
    one, other = linked()
    assert one.state is State.PROVEN
    if harm == "nonsense":
        with pytest.raises(RemoteProtocolError):
            hear(one, hello())
    elif harm == "silence":
        one.tick(NOW_MS)
        assert ticks(one, NOW_MS, NOW_MS + 60_000)
    else:
        one.end("the pipe broke")
        one.end("a second reason changes nothing")
    assert one.state is State.ENDED
    with pytest.raises(LocalProtocolError, match="expected no bytes after the end of a link"):
        one.receive(sent(other), NOW_MS)
    with pytest.raises(LocalProtocolError, match=r"expected a proven peer .* that is ended"):
        one.fetch(DIGEST, 0)


def test_the_states_of_a_link_follow_its_messages() -> None:
    one, other = session(0), session(1)
    assert one.state is State.GREETING
    hello, _ = said(other), other.receive(sent(one), NOW_MS)
    hear(one, *hello)
    assert one.state is State.GREETED
    one.receive(sent(other), NOW_MS)
    assert one.state is State.PROVEN


def test_beats_that_outrun_this_end_cost_one_answer() -> None:
    one, _ = linked()
    for number in range(10_000):
        hear(one, LinkMessage(beat=Beat(sent_ms=number)))
    assert said(one) == [LinkMessage(beat=Beat(sent_ms=9_999, reply=True))]


def test_a_peer_that_asks_and_never_reads_is_refused_before_its_answers_fill_the_memory() -> None:
    one, _ = linked()
    number = 0

    def flood() -> None:
        nonlocal number
        for number in range(1, 2 * FRAMES_WAITING_MAX):
            hear(one, LinkMessage(offers=LinkOffers(request=number, offers=offers())))
            one.accept(number)

    with pytest.raises(
        RemoteProtocolError, match=f"got one for which {FRAMES_WAITING_MAX + 1} frames wait"
    ):
        flood()
    assert number == FRAMES_WAITING_MAX + 2


messages = st.one_of(
    st.builds(lambda n: LinkMessage(beat=Beat(sent_ms=n)), st.integers(0, 2**64 - 1)),
    st.builds(lambda n: LinkMessage(beat=Beat(sent_ms=n, reply=True)), st.integers(0, 2**64 - 1)),
    st.builds(lambda n: LinkMessage(ack=Ack(part_bytes=n)), st.integers(0, 3) | st.just(2**64 - 1)),
    st.builds(
        lambda n, s: LinkMessage(offers=LinkOffers(request=n, offers=offers(sender=s))),
        st.integers(0, 40),
        st.sampled_from(PEERS),
    ),
    st.builds(lambda n: LinkMessage(taken=Taken(request=n)), st.integers(0, 4)),
    st.builds(ask, st.integers(0, 40)),
    st.builds(lambda n: LinkMessage(cancel=Cancel(request=n)), st.integers(0, 40)),
    st.builds(
        lambda n, c: LinkMessage(refusal=Refusal(request=n, reason="r")),
        st.integers(0, 4),
        st.integers(0, 9),
    ),
    st.builds(lambda t: LinkMessage(goodbye=Goodbye(reason=t)), st.text("aé", max_size=300)),
    st.builds(hello, st.integers(0, 2)),
    st.builds(proof, st.binary(max_size=70)),
    st.just(LinkMessage()),
    st.builds(
        lambda r, o, n, d: Part(r, o, o + n, d),
        st.integers(0, 4),
        st.integers(0, 9),
        st.integers(0, 9000),
        st.binary(min_size=1, max_size=9),
    ),
    st.builds(
        lambda r, n: Part(r, 0, 2**30, bytes(n)),
        st.integers(0, 4),
        st.sampled_from([PART_BYTES_MIN, PART_BYTES_MAX]),
    ),
)


@settings(max_examples=300)
@given(
    st.booleans(),
    st.lists(messages.map(encode) | st.binary(max_size=30), max_size=30),
    st.integers(0, 3),
)
def test_any_messages_raise_only_a_fault_of_the_peer_and_the_state_stays_bounded(
    proven: bool, wire: list[bytes], fetches: int
) -> None:
    end = linked()[0] if proven else session()
    for _ in range(fetches if proven else 0):
        end.fetch(DIGEST, 0)
    try:
        for number, piece in enumerate(wire):
            for event in end.receive(piece, NOW_MS + number):
                assert proven or isinstance(event, PeerLeft)
                assert not isinstance(event, Proven)
            if end.state is State.ENDED:
                break
            assert end.peer_requests.open_fetches <= FETCHES_MAX
            assert end.peer_requests.open_offers <= OFFERS_OPEN_MAX
            assert end.received.waiting_bytes <= WINDOW_BYTES_MAX + PART_BYTES_MAX
            assert end.waiting_frames <= 8
    except (RemoteProtocolError, VersionError) as error:
        assert " " in str(error)  # noqa: PT017 (either is right, and in words)
    assert proven or end.peer is None


class Endless:
    """Both ends at work, in a random order, on blobs that each fetches of the other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.blobs = {
            sha256(blob): blob
            for blob in (self.random.randbytes(size) for size in (1, 4096, 90_000, 400_000))
        }
        self.ends = list(linked())
        self.wires = [b"", b""]
        self.serving: list[dict[int, tuple[bytes, int]]] = [{}, {}]
        self.fetching: list[dict[int, tuple[bytes, bytearray]]] = [{}, {}]
        self.offering: list[set[int]] = [set(), set()]
        self.complete = self.cancelled = self.answered = 0
        self.now_ms = NOW_MS

    def step(self, calm: bool) -> None:
        """One thing happens at one end."""
        self.now_ms += self.random.randint(
            0, 40
        )  # so that neither end is silent until the other gives it up
        me = self.random.randrange(2)
        acts: list[Callable[[int], None]] = [
            self.write,
            self.write,
            self.read,
            self.read,
            self.serve,
            self.serve,
        ]
        self.random.choice(acts if calm else [*acts, self.ask, self.cancel, self.offer])(me)

    def write(self, me: int) -> None:
        self.ends[me].tick(self.now_ms)
        self.wires[me] += sent(self.ends[me])

    def read(self, me: int) -> None:
        wire = self.wires[1 - me]
        cut = self.random.choice([len(wire), self.random.randint(0, len(wire))])
        self.wires[1 - me] = wire[cut:]
        for event in self.ends[me].receive(wire[:cut], self.now_ms):
            self.on(me, event)

    def ask(self, me: int) -> None:
        if len(self.fetching[me]) < FETCHES_MAX:
            digest = self.random.choice([*self.blobs, sha256(b"nobody has it")])
            self.fetching[me][self.ends[me].fetch(digest, 0)] = (digest, bytearray())

    def offer(self, me: int) -> None:
        if len(self.offering[me]) < OFFERS_OPEN_MAX:
            self.offering[me].add(self.ends[me].offer(offers(2, PEERS[me])))

    def cancel(self, me: int) -> None:
        if self.fetching[me] and self.random.random() < 0.3:
            request = self.random.choice(list(self.fetching[me]))
            del self.fetching[me][request]
            self.ends[me].end_fetch(request, complete=False)
            self.cancelled += 1

    def serve(self, me: int) -> None:
        end = self.ends[me]
        if self.serving[me] and end.window.open:
            request = self.random.choice(list(self.serving[me]))
            blob, offset = self.serving[me].pop(request)
            data = blob[offset : offset + end.window.part_bytes]
            end.part(Part(request, offset, len(blob), data), self.now_ms)
            if offset + len(data) < len(blob):
                self.serving[me][request] = (blob, offset + len(data))

    def on(self, me: int, event: Event) -> None:
        end = self.ends[me]
        match event:
            case FetchRequested() if event.digest in self.blobs:
                self.serving[me][event.request] = (self.blobs[event.digest], event.offset)
            case FetchRequested():
                end.refuse(event.request, Refusal.NOT_HELD, "not held here")
            case Cancelled():
                self.serving[me].pop(
                    event.request, None
                )  # it may be heard together with its fetch, and that refused
            case Offered():
                end.accept(event.request)
            case Accepted():
                self.offering[me].remove(event.request)
                self.answered += 1
            case Refused():
                assert self.fetching[me].pop(event.request)[0] not in self.blobs
                self.answered += 1
            case Part():
                self.on_part(me, event)
            case _:
                pytest.fail(f"unexpected {event}")

    def on_part(self, me: int, part: Part) -> None:
        self.ends[me].taken(len(part.data), self.now_ms)
        if found := self.fetching[me].get(part.request):
            digest, blob = found
            assert part.offset == len(blob)
            blob += part.data
            if len(blob) == part.total_bytes:
                assert sha256(blob) == digest
                del self.fetching[me][part.request]
                self.ends[me].end_fetch(part.request, complete=True)
                self.complete += 1


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_two_busy_ends_complete_all_that_is_not_cancelled_in_any_order(seed: int) -> None:
    world = Endless(seed)
    for _ in range(400):
        world.step(calm=False)
    steps = 0
    while any(world.fetching) or any(world.offering):
        world.step(calm=True)
        assert (steps := steps + 1) < 20_000, "it no longer moves"
    assert world.complete + world.answered > 0
    for _ in range(200):
        world.step(calm=True)
    assert world.serving == [{}, {}]
    assert [end.window.acknowledged for end in world.ends] == [
        end.window.sent for end in world.ends
    ]


def test_a_withdrawn_fetch_gets_the_parts_that_were_begun_and_then_its_refusal() -> None:
    one, other = linked()
    request = one.fetch(DIGEST, 0)
    exchange(one, other)
    other.part(Part(request, 0, 100_000, bytes(PART_BYTES_MIN)), NOW_MS)
    one.withdraw(request)
    at_one, at_other = exchange(one, other)
    assert at_other == [Cancelled(request, True)]
    assert [type(event) for event in at_one] == [Part]
    other.part(
        Part(request, PART_BYTES_MIN, 100_000, bytes(PART_BYTES_MIN)), NOW_MS
    )  # it may go on until then
    assert [type(event) for event in exchange(one, other)[0]] == [Part]
    other.refuse(request, Refusal.WITHDRAWN, "as you wish")
    assert exchange(one, other)[0] == [Refused(request, Refusal.WITHDRAWN, "as you wish")]


def test_a_fetch_of_a_range_ends_with_a_small_part_at_its_end() -> None:
    one, other = linked()
    request = one.fetch(DIGEST, 10, 5)
    assert exchange(one, other)[1] == [FetchRequested(request, DIGEST, 10, 5)]
    other.part(Part(request, 10, 100_000, bytes(5)), NOW_MS)
    assert exchange(one, other)[0] == [Part(request, 10, 100_000, bytes(5))]
    later = one.fetch(DIGEST, 10, 5)
    with pytest.raises(RemoteProtocolError, match="expected a part"):
        hear(one, Part(later, 10, 100_000, bytes(6)))

"""Heads on a link: shown in hellos and, now and then, in beats; none keeps a node busy."""

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.links.frames import encode
from node.links.protocol import BEAT_MS, Identity, LinkProtocol
from node.links.protocol_events import HeadShown
from node.links.shown_heads import SHOW_MS, WEIGH_MS
from protocol import wire_pb2 as wire
from protocol.codec.heads import Heads
from protocol.handshake import public_bytes
from tests.node.links.test_protocol import KEYS, NOW_MS, RUN, exchange, hear, said, session
from tests.support.history import History

COORDINATOR = Ed25519PrivateKey.from_private_bytes(b"c" * 32)
HISTORY = History(COORDINATOR, RUN, 200)


def heads(steps: int) -> Heads:
    """Those of a node that has taken so many commits."""
    known = Heads(RUN, public_bytes(COORDINATOR))
    for commit in HISTORY.signed[:steps]:
        known.take(*commit)
    return known


def end(known: Heads | None, number: int) -> LinkProtocol:
    identity = Identity(KEYS[number], RUN, number, known)
    return LinkProtocol(identity, bytes([number + 1]) * 32, number == 0, NOW_MS)


def shown(events: list[Any]) -> list[wire.Head]:
    return [event.head for event in events if isinstance(event, HeadShown)]


def beats(protocol: LinkProtocol, first_ms: int, last_ms: int) -> list[wire.Head]:
    """The heads in the beats of a time."""
    found = []
    for now_ms in range(first_ms, last_ms, BEAT_MS):
        protocol.tick(now_ms)
        found += [each.beat.head for each in said(protocol) if each.beat.HasField("head")]
        hear(protocol, wire.LinkMessage(beat=wire.Beat(sent_ms=1, reply=True)), now_ms=now_ms)
    return found


def linked(known: Heads | None, other: Heads | None) -> tuple[LinkProtocol, LinkProtocol]:
    ends = end(known, 0), end(other, 1)
    exchange(*ends)
    return ends


def test_each_end_shows_its_newest_commit_once_it_is_proven() -> None:
    one, other = end(heads(3), 0), end(heads(5), 1)
    at_one, at_other = exchange(one, other)
    assert shown(at_one) == [HISTORY.head(4).message]
    assert shown(at_other) == [HISTORY.head(2).message]


def test_an_end_without_commits_shows_nothing() -> None:
    for known in (None, heads(0)):
        at_one, at_other = exchange(end(known, 0), end(heads(2), 1))
        assert (len(shown(at_one)), len(shown(at_other))) == (1, 0)


def test_a_stranger_that_proves_no_key_is_not_weighed() -> None:
    protocol = end(heads(1), 0)
    greeting = end(heads(3), 1)._handshake.hello(HISTORY.head(2).message)
    assert hear(protocol, wire.LinkMessage(hello=greeting)) == []


def test_beats_show_a_head_that_changed_and_only_now_and_then() -> None:
    known = heads(1)
    protocol, _ = linked(known, None)
    assert beats(protocol, NOW_MS, NOW_MS + 3 * SHOW_MS) == [], "nothing changed"
    found, start_ms = [], NOW_MS + 3 * SHOW_MS
    for step in range(1, 61):  # a commit each second, for a minute
        known.take(*HISTORY.signed[step])
        found += beats(protocol, start_ms + step * 1000, start_ms + step * 1000 + 1)
    assert len(found) == 60_000 // SHOW_MS
    assert max(head.ByteSize() for head in found) <= 110


def test_of_a_flood_of_heads_one_is_weighed_in_a_while_and_it_is_the_newest() -> None:
    protocol, _ = linked(heads(1), None)
    weighed = []
    for millisecond in range(2 * WEIGH_MS):
        beat = wire.Beat(sent_ms=1, head=wire.Head(round=millisecond, digest=bytes(32)))
        weighed += shown(hear(protocol, wire.LinkMessage(beat=beat), now_ms=NOW_MS + millisecond))
    assert [head.round for head in weighed] == [0, WEIGH_MS]
    assert protocol.peer is not None, "the link goes on"


def test_a_head_that_came_too_early_is_weighed_later() -> None:
    protocol, _ = linked(heads(1), None)
    for step in (2, 3):
        beat = wire.LinkMessage(beat=wire.Beat(sent_ms=1, head=HISTORY.head(step).message))
        hear(protocol, beat)
    later = NOW_MS + WEIGH_MS
    assert shown(protocol.receive(encode(wire.LinkMessage(ack=wire.Ack())), later)) == [
        HISTORY.head(3).message
    ]


def test_an_end_of_a_version_without_heads_is_a_peer() -> None:
    exchange(one := session(0), other := session(1))
    assert one.peer is not None
    assert other.peer is not None

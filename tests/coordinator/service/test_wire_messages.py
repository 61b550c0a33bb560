"""Between wire and machine: everything that a stranger can write is bounded."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.journal import RecordedCommit
from coordinator.machine.events import (
    Announced,
    Applied,
    Assignment,
    Audited,
    Heartbeat,
    Holding,
    Joined,
    Left,
    OpenRound,
    Ready,
)
from coordinator.machine.payloads.receipts import Receipts
from coordinator.service import wire_messages
from protocol import wire_pb2 as wire
from protocol.clock import Instants
from protocol.codec.commits import Commit, Entry, SignedCommit, genesis_digest, sign_commit
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.limits import (
    ADDRESSES_MAX,
    COMMITS_PER_REPLY,
    MEMBERS_MAX,
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_LIMIT,
    TEXT_BYTES_MAX,
)
from protocol.shuffle import Share
from tests.coordinator.machine.driver import RUN, A, B, payload_digest

NAN, INFINITY = float("nan"), float("inf")


def announced(**changes: object) -> wire.NodeMessage:
    fields = {
        "round": 3,
        "digest": b"d" * 32,
        "payload_bytes": 9,
        "samples": 8,
        "compute_ms": 7,
        "loss": 1.5,
    }
    return wire.NodeMessage(announced=wire.Announced(**(fields | changes)))


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=5)), Heartbeat(A)),
        (
            wire.NodeMessage(ready=wire.Ready(round=-1, state_digest=2**64 - 1)),
            Ready(A, -1, 2**64 - 1, False),
        ),
        (announced(), Announced(A, 3, b"d" * 32, 9, 8, 7, 1.5)),
        (announced(digest=b""), Announced(A, 3, b"", 9, 8, 7, 1.5)),
        (
            wire.NodeMessage(holding=wire.Holding(round=3, digests=[b"d" * 32])),
            Holding(A, 3, (b"d" * 32,)),
        ),
        (wire.NodeMessage(applied=wire.Applied(round=3, state_digest=4)), Applied(A, 3, 4, b"")),
        (
            wire.NodeMessage(applied=wire.Applied(round=3, projection=[0.5] * 64)),
            Applied(A, 3, 0, b"", 0, (0.5,) * 64),
        ),
        (
            wire.NodeMessage(audited=wire.Audited(round=-1, state_digest=4, voids=2)),
            Audited(A, -1, 4, b"", 2),
        ),
        (wire.NodeMessage(leave=wire.Leave(reason="x" * 999)), Left(A, "x" * TEXT_BYTES_MAX)),
    ],
)
def test_a_message_becomes_an_event_under_the_senders_proven_name(
    message: wire.NodeMessage, event: object
) -> None:
    assert wire_messages.event_of(A, message) == event


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (wire.NodeMessage(), "expected an event of a round, got an empty message"),
        (wire.NodeMessage(hello=wire.Hello()), "expected an event of a round, got hello"),
        (wire.NodeMessage(ready=wire.Ready(round=-2)), "expected a round of at least -1, got -2"),
        (announced(round=-1), "expected a round of at least 0, got -1"),
        (announced(digest=b"d" * 31), "expected a digest of 32 bytes, got 31 bytes"),
        (announced(loss=NAN), "expected a finite loss, got nan"),
        (announced(loss=-INFINITY), "expected a finite loss, got -inf"),
        (announced(samples=2**48), r"expected counts below 2\*\*48"),
        (announced(compute_ms=2**64 - 1), r"expected counts below 2\*\*48"),
        (announced(payload_bytes=2**63), r"expected counts below 2\*\*48"),
        (
            wire.NodeMessage(holding=wire.Holding(round=-1)),
            "expected a round of at least 0, got -1",
        ),
        (
            wire.NodeMessage(holding=wire.Holding(digests=[b"d" * 32], authors=["", ""])),
            "authors of 1",
        ),
        (
            wire.NodeMessage(holding=wire.Holding(digests=[b"d" * 32], authors=["x"])),
            "peer",
        ),
        (
            wire.NodeMessage(holding=wire.Holding(digests=[b"x"])),
            "expected a digest of 32 bytes, got 1 bytes",
        ),
        (
            wire.NodeMessage(holding=wire.Holding(digests=[b"d" * 32] * (MEMBERS_MAX + 1))),
            "expected at most 4096",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(round=-1)),
            "expected a round of at least 0, got -1",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(snapshot_sha256=b"s")),
            "expected a digest of 32 bytes, got 1 bytes",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(projection=[0.5] * 64, update=-1.0)),
            "an update of 0 or more, got -1",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(projection=[0.5] * 63)),
            "expected a projection of 64 finite numbers, or none, got 63",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(projection=[float("nan")] * 64)),
            "expected a projection of 64 finite numbers",
        ),
    ],
)
def test_a_dishonest_message_is_refused(message: wire.NodeMessage, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        wire_messages.event_of(A, message)


def test_a_hello_becomes_an_event() -> None:
    hello = wire.Hello(addresses=["a:1", "b:2"], name="n", hardware="h", software="s")
    assert wire_messages.joined(A, hello, "9.9.9.9") == Joined(A, ("a:1", "b:2"), "n", "h", "s")


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (
            wire.Hello(addresses=["a:1"] * (ADDRESSES_MAX + 1)),
            f"expected at most {ADDRESSES_MAX} addresses, got 9",
        ),
        (
            wire.Hello(addresses=["a" * (TEXT_BYTES_MAX + 1)]),
            f"expected texts of at most {TEXT_BYTES_MAX} bytes",
        ),
        (
            wire.Hello(name="é" * (TEXT_BYTES_MAX // 2 + 1)),
            f"expected texts of at most {TEXT_BYTES_MAX} bytes",
        ),
        (wire.Hello(hardware="h" * 10_000), "expected texts of at most"),
        (wire.Hello(software="s" * 10_000), "expected texts of at most"),
    ],
)
def test_a_hello_is_bounded(hello: wire.Hello, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{A}: {words}"):
        wire_messages.joined(A, hello, "9.9.9.9")


def test_an_opening_tells_a_member_its_own_share_only() -> None:
    assignment = Assignment(A, (Share(5, 2), Share(9, 1)), True, "why")
    other = Assignment(B, (Share(0, 5),), False, "")
    opened = OpenRound(7, 6, Instants(1, 2, 3, 4), 11, 12, (assignment, other))
    told = wire_messages.opened_message(opened, assignment).opened
    assert [(share.first, share.count) for share in told.shares] == [(5, 2), (9, 1)]
    assert (told.round, told.step, told.muted, told.reason) == (7, 6, True, "why")
    assert (told.opened_ms, told.bell_ms, told.publish_by_ms, told.commit_by_ms) == (1, 2, 3, 4)
    assert (told.learning_rate_bits, told.decay_bits) == (11, 12)


def recorded(round: int, body_bytes: int = 100) -> RecordedCommit:
    return RecordedCommit(round, SignedCommit(bytes(body_bytes), bytes(64)), 1.0, None, 0, 0, b"")


def test_a_short_page_says_how_far_everything_is_decided() -> None:
    reply = wire_messages.commits_reply([recorded(1), recorded(4)], decided_round=6, head_round=4)
    assert (len(reply.commits), reply.decided_round, reply.head_round) == (2, 6, 4)
    assert wire_messages.commits_reply([], 6, 4).decided_round == 6


def test_a_full_page_ends_at_its_last_commit() -> None:
    """Else a node would take the commits of the next page for skipped rounds."""
    rows = [recorded(2 * number) for number in range(COMMITS_PER_REPLY)]
    reply = wire_messages.commits_reply(rows, decided_round=999, head_round=998)
    assert (len(reply.commits), reply.decided_round) == (
        COMMITS_PER_REPLY,
        2 * (COMMITS_PER_REPLY - 1),
    )


def test_a_page_of_large_commits_fits_a_message_and_ends_at_its_last_commit() -> None:
    rows = [recorded(number, body_bytes=500_000) for number in range(COMMITS_PER_REPLY)]
    reply = wire_messages.commits_reply(rows, decided_round=999, head_round=998)
    assert 1 <= len(reply.commits) < COMMITS_PER_REPLY
    assert reply.decided_round == len(reply.commits) - 1
    assert reply.ByteSize() < MESSAGE_BYTES_MAX


def test_a_page_has_at_least_one_commit_however_large() -> None:
    reply = wire_messages.commits_reply(
        [recorded(0, body_bytes=MESSAGE_BYTES_MAX - 1000), recorded(1)], 5, 1
    )
    assert (len(reply.commits), reply.decided_round) == (1, 0)


def test_the_commit_of_the_largest_run_fits_a_message() -> None:
    """Every member holds some payloads; a few holders of each are told."""
    key, peers = (
        Ed25519PrivateKey.generate(),
        [PeerId(f"{number:032x}") for number in range(MEMBERS_MAX)],
    )
    receipts = Receipts(copies_min=1, named_max=2 * MEMBERS_MAX)
    digests = [payload_digest(peer, 0) for peer in peers]
    for peer in peers:
        receipts.hold(peer, digests[:8], 0)
    for place, digest in enumerate(digests):
        for peer in peers[place : place + 20]:
            receipts.hold(peer, (digest,), 0)
    entries = tuple(
        Entry(peer, digest, PAYLOAD_BYTES_LIMIT, 1, 2**48)
        for peer, digest in zip(peers, digests, strict=True)
    )
    commit = Commit(RUN, 2**62, 2**62, entries, 2**32 - 1, 2**32 - 1, genesis_digest(RUN))
    holders = tuple(receipts.told_holders(digest) for digest in digests)
    message = wire_messages.committed_message(sign_commit(commit, key), holders)
    assert min(map(len, holders)) >= 1
    assert message.ByteSize() < MESSAGE_BYTES_MAX


def test_an_address_that_leads_back_to_its_reader_is_told_to_nobody_but_neighbours() -> None:
    hello = wire.Hello(addresses=["127.0.0.1:22", "192.0.2.1:1", "localhost:80", "node:1"])
    assert wire_messages.joined(A, hello, "9.9.9.9").addresses == ("192.0.2.1:1", "node:1")
    assert wire_messages.joined(A, hello, "127.0.0.1").addresses == tuple(hello.addresses)

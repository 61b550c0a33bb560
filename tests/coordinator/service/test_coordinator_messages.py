"""What the coordinator tells nodes: one their own share, all of them pages that fit a message."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.journal import RecordedCommit
from coordinator.machine.events.effects import AskEvaluation, Assignment, OpenRound
from coordinator.machine.state.receipts import Receipts
from coordinator.service import coordinator_messages
from protocol.clock import Instants
from protocol.codec.commits import Commit, Entry, SignedCommit, genesis_digest, sign_commit
from protocol.ids import PeerId
from protocol.limits import COMMITS_PER_REPLY, MEMBERS_MAX, MESSAGE_BYTES_MAX, PAYLOAD_BYTES_LIMIT
from protocol.shuffle import Share
from tests.coordinator.machine.driver import RUN, A, B, payload_digest


def test_an_opening_tells_a_member_its_own_share_only() -> None:
    assignment = Assignment(A, (Share(5, 2), Share(9, 1)), True, "why")
    other = Assignment(B, (Share(0, 5),), False, "")
    opened = OpenRound(7, 6, Instants(1, 2, 3, 4), 11, 12, (assignment, other))
    told = coordinator_messages.opened_message(opened, assignment).opened
    assert [(share.first, share.count) for share in told.shares] == [(5, 2), (9, 1)]
    assert (told.round, told.step, told.muted, told.reason) == (7, 6, True, "why")
    assert (told.opened_ms, told.bell_ms, told.publish_by_ms, told.commit_by_ms) == (1, 2, 3, 4)
    assert (told.learning_rate_bits, told.decay_bits) == (11, 12)


def recorded(round: int, body_bytes: int = 100) -> RecordedCommit:
    return RecordedCommit(round, SignedCommit(bytes(body_bytes), bytes(64)), 1.0, None, 0, 0, b"")


def test_a_short_page_says_how_far_everything_is_decided() -> None:
    reply = coordinator_messages.commits_reply(
        [recorded(1), recorded(4)], decided_round=6, head_round=4
    )
    assert (len(reply.commits), reply.decided_round, reply.head_round) == (2, 6, 4)
    assert coordinator_messages.commits_reply([], 6, 4).decided_round == 6


def test_a_full_page_ends_at_its_last_commit() -> None:
    """Else a node would take the commits of the next page for skipped rounds."""
    rows = [recorded(2 * number) for number in range(COMMITS_PER_REPLY)]
    reply = coordinator_messages.commits_reply(rows, decided_round=999, head_round=998)
    assert (len(reply.commits), reply.decided_round) == (
        COMMITS_PER_REPLY,
        2 * (COMMITS_PER_REPLY - 1),
    )


def test_a_page_of_large_commits_fits_a_message_and_ends_at_its_last_commit() -> None:
    rows = [recorded(number, body_bytes=500_000) for number in range(COMMITS_PER_REPLY)]
    reply = coordinator_messages.commits_reply(rows, decided_round=999, head_round=998)
    assert 1 <= len(reply.commits) < COMMITS_PER_REPLY
    assert reply.decided_round == len(reply.commits) - 1
    assert reply.ByteSize() < MESSAGE_BYTES_MAX


def test_a_page_has_at_least_one_commit_however_large() -> None:
    reply = coordinator_messages.commits_reply(
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
    message = coordinator_messages.committed_message(sign_commit(commit, key), holders)
    assert min(map(len, holders)) >= 1
    assert message.ByteSize() < MESSAGE_BYTES_MAX


def test_the_request_names_the_round_and_the_samples() -> None:
    asked = coordinator_messages.evaluation_asked(AskEvaluation(7, A, 64)).evaluation
    assert (asked.round, asked.samples) == (7, 64)

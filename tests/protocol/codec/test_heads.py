"""Heads: a commit is known by its signature alone, and two histories prove themselves."""

import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, Entry, genesis_digest, sign_commit
from protocol.codec.heads import (
    PROOF_BYTES_MAX,
    SHOWN_MAX,
    TAKEN_MAX,
    Equivocation,
    Head,
    Heads,
    head_of,
    open_head,
    read_proof,
)
from protocol.errors import DataError, RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId, sha256

KEY = Ed25519PrivateKey.from_private_bytes(b"c" * 32)
STRANGER = Ed25519PrivateKey.from_private_bytes(b"x" * 32)
PUBLIC = public_bytes(KEY)
RUN = RunId("ab" * 16)


def commit(step: int, round: int | None = None, **changes: Any) -> Commit:
    entry = Entry(PeerId("cd" * 16), sha256(b"payload"), 100, 1, 8)
    first = Commit(RUN, step if round is None else round, step, (entry,), 1, 2, genesis_digest(RUN))
    return replace(first, **changes)


def head(step: int, round: int | None = None, **changes: Any) -> Head:
    made = commit(step, round, **changes)
    return head_of(made, sign_commit(made, KEY))


def heads(*steps: int) -> Heads:
    known = Heads(RUN, PUBLIC)
    for step in steps:
        known.take(commit(step), sign_commit(commit(step), KEY))
    return known


def test_a_commits_own_signature_says_where_it_stands() -> None:
    assert open_head(head(7, 9).message, PUBLIC, RUN) == head(7, 9)


def test_a_head_is_short() -> None:
    assert head(2**31, 2**31).message.ByteSize() <= 112


@pytest.mark.parametrize("field", ["round", "step"])
def test_a_head_of_another_place_is_not_signed(field: str) -> None:
    """Else the newest commit of a run could be shown as one that its coordinator lacks."""
    said = head(7, 9).message
    setattr(said, field, 8)
    with pytest.raises(RemoteProtocolError, match="signed by this run's coordinator"):
        open_head(said, PUBLIC, RUN)


def test_a_head_of_another_run_of_the_same_key_is_not_signed() -> None:
    with pytest.raises(RemoteProtocolError):
        open_head(head(7).message, PUBLIC, RunId("ef" * 16))


@pytest.mark.parametrize(
    "wrong",
    [
        wire.Head(),
        wire.Head(round=-1, step=7, digest=bytes(32), signature=bytes(64)),
        wire.Head(round=7, step=7, digest=bytes(31), signature=bytes(64)),
        wire.Head(round=7, step=7, digest=bytes(32), signature=bytes(1_000_000)),
        head_of(commit(9), sign_commit(commit(9), STRANGER)).message,
    ],
)
def test_a_forged_head_is_counted_and_changes_nothing(wrong: wire.Head) -> None:
    known = heads(0, 1, 2)
    known.show(head_of(commit(9), sign_commit(commit(9), STRANGER)).message)
    assert (known.forged, known.equivocation, known.newest) == (1, None, known.own)
    fresh = heads()
    fresh.show(wrong)
    assert (fresh.forged, fresh.newest) == (1, None)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_an_old_head_is_nothing_new(step: int) -> None:
    known = heads(0, 1, 2)
    known.show(head(step).message)
    assert (known.newest, known.unseen, known.equivocation) == (head(2), None, None)


def test_a_newer_head_is_known_until_its_commit_comes() -> None:
    known = heads(0, 1)
    known.show(head(3).message)
    assert (known.newest, known.own, known.unseen) == (head(3), head(1), head(3))
    for step in (2, 3):
        known.take(commit(step), sign_commit(commit(step), KEY))
    assert (known.own, known.unseen, known.equivocation) == (head(3), None, None)


def test_another_commit_of_a_known_step_is_a_proof() -> None:
    known, other = heads(0, 1, 2), head(1, 4)
    known.show(other.message)
    assert known.equivocation == Equivocation(RUN, PUBLIC, head(1), other)


def test_another_commit_than_the_one_that_was_shown_is_a_proof() -> None:
    known, other = heads(0, 1), head(2, decay_bits=9)
    known.show(other.message)
    known.take(commit(2), sign_commit(commit(2), KEY))
    assert known.equivocation == Equivocation(RUN, PUBLIC, other, head(2))


def test_another_commit_from_the_coordinator_itself_is_a_proof() -> None:
    known, other = heads(0, 1, 2), commit(1, decay_bits=9)
    known.take(other, sign_commit(other, KEY))
    assert known.equivocation is not None
    assert known.equivocation.first == head(1)


def test_the_first_proof_stays() -> None:
    known = heads(0, 1, 2)
    for round in (4, 5):
        known.show(head(1, round).message)
    assert known.equivocation == Equivocation(RUN, PUBLIC, head(1), head(1, 4))


def test_a_commit_of_another_run_is_no_word_on_this_one() -> None:
    known, other = heads(0, 1), commit(1, run_id=RunId("ef" * 16))
    known.take(other, sign_commit(other, KEY))
    assert known.equivocation is None


def test_what_is_known_is_bounded() -> None:
    known = heads()
    for step in range(TAKEN_MAX + 3):
        made = commit(step)
        known.take(made, sign_commit(made, KEY))
    for step in range(5_000, 5_000 + SHOWN_MAX + 3):
        known.show(head(step).message)
    assert (len(known._taken), len(known._shown)) == (TAKEN_MAX, SHOWN_MAX)
    known.show(head(1, 4).message)
    assert known.equivocation is None, "too old to be known"


def test_the_newest_head_of_an_earlier_start_is_known_again() -> None:
    known = heads()
    known.restore(head(5).message)
    assert known.own == head(5)
    known.restore(head_of(commit(9), sign_commit(commit(9), STRANGER)).message)
    assert (known.own, known.forged) == (head(5), 0)


# ---- proofs


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (head(3, 5, decay_bits=9), "two different commits of round 5 of run"),
        (head(3, 6), "two different commits of step 3, in rounds 5 and 6 of run"),
    ],
)
def test_a_proof_is_read_with_nothing_but_itself(other: Head, words: str) -> None:
    proof = Equivocation(RUN, PUBLIC, head(3, 5), other)
    blob = proof.document()
    assert len(blob) < PROOF_BYTES_MAX / 2
    assert read_proof(blob) == proof
    assert words in proof.words


def changed(place: str, value: Any) -> bytes:
    document = json.loads(Equivocation(RUN, PUBLIC, head(3), head(3, 4)).document())
    *path, last = place.split(".")
    inner = document
    for name in path:
        inner = inner[int(name) if name.isdigit() else name]
    inner[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "expected a proof of two histories"),
        (b"[" * 4000, "expected a proof of two histories"),
        (b" " * (PROOF_BYTES_MAX + 1), "expected a proof of at most"),
        (Equivocation(RUN, PUBLIC, head(3), head(3)).document(), "that one history can have"),
        (Equivocation(RUN, PUBLIC, head(3), head(4)).document(), "that one history can have"),
        (changed("run_id", "ef" * 16), "signed by this run's coordinator"),
        (changed("run_id", "\x1b[2J"), "expected a proof of two histories"),
        (changed("coordinator_key", public_bytes(STRANGER).hex()), "signed by this run's"),
        (changed("coordinator_key", "ab"), "expected a key of 32 bytes"),
        (changed("heads.0.round", 8), "signed by this run's coordinator"),
        (changed("heads.0.round", 2**63), "expected a proof of two histories"),
        (changed("heads.1.digest", "zz"), "expected a proof of two histories"),
        (changed("heads.1.signature", "00"), "expected the head of a commit"),
        (changed("surprise\x1b", 1), "expected a proof of two histories"),
    ],
)
def test_what_proves_nothing_says_why(blob: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as error:
        read_proof(blob)
    assert str(error.value).isprintable()


@settings(max_examples=200)
@given(st.data())
def test_two_histories_are_told_apart_wherever_they_part(data: st.DataObject) -> None:
    """Rounds of each are skipped as it likes; who follows one is shown any newer or known head of
    the other.
    """
    shared, length = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 6))
    skips = st.lists(st.integers(0, 2), min_size=length, max_size=length)
    one = [commit(step) for step in range(shared)]
    branches = []
    for bits in (3, 4):
        branch, round = list(one), shared
        for skipped in data.draw(skips):
            round += skipped
            branch.append(commit(len(branch), round, decay_bits=bits))
            round += 1
        branches.append(branch)
    follower = Heads(RUN, PUBLIC)
    for each in branches[0]:
        follower.take(each, sign_commit(each, KEY))
    shown = data.draw(st.integers(0, len(branches[1]) - 1))
    made = branches[1][shown]
    follower.show(head_of(made, sign_commit(made, KEY)).message)
    assert (follower.equivocation is not None) == (shown >= shared)

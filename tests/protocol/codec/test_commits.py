"""Commits: signed, canonical, chained, bounded; one flipped bit is enough to be refused."""

import contextlib
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.commits import (
    Commit,
    Entry,
    Mix,
    RangeSum,
    SignedCommit,
    Sums,
    check_link,
    commit_bytes,
    commit_digest,
    genesis_digest,
    open_commit,
    sign_commit,
)
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.limits import MEMBERS_MAX, PAYLOAD_BYTES_LIMIT, VOTE_SUM_MAX

KEY = Ed25519PrivateKey.from_private_bytes(b"c" * 32)
PUBLIC = public_bytes(KEY)
RUN = RunId("ab" * 16)
bounded = settings(max_examples=100)

peer_ids = st.integers(0, 2**128 - 1).map(lambda number: PeerId(f"{number:032x}"))
digests = st.binary(min_size=32, max_size=32).map(Digest)
bits = st.integers(0, 2**32 - 1)
counts = st.integers(0, 2**48)
entries = st.builds(
    Entry,
    peer_ids,
    digests,
    st.integers(1, PAYLOAD_BYTES_LIMIT),
    st.integers(1, VOTE_SUM_MAX // 6),
    counts,
)
sorted_entries = st.lists(
    entries, min_size=1, max_size=6, unique_by=lambda entry: entry.author
).map(lambda unsorted: tuple(sorted(unsorted, key=lambda entry: entry.author)))
commits = st.builds(Commit, st.just(RUN), counts, counts, sorted_entries, bits, bits, digests)


def entry(number: int = 1, **changes: Any) -> Entry:
    author = PeerId(f"{number:032x}")
    return replace(Entry(author, sha256(author.encode()), 100, 1, 8), **changes)


def commit(**changes: Any) -> Commit:
    return replace(
        Commit(RUN, 3, 2, (entry(1), entry(2)), 0x3B83126F, 0x3F800000, genesis_digest(RUN)),
        **changes,
    )


@bounded
@given(commits)
def test_a_commit_comes_back_as_it_was(original: Commit) -> None:
    assert open_commit(sign_commit(original, KEY), PUBLIC) == original


@bounded
@given(commits)
def test_the_same_commit_has_the_same_bytes_and_the_same_signature(original: Commit) -> None:
    assert sign_commit(original, KEY) == sign_commit(replace(original), KEY)


@bounded
@given(commits, st.data())
def test_any_flipped_bit_is_refused(original: Commit, data: st.DataObject) -> None:
    signed = sign_commit(original, KEY)
    body, signature = bytearray(signed.body), bytearray(signed.signature)
    blob = data.draw(st.sampled_from([body, signature]))
    place = data.draw(st.integers(0, 8 * len(blob) - 1))
    blob[place // 8] ^= 1 << place % 8
    with pytest.raises(RemoteProtocolError):
        open_commit(SignedCommit(bytes(body), bytes(signature)), PUBLIC)


def test_another_coordinators_signature_is_refused() -> None:
    other = Ed25519PrivateKey.from_private_bytes(b"x" * 32)
    with pytest.raises(
        RemoteProtocolError, match="expected a commit signed by this run's coordinator"
    ):
        open_commit(sign_commit(commit(), other), PUBLIC)


def test_a_signature_over_the_body_alone_is_refused() -> None:
    """The domain tag keeps a signature that was made for something else from being taken for a
    commit's.
    """
    body = commit_bytes(commit())
    for signed_bytes in (body, sha256(body)):
        with pytest.raises(RemoteProtocolError):
            open_commit(SignedCommit(body, KEY.sign(signed_bytes)), PUBLIC)


@pytest.mark.parametrize("size", [0, 1, 63, 65])
def test_a_signature_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        open_commit(SignedCommit(commit_bytes(commit()), bytes(size)), PUBLIC)


def signed_body(body: bytes) -> SignedCommit:
    return SignedCommit(body, KEY.sign(b"lockstep.commit.v1" + sha256(body)))


def test_another_encoding_of_the_same_commit_is_refused_even_when_signed() -> None:
    fields = msgpack.unpackb(commit_bytes(commit()))
    reordered = msgpack.packb(dict(reversed(fields.items())))
    with pytest.raises(RemoteProtocolError, match="expected a commit in canonical encoding"):
        open_commit(signed_body(reordered), PUBLIC)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x90", b"junk"])
def test_bytes_that_are_no_commit_are_refused_even_when_signed(body: bytes) -> None:
    with pytest.raises(
        RemoteProtocolError, match="expected a commit, got bytes that do not decode"
    ):
        open_commit(signed_body(body), PUBLIC)


def test_an_unknown_field_is_refused_even_when_signed() -> None:
    fields = msgpack.unpackb(commit_bytes(commit()))
    with pytest.raises(RemoteProtocolError):
        open_commit(signed_body(msgpack.packb(fields | {"surprise": 1})), PUBLIC)


def test_trailing_bytes_are_refused_even_when_signed() -> None:
    with pytest.raises(RemoteProtocolError):
        open_commit(signed_body(commit_bytes(commit()) + b"\x00"), PUBLIC)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"entries": ()}, f"expected 1..{MEMBERS_MAX} entries"),
        ({"entries": (entry(2), entry(1))}, "expected authors sorted and once each"),
        ({"entries": (entry(1), entry(1))}, "expected authors sorted and once each"),
        ({"entries": (entry(author="nobody"),)}, "expected a peer id of 32 hexadecimal characters"),
        ({"entries": (entry(digest=b"short"),)}, "expected a digest of 32 bytes, got 5"),
        ({"entries": (entry(payload_bytes=0),)}, "size or weight"),
        ({"entries": (entry(payload_bytes=PAYLOAD_BYTES_LIMIT + 1),)}, "size or weight"),
        ({"entries": (entry(weight=0),)}, "size or weight"),
        ({"entries": (entry(weight=VOTE_SUM_MAX + 1),)}, "size or weight"),
        (
            {"entries": (entry(1, weight=VOTE_SUM_MAX), entry(2))},
            f"weights of {VOTE_SUM_MAX} together at most, got",
        ),
        (
            {"entries": tuple(entry(number) for number in range(MEMBERS_MAX + 1))},
            f"{MEMBERS_MAX + 1} exceeds max_array_len",
        ),
        ({"previous": b"short"}, "expected a digest of 32 bytes, got 5"),
        ({"round": -1}, "expected no negative field"),
        ({"step": -1}, "expected no negative field"),
        ({"learning_rate_bits": 2**32}, "expected float32 bits below"),
        ({"decay_bits": 2**32}, "expected float32 bits below"),
        ({"decay_bits": -1}, "expected no negative field"),
    ],
)
def test_a_commit_out_of_bounds_is_refused_even_when_signed(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        open_commit(sign_commit(commit(**changes), KEY), PUBLIC)


def test_a_chain_links_from_genesis_over_skipped_rounds() -> None:
    first = commit(round=0, step=0)
    check_link(first, RUN, genesis_digest(RUN), -1)
    second = commit(round=4, step=1, previous=commit_digest(first))
    check_link(second, RUN, commit_digest(first), 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run_id": RunId("ba" * 16)}, "expected a commit of run abab"),
        ({"previous": sha256(b"other")}, "does not follow the one before it: expected previous"),
        ({"round": 2}, "expected a commit after round 2, got round 2"),
        ({"round": 1}, "expected a commit after round 2, got round 1"),
    ],
)
def test_a_broken_link_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        check_link(commit(**changes), RUN, genesis_digest(RUN), 2)


@bounded
@given(commits, st.data())
def test_the_digest_names_every_field(original: Commit, data: st.DataObject) -> None:
    field, value = data.draw(
        st.sampled_from(
            [
                ("round", original.round + 1),
                ("step", original.step + 1),
                ("learning_rate_bits", original.learning_rate_bits ^ 1),
                ("decay_bits", original.decay_bits ^ 1),
                ("previous", sha256(original.previous)),
                ("run_id", RunId("ba" * 16)),
                ("entries", original.entries[:-1]),
            ]
        )
    )
    assert commit_digest(replace(original, **{field: value})) != commit_digest(original)


def test_each_run_has_its_own_genesis() -> None:
    assert genesis_digest(RUN) != genesis_digest(RunId("ba" * 16))


def test_bytes_and_digest_are_pinned() -> None:
    """A change of these literals is a change of the protocol: old logs would no longer verify."""
    assert (
        commit_digest(commit()).hex()
        == "4a51cdb319c4ffb960119de74dda0d6e66cd05aa759008013d7eea7ed258cff9"
    )
    assert (
        genesis_digest(RUN).hex()
        == "198ee995be17f203501656d1ccf20a2772850f25f8aef50b23abf1b55a483396"
    )


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_coordinators_key_of_another_length_signed_nothing(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="signed by this run's coordinator"):
        open_commit(sign_commit(commit(), KEY), bytes(size))


@pytest.mark.parametrize("body", [b"\x91" * 5000, b"\x81\xa1\xff\x01", b"\xa4\xed\xa0\x80a"])
def test_a_signed_body_that_breaks_its_decoder_is_a_remote_error(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_commit(signed_body(body), PUBLIC)


@bounded
@given(st.binary(max_size=120))
def test_any_signed_bytes_are_a_commit_or_a_remote_error(body: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        open_commit(signed_body(body), PUBLIC)


# ---- nodes that mix parameters


def mixed(mix: Mix | None, authors: int = 3) -> Commit:
    entries = tuple(
        Entry(PeerId(f"{number:032x}"), sha256(b"%d" % number), 10, 1, 4)
        for number in range(authors)
    )
    return Commit(RunId("ab" * 16), 7, 5, entries, 1, 2, sha256(b"before"), mix)


def opened_again(commit: Commit) -> Commit:
    return open_commit(sign_commit(commit, KEY), public_bytes(KEY))


@pytest.mark.parametrize("mix", [None, Mix(mean=True), Mix(mean=False, edges=((0, 1, 2),))])
def test_a_commit_with_edges_survives_its_encoding(mix: Mix | None) -> None:
    assert opened_again(mixed(mix)) == mixed(mix)
    assert (b"mix" in commit_bytes(mixed(mix))) is (mix is not None)


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        (Mix(mean=True, edges=((0, 1, 2),)), "no edges beside a mean"),
        (Mix(mean=False, edges=((1, 0, 2),)), "the first of two first"),
        (Mix(mean=False, edges=((1, 1, 2),)), "the first of two first"),
        (Mix(mean=False, edges=((0, 3, 2),)), "edges between 3 entries"),
        (Mix(mean=False, edges=((0, 1, 2), (0, 1, 2))), "once each"),
        (Mix(mean=False, edges=((1, 2, 3), (0, 1, 3))), "sorted"),
        (Mix(mean=False, edges=((0, 1, 2), (1, 2, 3))), "divisor above the number of edges"),
        (Mix(mean=False, edges=((0, 1, 5000),)), "divisor"),
    ],
)
def test_shares_that_no_doubly_stochastic_matrix_has_are_an_error(mix: Mix, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        opened_again(mixed(mix))


def test_a_node_needs_its_own_payload_and_those_of_its_edges() -> None:
    commit = mixed(Mix(mean=False, edges=((0, 1, 2),)))
    first, second, third = (entry.author for entry in commit.entries)
    assert commit.needed_by(first) == commit.entries[:2]
    assert commit.needed_by(third) == commit.entries[2:]
    assert commit.needed_by(PeerId("f" * 32)) == ()
    assert commit.shares_of(second) == {first: Fraction(1, 2), second: Fraction(1, 2)}
    assert mixed(None).needed_by(first) == commit.entries


# ---- rounds with sums


def summed(*results: RangeSum, ranges: int = 4) -> Commit:
    return replace(mixed(None), sums=Sums(ranges, results))


FIRST, LAST = (RangeSum(number, sha256(b"range %d" % number), 9) for number in (0, 3))


def test_a_commit_with_sums_survives_its_encoding_and_needs_them_alone() -> None:
    commit = summed(FIRST, replace(LAST, silent=(0, 2)))
    assert opened_again(commit) == commit
    assert b"sums" not in commit_bytes(mixed(None))
    assert commit.needed == commit.needed_by(commit.entries[0].author) == commit.sums.results
    assert commit.only({FIRST.digest}) == summed(FIRST)
    assert mixed(None).only({commit.entries[1].digest}).needed == commit.entries[1:2]


@pytest.mark.parametrize(
    ("commit", "words"),
    [
        (summed(LAST, FIRST), "sorted and once each"),
        (summed(FIRST, FIRST), "sorted and once each"),
        (summed(LAST, ranges=3), "ranges below 3"),
        (summed(FIRST, ranges=0), "up to 64 ranges"),
        (summed(FIRST, ranges=65), "up to 64 ranges"),
        (summed(replace(FIRST, silent=(3,))), "some of 3 entries"),
        (summed(replace(FIRST, silent=(1, 0))), "sorted and once each"),
        (summed(replace(FIRST, payload_bytes=0)), "got 0 bytes"),
        (summed(replace(FIRST, digest=Digest(b"short"))), "digest"),
        (replace(summed(FIRST), mix=Mix(mean=True)), "up to 64 ranges"),
    ],
)
def test_sums_that_no_round_has_are_an_error(commit: Commit, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        opened_again(commit)

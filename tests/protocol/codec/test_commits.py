"""Commits: signed, canonical, chained, bounded; one flipped bit is enough to be refused."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgpack
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.commit_sums import RangeSum
from protocol.codec.commits import (
    Commit,
    Entry,
    Mix,
    SignedCommit,
    author_list_bytes,
    check_link,
    commit_bytes,
    commit_digest,
    genesis_digest,
    open_commit,
    sign_commit,
    signed_bytes,
    with_author_list,
)
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.limits import MEMBERS_MAX, PAYLOAD_BYTES_LIMIT, VOTE_SUM_MAX
from tests.support.summed import sums_of

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
    for content in (body, sha256(body)):
        with pytest.raises(RemoteProtocolError):
            open_commit(SignedCommit(body, KEY.sign(content)), PUBLIC)


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
    return replace(mixed(None), sums=sums_of(ranges, results, mixed(None).entries))


FIRST, LAST = (RangeSum(number, sha256(b"range %d" % number), 9) for number in (0, 3))


def test_a_commit_with_sums_survives_its_encoding_and_needs_them_alone() -> None:
    commit = summed(FIRST, replace(LAST, silent=(0, 2)))
    assert opened_again(commit) == commit
    assert commit.authors == mixed(None).authors == 3
    assert b"sums" not in commit_bytes(mixed(None))
    assert commit.needed == commit.needed_by(commit.entries[0].author) == commit.sums.results
    assert commit.only({FIRST.digest}).needed == (FIRST,)
    assert mixed(None).only({commit.entries[1].digest}).needed == commit.entries[1:2]


@pytest.mark.parametrize(
    ("commit", "words"),
    [
        (summed(LAST, FIRST), "sorted and once each"),
        (summed(FIRST, FIRST), "sorted and once each"),
        (summed(LAST, ranges=3), "ranges below 3"),
        (summed(FIRST, ranges=0), "up to 64 ranges"),
        (summed(FIRST, ranges=65), "up to 64 ranges"),
        (summed(replace(FIRST, silent=(3,))), "some of 3 authors"),
        (summed(replace(FIRST, silent=(1, 0))), "sorted and once each"),
        (summed(replace(FIRST, payload_bytes=0)), "bytes in range 0, got 0"),
        (summed(replace(FIRST, digest=Digest(b"short"))), "digest"),
        (replace(summed(FIRST), mix=Mix(mean=True)), "no mix beside sums"),
    ],
)
def test_sums_that_no_round_has_are_an_error(commit: Commit, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        opened_again(commit)


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 0, "moving": 0},
        {"count": MEMBERS_MAX + 1},
        {"moving": 4},
        {"moving": -1},
        {"weight_sum": 0},
        {"weight_sum": 2},
        {"weight_sum": 512 + MEMBERS_MAX + 1},
        {"code_max": -2},
        {"code_max": 256},
    ],
)
def test_authors_that_no_round_has_are_an_error(changes: dict[str, int]) -> None:
    commit = summed(FIRST)
    assert commit.sums is not None
    authors = replace(commit.sums.authors, **changes)
    with pytest.raises(RemoteProtocolError, match="expected up to 4096 authors of weights"):
        opened_again(replace(commit, sums=replace(commit.sums, authors=authors)))


def test_a_commit_with_sums_names_its_authors_by_their_list() -> None:
    """So it is as long for a thousand authors as for three."""
    commit = summed(FIRST, replace(LAST, silent=(0, 2)))
    signed = sign_commit(commit, KEY)
    assert not any(entry.digest in signed.body for entry in commit.entries)
    assert all(entry.digest in signed.author_list for entry in commit.entries)
    bare = open_commit(replace(signed, author_list=b""), PUBLIC)
    assert (bare.entries, bare.authors) == ((), 3)
    assert bare.needed == (FIRST, LAST), "who is silent is told with the list"
    assert commit_digest(bare) == commit_digest(commit)
    assert with_author_list(bare, signed.author_list) == commit
    without_sums = sign_commit(mixed(None), KEY)
    assert without_sums.author_list == b""


def test_only_the_list_that_a_commit_names_is_taken() -> None:
    commit = summed(FIRST, LAST)
    entries, results = commit.entries, commit.needed
    signed = sign_commit(commit, KEY)
    for other in (
        author_list_bytes(entries[:2], results),
        author_list_bytes((replace(entries[0], weight=2), *entries[1:]), results),
        signed.author_list[:-1],
        b"none",
    ):
        with pytest.raises(RemoteProtocolError, match="expected the list of authors that it names"):
            open_commit(replace(signed, author_list=other), PUBLIC)
    for_no_sums = replace(sign_commit(mixed(None), KEY), author_list=signed.author_list)
    with pytest.raises(RemoteProtocolError, match="expected the list of authors that it names"):
        open_commit(for_no_sums, PUBLIC)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (lambda rows, silent: (rows[:2], silent), "expected a list of 3 authors and 2 results"),
        (lambda rows, silent: (rows, silent[:1]), "expected a list of 3 authors and 2 results"),
        (lambda rows, silent: (rows[::-1], silent), "authors sorted and once each"),
        (lambda rows, silent: (rows, [[3], []]), "expected some of 3 authors"),
        (lambda rows, silent: (rows, [[1, 0], []]), "sorted and once each"),
        (lambda rows, silent: (rows, [[], []], []), "length"),
        (lambda rows, silent: ([[*rows[0][:3], 0, 1], *rows[1:]], silent), "size or weight"),
        (lambda rows, silent: ([[*rows[0][:3], 2**24, 1], *rows[1:]], silent), "size or weight"),
        (lambda rows, silent: "none", "`array`"),
    ],
)
def test_a_signed_list_that_no_round_has_is_an_error(
    listed: Callable[[Any, Any], Any], words: str
) -> None:
    """Even where the coordinator has signed a commit that names it."""
    commit = summed(FIRST, LAST)
    assert commit.sums is not None
    rows, silent = msgpack.unpackb(sign_commit(commit, KEY).author_list)
    blob = msgpack.packb(listed(rows, silent))
    named = replace(commit, sums=replace(commit.sums, author_list=sha256(blob)))
    with pytest.raises(RemoteProtocolError, match=words):
        open_commit(replace(sign_commit(named, KEY), author_list=blob), PUBLIC)


def test_a_body_with_sums_has_no_authors_of_its_own() -> None:
    commit = summed(FIRST)
    fields = msgpack.unpackb(commit_bytes(commit))
    entry = msgspec.to_builtins(commit.entries[0], builtin_types=(bytes,))
    told = [fields["sums"]["results"][0] | {"silent": []}]
    for changed in (
        fields | {"entries": [entry]},
        fields | {"sums": fields["sums"] | {"results": told}},
    ):
        body = msgpack.packb(changed)
        place = commit.run_id, commit.round, commit.step
        signature = KEY.sign(signed_bytes(*place, sha256(body)))
        with pytest.raises(RemoteProtocolError, match="canonical encoding"):
            open_commit(SignedCommit(body, signature), PUBLIC)

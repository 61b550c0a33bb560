"""Entries of the chain: signed, canonical, linked; the same bytes for ever."""

from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.chain import (
    _DOMAIN,
    Reschedule,
    Restart,
    SignedEntry,
    Void,
    entry_digest,
    linked,
    open_entry,
    sign_entry,
)
from protocol.codec.commits import (
    Commit,
    Entry,
    SignedCommit,
    commit_digest,
    genesis_digest,
    open_commit,
    sign_commit,
)
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, RunId, sha256

KEY = Ed25519PrivateKey.from_private_bytes(b"c" * 32)
PUBLIC = public_bytes(KEY)
RUN = RunId("ab" * 16)
GENESIS = genesis_digest(RUN)
D = Digest(b"d" * 32)


def void(**changes: Any) -> Void:
    fields = {"round": 3, "digest": D, "reason": "nobody has it", "previous": GENESIS}
    return Void(RUN, **(fields | changes))


def restart(**changes: Any) -> Restart:
    fields = {"round": 3, "sha256": D, "state_digest": 2**64 - 2, "previous": GENESIS}
    return Restart(RUN, **(fields | changes))


def reschedule(**changes: Any) -> Reschedule:
    fields = {"round": 3, "step": 4, "steps": 9, "learning_rate_bits": 0x3B449BA6}
    return Reschedule(RUN, **(fields | {"previous": GENESIS} | changes))


def signed(plain: Any) -> SignedEntry:
    """Bytes that the coordinator signed, whatever is in them."""
    body = msgpack.packb(plain)
    return SignedEntry(body, KEY.sign(_DOMAIN + sha256(body)))


def plain(**changes: Any) -> dict[str, Any]:
    return msgpack.unpackb(sign_entry(void(), KEY).body) | changes


def test_a_void_has_the_same_bytes_for_ever() -> None:
    """Golden: a run's chain is read by every later release."""
    assert entry_digest(void()).hex() == (
        "a3613def268fb66acd120972712207adf91944acc29253518d45b3e9995eea2d"
    )
    assert list(plain()) == ["kind", "run_id", "round", "digest", "reason", "previous"]


def test_commits_have_no_kind_and_the_bytes_that_they_always_had() -> None:
    entry = Entry(PeerId("1".rjust(32, "0")), D, 100, 1, 8)
    commit = Commit(RUN, 3, 2, (entry,), 0x3B83126F, 0x3F800000, GENESIS)
    assert "kind" not in msgpack.unpackb(sign_commit(commit, KEY).body)
    assert commit_digest(commit).hex() == (
        "77a26971b3015a84c6b8be053cb4140635f6eaea1074763f00e717bd66e5b9b3"
    )


def test_a_reschedule_has_the_same_bytes_for_ever_and_comes_back() -> None:
    """Golden: a run's chain is read by every later release."""
    entry = sign_entry(reschedule(), KEY)
    assert list(msgpack.unpackb(entry.body)) == [
        *("kind", "run_id", "round", "step", "steps", "learning_rate_bits", "previous")
    ]
    assert entry_digest(reschedule()).hex() == (
        "9fc4e97c7a9e1dfdd128dcfaf2fdd4b6dfe5528f5d1c6bca165489cf60244859"
    )
    assert open_entry(entry, PUBLIC, RUN) == reschedule()
    assert open_entry(sign_entry(reschedule(round=-1), KEY), PUBLIC, RUN).round == -1


@pytest.mark.parametrize(
    "changes",
    [
        {"round": -2},
        {"step": -1},
        {"step": 10},
        {"steps": 100_000_001},
        {"learning_rate_bits": 0},
        {"learning_rate_bits": 0x41200001},
        {"learning_rate_bits": 0x7FC00000},
        {"learning_rate_bits": 0xBB449BA6},
    ],
)
def test_a_reschedule_out_of_bounds_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(RemoteProtocolError):
        open_entry(sign_entry(reschedule(**changes), KEY), PUBLIC, RUN)


def test_a_restart_has_the_same_bytes_for_ever() -> None:
    """Golden: a run's chain is read by every later release."""
    body = msgpack.unpackb(sign_entry(restart(), KEY).body)
    assert list(body) == ["kind", "run_id", "round", "sha256", "state_digest", "previous"]
    assert body["kind"] == "restart"
    assert entry_digest(restart()).hex() == (
        "951b35d2e7e30168e7365c82ddeace43205c3060b6c6b37640ba398e9a8fb848"
    )


@settings(max_examples=20)
@given(st.integers(0, 2**48), st.integers(0, 2**64 - 1))
def test_a_restart_comes_back_as_it_was(round: int, digest: int) -> None:
    entry = restart(round=round, state_digest=digest)
    assert open_entry(sign_entry(entry, KEY), PUBLIC, RUN) == entry


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "void"},
        {"round": -1},
        {"sha256": b"d"},
        {"state_digest": -1},
        {"state_digest": "1"},
        {"previous": b""},
        {"more": 1},
        {"run_id": "cd" * 16},
    ],
    ids=str,
)
def test_a_restart_that_the_coordinator_signed_is_bounded_all_the_same(
    changes: dict[str, Any],
) -> None:
    body = msgpack.unpackb(sign_entry(restart(), KEY).body) | changes
    with pytest.raises(RemoteProtocolError):
        open_entry(signed(body), PUBLIC, RUN)


@settings(max_examples=50)
@given(st.integers(0, 2**48), st.binary(min_size=32, max_size=32))
def test_a_void_comes_back_as_it_was(round: int, digest: bytes) -> None:
    entry = void(round=round, digest=Digest(digest), reason="most lack it")
    assert open_entry(sign_entry(entry, KEY), PUBLIC, RUN) == entry


@settings(max_examples=100)
@given(st.data())
def test_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    entry = sign_entry(void(), KEY)
    body, signature = bytearray(entry.body), bytearray(entry.signature)
    blob = data.draw(st.sampled_from([body, signature]))
    place = data.draw(st.integers(0, 8 * len(blob) - 1))
    blob[place // 8] ^= 1 << place % 8
    with pytest.raises(RemoteProtocolError):
        open_entry(SignedEntry(bytes(body), bytes(signature)), PUBLIC, RUN)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "restart"},
        {"round": -1},
        {"round": "3"},
        {"digest": b"d"},
        {"reason": "because"},
        {"previous": b""},
        {"more": 1},
        {"run_id": "cd" * 16},
    ],
    ids=str,
)
def test_what_the_coordinator_signed_is_bounded_all_the_same(changes: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        open_entry(signed(plain(**changes)), PUBLIC, RUN)


@pytest.mark.parametrize("blob", [b"", b"\xc0", b"\x90", b"\x81" * 200, b"\xff"])
def test_bytes_that_are_no_map_are_refused(blob: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_entry(SignedEntry(blob, KEY.sign(_DOMAIN + sha256(blob))), PUBLIC, RUN)


def test_a_commit_is_no_entry_and_an_entry_no_commit() -> None:
    commit = sign_commit(
        Commit(RUN, 3, 2, (Entry(PeerId("ab" * 16), D, 1, 1, 1),), 1, 2, GENESIS), KEY
    )
    entry = sign_entry(void(), KEY)
    with pytest.raises(RemoteProtocolError):
        open_entry(SignedEntry(commit.body, commit.signature), PUBLIC, RUN)
    with pytest.raises(RemoteProtocolError):
        open_commit(SignedCommit(entry.body, entry.signature), PUBLIC)


def test_entries_are_put_in_their_order_and_those_behind_the_head_are_passed_over() -> None:
    first = void(round=0)
    second = void(round=1, previous=entry_digest(first))
    third = void(round=2, previous=entry_digest(second))
    shuffled = [third, first, second]
    assert linked(GENESIS, shuffled) == ([first, second, third], entry_digest(third))
    assert linked(entry_digest(first), shuffled)[0] == [second, third]
    assert linked(D, shuffled) == ([], D)


def test_a_commit_names_the_entry_before_it() -> None:
    first = void(round=0)
    second = void(round=1, previous=entry_digest(first))
    entry = Entry(PeerId("ab" * 16), D, 1, 1, 1)
    commit = Commit(RUN, 3, 2, (entry,), 1, 2, entry_digest(first))
    assert linked(GENESIS, [first, second], commit) == ([first], entry_digest(first))
    with pytest.raises(RemoteProtocolError, match="does not follow the entries before it"):
        linked(GENESIS, [], commit)

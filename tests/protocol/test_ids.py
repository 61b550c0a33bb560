"""Names: derived from keys, checked on the way in."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.ids import parse_digest, parse_peer_id, peer_id, sha256, short


@given(st.binary(min_size=32, max_size=32))
def test_a_peer_id_is_half_the_hash_of_the_key(key: bytes) -> None:
    name = peer_id(key)
    assert name == hashlib.sha256(key).hexdigest()[:32]
    assert parse_peer_id(name) == name


@given(st.binary(max_size=200))
def test_a_digest_is_sha256_of_any_buffer(blob: bytes) -> None:
    assert (
        sha256(blob)
        == sha256(bytearray(blob))
        == sha256(memoryview(blob))
        == hashlib.sha256(blob).digest()
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 31,
        "0" * 33,
        "A" * 32,
        "g" * 32,
        " " + "0" * 31,
        "0" * 32 + "\n",
        "٠" * 32,
        "0x" + "0" * 30,
    ],
)
def test_what_is_no_peer_id_is_refused(text: str) -> None:
    with pytest.raises(
        RemoteProtocolError, match="expected a peer id of 32 hexadecimal characters, got"
    ):
        parse_peer_id(text)


def test_an_endless_name_is_not_repeated_in_the_message() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_peer_id("x" * 10_000)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_digest_has_32_bytes(size: int) -> None:
    with pytest.raises(
        RemoteProtocolError, match=f"expected a digest of 32 bytes, got {size} bytes"
    ):
        parse_digest(bytes(size))


def test_a_good_digest_passes() -> None:
    assert parse_digest(b"d" * 32) == b"d" * 32


@given(st.lists(st.binary(min_size=16, max_size=16), unique=True))
def test_names_sort_as_their_bytes_do(raw: list[bytes]) -> None:
    assert sorted(blob.hex() for blob in raw) == [blob.hex() for blob in sorted(raw)]


def test_short_is_for_the_eye() -> None:
    assert short("0123456789abcdef") == "01234567"

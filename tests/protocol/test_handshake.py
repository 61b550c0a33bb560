"""The proof at the start of a session holds for one key, one run and one nonce."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.handshake import NONCE_BYTES, public_bytes, sign_hello, verify_hello
from protocol.ids import RunId, peer_id

KEY = Ed25519PrivateKey.from_private_bytes(b"n" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
RUN = RunId("ab" * 16)
NONCE = bytes(range(NONCE_BYTES))


def test_a_proof_names_its_node() -> None:
    signature = sign_hello(KEY, RUN, NONCE)
    assert verify_hello(public_bytes(KEY), signature, RUN, NONCE) == peer_id(public_bytes(KEY))


def test_a_proof_is_for_this_session_this_run_and_this_key() -> None:
    signature = sign_hello(KEY, RUN, NONCE)
    for public, run, nonce in [
        (public_bytes(OTHER), RUN, NONCE),
        (public_bytes(KEY), RunId("ba" * 16), NONCE),
        (public_bytes(KEY), RUN, NONCE[::-1]),
        (public_bytes(KEY), RUN, b""),
    ]:
        with pytest.raises(RemoteProtocolError, match="expected a hello signed by the key it names"):
            verify_hello(public, signature, run, nonce)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 64 * 8 - 1))
def test_any_flipped_bit_of_a_proof_is_refused(place: int) -> None:
    signature = bytearray(sign_hello(KEY, RUN, NONCE))
    signature[place // 8] ^= 1 << place % 8
    with pytest.raises(RemoteProtocolError):
        verify_hello(public_bytes(KEY), bytes(signature), RUN, NONCE)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=70), st.binary(max_size=70))
def test_any_bytes_are_refused_and_nothing_else_happens(public: bytes, signature: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        verify_hello(public, signature, RUN, NONCE)


@pytest.mark.parametrize(("key_bytes", "signature_bytes"), [(31, 64), (33, 64), (32, 63), (32, 65), (0, 0)])
def test_wrong_lengths_are_named(key_bytes: int, signature_bytes: int) -> None:
    words = f"expected a key of 32 and a signature of 64 bytes, got {key_bytes} and {signature_bytes}"
    with pytest.raises(RemoteProtocolError, match=words):
        verify_hello(bytes(key_bytes), bytes(signature_bytes), RUN, NONCE)

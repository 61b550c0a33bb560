"""A proof holds for one key and one run, and for one nonce, or for one meeting of two peers:
nowhere else.
"""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.handshake import (
    NONCE_BYTES,
    Greeting,
    check_greeting,
    public_bytes,
    sign_hello,
    sign_link,
    verify_hello,
    verify_link,
)
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
        with pytest.raises(
            RemoteProtocolError, match="expected a signature of the key that is named"
        ):
            verify_hello(public, signature, run, nonce)


@settings(max_examples=100)
@given(st.integers(0, 64 * 8 - 1))
def test_any_flipped_bit_of_a_proof_is_refused(place: int) -> None:
    signature = bytearray(sign_hello(KEY, RUN, NONCE))
    signature[place // 8] ^= 1 << place % 8
    with pytest.raises(RemoteProtocolError):
        verify_hello(public_bytes(KEY), bytes(signature), RUN, NONCE)


@settings(max_examples=100)
@given(st.binary(max_size=70), st.binary(max_size=70))
def test_any_bytes_are_refused_and_nothing_else_happens(public: bytes, signature: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        verify_hello(public, signature, RUN, NONCE)


@pytest.mark.parametrize(
    ("key_bytes", "signature_bytes"), [(31, 64), (33, 64), (32, 63), (32, 65), (0, 0)]
)
def test_wrong_lengths_are_named(key_bytes: int, signature_bytes: int) -> None:
    words = (
        f"expected a key of 32 and a signature of 64 bytes, got {key_bytes} and {signature_bytes}"
    )
    with pytest.raises(RemoteProtocolError, match=words):
        verify_hello(bytes(key_bytes), bytes(signature_bytes), RUN, NONCE)


# ---- two peers

THIRD = Ed25519PrivateKey.from_private_bytes(b"t" * 32)
ONE_END = Greeting(public_bytes(KEY), b"1" * NONCE_BYTES)
OTHER_END = Greeting(public_bytes(OTHER), b"2" * NONCE_BYTES)


def test_each_end_of_a_link_proves_its_key_to_the_other() -> None:
    one, other = sign_link(KEY, RUN, ONE_END, OTHER_END), sign_link(OTHER, RUN, OTHER_END, ONE_END)
    assert verify_link(one, RUN, ONE_END, OTHER_END) == peer_id(public_bytes(KEY))
    assert verify_link(other, RUN, OTHER_END, ONE_END) == peer_id(public_bytes(OTHER))


def test_a_proof_of_one_meeting_is_none_of_another() -> None:
    """Another run, a replay under fresh nonces, passed on, a proof given back, a key that is not
    owned.
    """
    proof = sign_link(KEY, RUN, ONE_END, OTHER_END)
    for what, signature, run, signer, verifier in [
        ("another run", proof, RunId("ba" * 16), ONE_END, OTHER_END),
        (
            "replayed: the verifier's nonce is new",
            proof,
            RUN,
            ONE_END,
            Greeting(OTHER_END.public_key, b"3" * 32),
        ),
        (
            "replayed: the signer's nonce is new",
            proof,
            RUN,
            Greeting(ONE_END.public_key, b"3" * 32),
            OTHER_END,
        ),
        (
            "passed on to a third",
            proof,
            RUN,
            ONE_END,
            Greeting(public_bytes(THIRD), OTHER_END.nonce),
        ),
        ("given back to its signer", proof, RUN, OTHER_END, ONE_END),
        (
            "under another's name",
            proof,
            RUN,
            Greeting(public_bytes(THIRD), ONE_END.nonce),
            OTHER_END,
        ),
        ("signed by another", sign_link(THIRD, RUN, ONE_END, OTHER_END), RUN, ONE_END, OTHER_END),
        (
            "of a session with the coordinator",
            sign_hello(KEY, RUN, OTHER_END.nonce),
            RUN,
            ONE_END,
            OTHER_END,
        ),
    ]:
        with pytest.raises(
            RemoteProtocolError, match="expected a signature of the key that is named"
        ):
            pytest.fail(f"accepted: {what} as {verify_link(signature, run, signer, verifier)}")


def test_a_proof_to_a_peer_is_none_to_the_coordinator() -> None:
    with pytest.raises(RemoteProtocolError):
        verify_hello(
            public_bytes(KEY), sign_link(KEY, RUN, ONE_END, OTHER_END), RUN, OTHER_END.nonce
        )


def test_a_greeting_with_the_own_key_or_of_wrong_lengths_is_not_answered() -> None:
    check_greeting(ONE_END, OTHER_END)
    with pytest.raises(RemoteProtocolError, match="got a greeting with this node's own key"):
        check_greeting(ONE_END, Greeting(ONE_END.public_key, OTHER_END.nonce))
    for key_bytes, nonce_bytes in [(31, 32), (33, 32), (32, 31), (32, 33), (0, 0)]:
        words = f"expected a key of 32 and a nonce of 32 bytes, got {key_bytes} and {nonce_bytes}"
        with pytest.raises(RemoteProtocolError, match=words):
            check_greeting(ONE_END, Greeting(bytes(key_bytes), bytes(nonce_bytes)))


@settings(max_examples=100)
@given(st.binary(max_size=70), st.binary(min_size=32, max_size=32))
def test_any_bytes_are_no_proof_of_a_peer(signature: bytes, public: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        verify_link(signature, RUN, Greeting(public, ONE_END.nonce), OTHER_END)

"""The proof that a node holds its key, given to its coordinator and to each peer.

    coordinator -> node   Challenge(nonce)                 32 random bytes, once per session
    node -> coordinator   Hello(public key, signature)     ed25519 over (domain, run id, nonce)

    peer <-> peer         LinkHello(public key, nonce)     both at once, each with 32 random bytes
    peer <-> peer         LinkProof(signature)             ed25519 over (domain, run id, own key
                                                   and nonce, the other's key and nonce)

A signature covers the run and what is random in this one meeting, so it proves nothing anywhere
else; a peer's proof also covers the other end's key, so it cannot be passed on or reflected.
"""

from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, RunId, peer_id

KEY_BYTES, SIGNATURE_BYTES = 32, 64
"""Bytes of a raw ed25519 key."""

NONCE_BYTES = 32

_DOMAIN = b"lockstep.hello.v1"
_LINK_DOMAIN = b"lockstep.link.v1"


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """Raw 32-byte public key."""
    return key.public_key().public_bytes_raw()


def sign_hello(key: Ed25519PrivateKey, run_id: RunId, nonce: bytes) -> bytes:
    """The proof for one session."""
    return key.sign(_DOMAIN + run_id.encode() + nonce)


def verify_hello(public_key: bytes, signature: bytes, run_id: RunId, nonce: bytes) -> PeerId:
    """Name of the node behind a valid proof; `RemoteProtocolError` otherwise."""
    return verify(public_key, signature, _DOMAIN + run_id.encode() + nonce)


@dataclass(frozen=True, slots=True)
class Greeting:
    """One end's part of the meeting of two peers."""

    public_key: bytes
    """Raw ed25519, 32 bytes."""
    nonce: bytes
    """32 random bytes, once per link."""


def check_greeting(own: Greeting, other: Greeting) -> None:
    """`RemoteProtocolError` when the other's greeting cannot be answered with a proof."""
    if len(other.public_key) != KEY_BYTES or len(other.nonce) != NONCE_BYTES:
        got = f"{len(other.public_key)} and {len(other.nonce)}"
        raise RemoteProtocolError(
            f"expected a key of {KEY_BYTES} and a nonce of {NONCE_BYTES} bytes, got {got}"
        )
    if other.public_key == own.public_key:
        raise RemoteProtocolError("expected a peer, got a greeting with this node's own key")


def sign_link(key: Ed25519PrivateKey, run_id: RunId, own: Greeting, other: Greeting) -> bytes:
    """The proof of this end to the other, for one link."""
    return key.sign(_meeting(run_id, own, other))


def verify_link(signature: bytes, run_id: RunId, signer: Greeting, verifier: Greeting) -> PeerId:
    """Name of the peer behind a valid proof; `RemoteProtocolError` otherwise."""
    return verify(signer.public_key, signature, _meeting(run_id, signer, verifier))


def _meeting(run_id: RunId, signer: Greeting, verifier: Greeting) -> bytes:
    ends = signer.public_key + signer.nonce + verifier.public_key + verifier.nonce
    return _LINK_DOMAIN + run_id.encode() + ends


def verify(public_key: bytes, signature: bytes, signed: bytes) -> PeerId:
    """Name of the node whose key has signed these bytes; `RemoteProtocolError` otherwise."""
    if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        got = f"{len(public_key)} and {len(signature)}"
        raise RemoteProtocolError(
            f"expected a key of {KEY_BYTES} and a signature of {SIGNATURE_BYTES} bytes, got {got}"
        )
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed)
    except InvalidSignature:
        raise RemoteProtocolError(
            "expected a signature of the key that is named, got another one"
        ) from None
    return peer_id(public_key)

"""How a node proves at the start of a session that it holds the key it is named by.

    coordinator -> node   Challenge(nonce)                 32 random bytes, once per session
    node -> coordinator   Hello(public key, signature)     ed25519 over (domain, run id, nonce)

The signature covers the run and the session's nonce, so it proves nothing anywhere else.
"""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, RunId, peer_id

NONCE_BYTES = 32

_DOMAIN = b"lockstep.hello.v1"


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """Raw 32-byte public key."""
    return key.public_key().public_bytes_raw()


def sign_hello(key: Ed25519PrivateKey, run_id: RunId, nonce: bytes) -> bytes:
    """The proof for one session."""
    return key.sign(_DOMAIN + run_id.encode() + nonce)


def verify_hello(public_key: bytes, signature: bytes, run_id: RunId, nonce: bytes) -> PeerId:
    """Name of the node behind a valid proof; `RemoteProtocolError` otherwise."""
    if len(public_key) != 32 or len(signature) != 64:
        raise RemoteProtocolError(
            f"expected a key of 32 and a signature of 64 bytes, got {len(public_key)} and {len(signature)}"
        )
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, _DOMAIN + run_id.encode() + nonce)
    except InvalidSignature:
        raise RemoteProtocolError("expected a hello signed by the key it names, got another signature") from None
    return peer_id(public_key)

"""A node's hello to its coordinator, and the error that a refusal of it is."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol import wire_pb2 as wire
from protocol.errors import DivergedError, RefusedError, RemoteProtocolError, UnavailableError
from protocol.handshake import NONCE_BYTES, public_bytes, sign_hello
from protocol.ids import RunId
from protocol.limits import PROTOCOL_VERSION


def prove(hello: wire.Hello, key: Ed25519PrivateKey, run_id: RunId, nonce: bytes) -> wire.Hello:
    """A copy of `hello` with the proof that the node holds its key, for the session of `nonce`.

    Raises `RemoteProtocolError` for a nonce of another length.
    """
    if len(nonce) != NONCE_BYTES:
        raise RemoteProtocolError(f"expected a nonce of {NONCE_BYTES} bytes, got {len(nonce)}")
    signed = wire.Hello()
    signed.CopyFrom(hello)
    signed.protocol_version, signed.run_id = PROTOCOL_VERSION, run_id
    signed.public_key, signed.signature = public_bytes(key), sign_hello(key, run_id, nonce)
    return signed


def refusal(refused: wire.Refused) -> RefusedError | DivergedError | UnavailableError:
    """The error of a node that was turned away: `UnavailableError` where it is for now only."""
    reason = f"the coordinator refused this node: {refused.reason}"
    if refused.retry:
        return UnavailableError(reason)
    return DivergedError(reason) if refused.wrong_results else RefusedError(reason)

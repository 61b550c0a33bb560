"""Names of runs, nodes and blobs.

A node is named by its ed25519 public key: `PeerId` is the first 16 bytes of the key's SHA-256, in
lower-case hexadecimal, so that an identity survives new addresses and cannot be chosen to equal
another's. Hexadecimal text sorts as its bytes do, which makes "sorted by PeerId" the same on every
party.
"""

import hashlib
import re
from typing import NewType

from protocol.errors import RemoteProtocolError

PeerId = NewType("PeerId", str)
"""32 hexadecimal characters naming a node."""

RunId = NewType("RunId", str)
"""32 hexadecimal characters naming a run: its run file and its coordinator's key."""

Digest = NewType("Digest", bytes)
"""SHA-256 of a blob, 32 bytes."""

_ID = re.compile(r"[0-9a-f]{32}")


def peer_id(public_key: bytes) -> PeerId:
    """Name of the node that holds the given raw 32-byte ed25519 public key."""
    return PeerId(hashlib.sha256(public_key).hexdigest()[:32])


def sha256(blob: bytes | bytearray | memoryview) -> Digest:
    """Digest of a whole blob."""
    return Digest(hashlib.sha256(blob).digest())


def parse_peer_id(text: str) -> PeerId:
    """A peer id from the wire, or `RemoteProtocolError`."""
    if not _ID.fullmatch(text):
        raise RemoteProtocolError(
            f"expected a peer id of 32 hexadecimal characters, got {text[:40]!r}"
        )
    return PeerId(text)


def parse_digest(blob: bytes) -> Digest:
    """A digest from the wire, or `RemoteProtocolError`."""
    if len(blob) != 32:
        raise RemoteProtocolError(f"expected a digest of 32 bytes, got {len(blob)} bytes")
    return Digest(blob)


def short(name: str) -> str:
    """The first eight characters of an id, for a person's eye."""
    return name[:8]

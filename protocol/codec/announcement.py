"""An author's signed announcement of its payload in a round, which travels with every offer of it.

A peer that offers a payload need not be trusted: the signature says whose payload it is, so each
author has one place in a round, and nobody takes another's. Two announcements of one author for one
round with different payloads prove that the author cheats or has started anew in the middle of the
round.
"""

import struct
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes, verify
from protocol.ids import Digest, PeerId, RunId, parse_digest, peer_id
from protocol.wire_pb2 import OfferedPayload

_DOMAIN = b"lockstep.announcement.v1"
_NUMBERS = struct.Struct(">qQQ")
_ROUND_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Announcement:
    """One payload of one author: round, digest, size in bytes and the samples behind it."""

    author_key: bytes
    """Raw ed25519, 32 bytes."""
    round: int
    digest: Digest
    size: int
    samples: int
    signature: bytes

    @property
    def author(self) -> PeerId:
        """The name of the author."""
        return peer_id(self.author_key)


def announce(
    key: Ed25519PrivateKey, run_id: RunId, round: int, digest: Digest, *, size: int, samples: int
) -> Announcement:
    """The announcement of an own payload."""
    unsigned = Announcement(public_bytes(key), round, digest, size, samples, b"")
    return replace(unsigned, signature=key.sign(_signed_bytes(run_id, unsigned)))


def announcement_of(offered: OfferedPayload) -> Announcement:
    """The announcement in an offer, its signature not verified yet; `RemoteProtocolError` for an
    impossible digest or round.
    """
    if not 0 <= offered.round <= _ROUND_MAX:
        raise RemoteProtocolError(f"expected a round of at least 0, got {offered.round}")
    return Announcement(
        offered.author_key,
        offered.round,
        parse_digest(offered.digest),
        offered.payload_bytes,
        offered.samples,
        offered.signature,
    )


def check_signature(said: Announcement, run_id: RunId) -> PeerId:
    """The author's name; `RemoteProtocolError` unless the author has signed this."""
    return verify(said.author_key, said.signature, _signed_bytes(run_id, said))


def offered_payload(said: Announcement) -> OfferedPayload:
    """The offer that carries an announcement."""
    return OfferedPayload(
        round=said.round,
        digest=said.digest,
        payload_bytes=said.size,
        author_key=said.author_key,
        samples=said.samples,
        signature=said.signature,
    )


def _signed_bytes(run_id: RunId, said: Announcement) -> bytes:
    numbers = _NUMBERS.pack(said.round, said.size, said.samples)
    return _DOMAIN + run_id.encode() + numbers + said.digest

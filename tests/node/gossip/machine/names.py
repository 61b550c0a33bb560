"""Peers, payloads and limits for the tests of the gossip machine."""

import hashlib

from node.gossip.machine import events
from protocol.ids import Digest, PeerId, sha256

SIZE = 1000
LIMITS = events.SwarmLimits(
    payload_bytes_max=10 * SIZE, neighbours=4, pulls_max=4, pulls_per_peer=2, stall_ms=1000
)
PATIENT = events.SwarmLimits(payload_bytes_max=10**6, neighbours=4, stall_ms=10**6)
"""For large payloads that take their time."""


def peer(number: int) -> PeerId:
    return PeerId(hashlib.sha256(f"peer {number}".encode()).hexdigest()[:32])


def blob_digest(number: int) -> Digest:
    return sha256(f"payload {number}".encode())


OWN, *PEERS = (peer(number) for number in range(5))
A, B, C = PEERS[:3]
X, Y, Z = (blob_digest(number) for number in range(3))

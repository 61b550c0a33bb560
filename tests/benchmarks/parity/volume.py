"""Bytes that a node sends per step when all R nodes exchange their payloads, by R.

Every payload must reach R - 1 other nodes, so it leaves some uplink R - 1 times. With P parameters:

    exchange of payloads     (R - 1) * payload_bytes    sent by the mean node, and received by every node
    one dense gradient       2 P                        sent once, in bfloat16
    ring all-reduce          2 (R - 1) / R * 2 P        sent and received by every node, in bfloat16

The first grows with R and the last hardly does, so the saving falls as 2 / R.
"""

from dataclasses import dataclass

BFLOAT16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Volume:
    """One step of R nodes; bytes are those that the mean node sends."""

    nodes: int
    exchange_bytes: float
    dense_bytes: float
    ring_bytes: float

    @property
    def times_less_than_dense(self) -> float:
        """Saving against one dense gradient sent once."""
        return self.dense_bytes / self.exchange_bytes

    @property
    def times_less_than_ring(self) -> float:
        """Saving against a ring all-reduce of dense gradients."""
        return self.ring_bytes / self.exchange_bytes


def volume(nodes: int, parameters: int, payload_bytes: float) -> Volume:
    """The bytes of one step; at least two nodes."""
    if nodes < 2:
        raise ValueError(f"expected at least 2 nodes, got {nodes}")
    dense = BFLOAT16_BYTES * parameters
    ring = 2 * (nodes - 1) / nodes * dense
    return Volume(nodes, (nodes - 1) * payload_bytes, dense, ring)

"""Two settings compared: how sure their difference is, and how many bytes each sends.

Every payload must reach the other R - 1 nodes, so it leaves some uplink R - 1 times. With P
parameters, the bytes that the mean node sends, and receives, per step:

    exchange of payloads     (R - 1) * payload_bytes
    one dense gradient       2 P                        in bfloat16, sent once
    ring all-reduce          2 (R - 1) / R * 2 P        in bfloat16

The first grows with R and the last hardly does, so the saving falls as 2 / R.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from tests.benchmarks.parity.results import Result

BFLOAT16_BYTES = 2

T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""97.5 % quantiles of Student's t by degrees of freedom, from the usual table."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Bits per byte of one setting minus those of another; positive: the first one is behind."""

    by_seed: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.by_seed)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean; None for a single seed."""
        count = len(self.by_seed)
        if count < 2:
            return None
        half = T_975[count - 1] * stdev(self.by_seed) / count**0.5
        return self.mean - half, self.mean + half


def difference(ours: Sequence[Result], theirs: Sequence[Result]) -> Difference:
    """The difference at the last step, paired by seed: cells of one seed share weights and data
    order.

    Seeds that only one side has are left out. `ValueError` if they share none.
    """
    ends = [
        {result.cell.seed: result.last.bits_per_byte for result in side} for side in (ours, theirs)
    ]
    shared = sorted(ends[0].keys() & ends[1].keys())
    if not shared:
        raise ValueError(f"expected a shared seed, got {sorted(ends[0])} and {sorted(ends[1])}")
    return Difference(tuple(ends[0][seed] - ends[1][seed] for seed in shared))


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

"""What local steps add to the stand-in for a network: the size of what an author moved.

An author's scale is the largest that its samples and the rate of its round allow. So a commit that
counts other samples than the author trained, or that is applied at a bound of another round, cannot
pass unseen: the scale says how much was trained, and the weight has to say the same.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution
from node.exact.local_steps.aggregate import MovementSum
from protocol.limits import CHUNK_SIDE
from protocol.runfile import AlgorithmSpec
from protocol.sums.movements import Movement, code_max

LAYOUT = ChunkLayout.from_shapes({"positions": (2 * CHUNK_SIDE, 2 * CHUNK_SIDE)})
"""As many chunks as the stand-in has."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an author trained in a round."""

    samples: int
    rate: float

    def code_max(self, algorithm: AlgorithmSpec, top_k: int) -> int:
        """Code of the largest scale of this work; below 0 if it may move nothing."""
        steps = -(-self.samples // algorithm.local_samples)
        return code_max(self.rate, steps, top_k)


def digest_of_movements(
    contributions: Iterable[Contribution], algorithm: AlgorithmSpec, rate: float, top_k: int
) -> bytes:
    """Digest of the sums and units from which a replica makes the step of a commit."""
    movements = [
        Movement(each.weight, Work(each.weight, rate).code_max(algorithm, top_k), each.coefficients)
        for each in contributions
    ]
    sums = torch.empty(LAYOUT.chunks, CHUNK_SIDE, CHUNK_SIDE)
    units = MovementSum(LAYOUT, movements).sum_strip(0, sums)
    return hashlib.sha256(sums.numpy().tobytes() + units.numpy().tobytes()).digest()

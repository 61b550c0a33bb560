"""Ranks that send one and the same, which is a mistake in the loop around the optimizer."""

import warnings
from collections.abc import Sequence

import numpy as np

from node.exact.contributions import Contribution

WARNING = (
    "all ranks sent the same movements, which ranks with samples of their own never do. If "
    "DistributedDataParallel wraps the model, as it does in transformers' Trainer under torchrun, "
    "every gradient travels in every step, and this optimizer saves nothing: leave the wrapper "
    "out. Or all ranks train on the same samples: give each its own"
)


class Likeness:
    """Compares ranks until they have sent something, and warns if it was the same."""

    def __init__(self) -> None:
        self._judged = False

    def look(self, groups: Sequence[Sequence[Contribution]], ranks: int) -> None:
        """groups: what each of the ranks sent, by group."""
        sent = [each for each in groups if any(len(one.coefficients.values) for one in each)]
        if sent and ranks > 1 and not self._judged:
            self._judged = True
            if all(len(each) == ranks and _same(each) for each in sent):
                warnings.warn(WARNING, stacklevel=2)


def _same(sent: Sequence[Contribution]) -> bool:
    first, *others = (each.coefficients for each in sent)
    return all(
        np.array_equal(first.indices, other.indices) and np.array_equal(first.values, other.values)
        for other in others
    )

"""Sums of votes, as the movements of a round's authors make them."""

import numpy as np
import numpy.typing as npt

from protocol.limits import CHUNK_ENTRIES


def votes(chunks: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """Sums of 16 authors' signs at a tenth of the places, of sizes within a factor of three; int32
    [chunks, 4096].
    """
    chance = np.random.default_rng(seed)
    sums = np.zeros((chunks, CHUNK_ENTRIES), np.int32)
    for _ in range(16):
        there = chance.random(sums.shape) < 0.1
        sums += there * chance.choice((-1, 1), sums.shape) * chance.integers(300, 900, (chunks, 1))
    return sums

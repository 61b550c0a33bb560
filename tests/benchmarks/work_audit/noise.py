"""Payloads that say nothing."""

import numpy as np

from protocol.codec.payload import Coefficients
from protocol.limits import CHUNK_ENTRIES


def noise(like: Coefficients, random: np.random.Generator) -> Coefficients:
    """Places and signs by chance, as many in each chunk as another payload has, with its scales."""
    places = [
        np.sort(random.choice(CHUNK_ENTRIES, count, replace=False)).astype(np.uint16)
        for count in like.counts
    ]
    signs = random.choice(np.array([-1, 1], np.int16), len(like.values))
    return Coefficients(like.counts, np.concatenate(places), signs, like.scales)

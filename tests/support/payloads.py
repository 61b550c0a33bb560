"""What payloads say, for tests that compare two of them."""

import numpy as np

from protocol.codec.payload import Coefficients


def signs_of(coefficients: Coefficients) -> dict[int, bool]:
    """The signs that a payload has, by their places."""
    chunks = np.repeat(np.arange(len(coefficients.counts)), coefficients.counts)
    places = 4096 * chunks + coefficients.indices
    return dict(zip(places.tolist(), (coefficients.values > 0).tolist(), strict=True))

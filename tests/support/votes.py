"""What the authors of a round say in their movements, and the sums of it."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from protocol.codec.payload import Coefficients, larger_counts
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


def two_scales(chunks: int, top_k: int, seed: int = 0) -> Coefficients:
    """A payload of values of two scales; every third chunk has fewer than `top_k` of them, every
    fifth has none, and every seventh none of the larger scale.
    """
    chance, numbers = np.random.default_rng(seed), np.arange(chunks) + seed % 5
    counts = np.where(numbers % 3 == 2, chance.integers(0, top_k, chunks), top_k)
    counts[numbers % 5 == 4] = 0
    places, values = [], []
    for number, count in zip(numbers, counts, strict=True):
        places.append(np.sort(chance.permutation(CHUNK_ENTRIES)[:count]))
        larger = 0 if number % 7 == 6 else int(chance.integers(0, count // 2, endpoint=True))
        values.append(chance.permutation(np.repeat([2, 1], [larger, count - larger])))
    signs = chance.choice((-1, 1), int(counts.sum()))
    said = (np.concatenate(values) * signs).astype(np.int16)
    indices = np.concatenate(places).astype(np.uint16)
    lower = chance.integers(150, 200, chunks)
    scales = np.stack([lower, lower + chance.integers(1, 5, chunks)], axis=1)
    sent = Coefficients(counts.astype(np.uint16), indices, said)
    there = np.stack([sent.counts, larger_counts(sent.counts, said)], axis=1) > 0
    return replace(sent, scales=(scales * there).astype(np.uint8))


def signs(chunks: int, top_k: int, seed: int = 0) -> Coefficients:
    """A payload of signs with scales, the same places and counts as in `two_scales`."""
    found = two_scales(chunks, top_k, seed)
    assert found.scales is not None
    lower = found.scales[:, 0].copy()
    return replace(found, values=np.sign(found.values), scales=lower)

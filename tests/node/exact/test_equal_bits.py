"""The exact path ends at bits written down here, in any backend and on any processor."""

import hashlib
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution
from node.exact.demo.aggregate import apply
from protocol.codec.payload import Coefficients
from protocol.limits import CHUNK_ENTRIES, VOTE_SUM_MAX
from tests.node.exact import reference

SHAPES: dict[str, tuple[int, ...]] = {
    "bias": (97,),
    "conv": (66, 3, 5, 5),
    "embedding": (257, 96),
    "wide": (64, 1157),
}
LAYOUT = ChunkLayout.from_shapes(SHAPES)
RATES = (float(np.float32(0.004)), float(np.float32(0.9996)))

DIGEST = "22d09f1b806597a8ca5b36fffe62bc8f5b8737a9ea02e946047096d37b1c9e4d"
"""SHA-256 of the parameters after three steps, in float32, little-endian, one after the other by
name."""


def scrambled(count: int, seed: int) -> np.ndarray:
    """uint32 [count]: numbers without a pattern, the same for ever. MurmurHash3's finalizer, of
    whole numbers.
    """
    found = np.arange(count, dtype=np.uint32) + np.uint32(seed * 0x9E3779B1 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        found = (found ^ found >> np.uint32(shift)) * np.uint32(factor)
    return found


def parameters() -> dict[str, torch.Tensor]:
    """From -1 to 1, in steps of 2^-23."""
    found = {}
    for seed, (name, shape) in enumerate(SHAPES.items()):
        steps = torch.from_numpy(
            (scrambled(int(np.prod(shape)), seed) >> np.uint32(8)).astype(np.float32)
        )
        found[name] = (steps * 2.0**-23 - 1).view(shape)
    return found


def contribution(seed: int, weight: int, top_k: int, value_max: int) -> Contribution:
    """Up to `top_k` coefficients of each chunk; every fifth chunk has none."""
    counts = (scrambled(LAYOUT.chunks, seed) % (top_k + 1)).astype(np.uint16)
    counts[seed % 5 :: 5] = 0
    total, spread = int(counts.sum()), CHUNK_ENTRIES // top_k
    slots = np.concatenate([np.arange(count) for count in counts])
    places = slots * spread + scrambled(total, seed + 100) % spread
    values = 1 + scrambled(total, seed + 200).astype(np.int64) % value_max
    signs = np.where(scrambled(total, seed + 300) & 1, -1, 1)
    sent = Coefficients(counts, places.astype(np.uint16), (signs * values).astype(np.int16))
    return Contribution(weight, sent)


STEPS = (
    [contribution(1, 1, 32, 1), contribution(2, 1, 32, 1), contribution(3, 2, 32, 1)],
    [contribution(4, 70_001, 300, 8), contribution(5, 3, 4096, 128), contribution(6, 1, 1, 1)],
    [contribution(7, (VOTE_SUM_MAX - 5) // 128, 4096, 128), contribution(8, 5, 50, 1)],
)


def digest_of(found: Mapping[str, reference.Floats]) -> str:
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(found[name].astype("<f4").tobytes())
    return digest.hexdigest()


@pytest.mark.usefixtures("each_backend")
def test_three_steps_end_at_the_digest_written_down() -> None:
    found = parameters()
    for contributions in STEPS:
        apply(LAYOUT, found, contributions, *RATES)
    assert digest_of({name: tensor.numpy() for name, tensor in found.items()}) == DIGEST


def test_the_reference_ends_at_the_same_digest() -> None:
    found = {name: tensor.numpy() for name, tensor in parameters().items()}
    for contributions in STEPS:
        found = reference.apply(found, contributions, *RATES)
    assert digest_of(found) == DIGEST

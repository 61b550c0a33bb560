"""What those who add for all are sent, and what they say.

sums           the rounded sums of a range
part list      the names of a payload's parts, whatever root they have
parts          a payload, cut and joined
"""

import numpy as np

from protocol.codec.payload import PayloadShape
from protocol.codec.sums import decode_sums, encode_sums, rounded
from protocol.ids import sha256
from protocol.sums.part_list import list_of, open_list
from protocol.sums.parts import cut, joined
from tests.fuzz.targets import Target, payloads

CHUNKS = 3
"""Chunks of the sums that are tried."""

SHAPE = PayloadShape(5, 3, 2, scaled=True)
PARTS = 3


def judge_sums(blob: bytes) -> None:
    assert encode_sums(decode_sums(blob, CHUNKS)) == blob, "a second encoding"


def judge_part_list(blob: bytes) -> None:
    """Even an author that signs it can name parts in one way only."""
    assert open_list(blob, PARTS, sha256(blob)).blob == blob, "a second encoding"


def judge_parts(blob: bytes) -> None:
    """What decodes is what its parts are joined to."""
    assert joined(cut(blob, SHAPE, PARTS), SHAPE) == blob, "another payload"


def _sums() -> tuple[bytes, ...]:
    units = np.full(CHUNKS, 40, np.uint8)
    found = []
    for seed, density in enumerate((0.0, 0.002, 0.01, 0.9)):
        random = np.random.default_rng(seed)
        sums = random.integers(-9, 10, (CHUNKS, 4096)).astype(np.int32) ** 3
        sums *= random.random(sums.shape) < density
        found.append(encode_sums(rounded(sums, units, 4)))
    return tuple(found)


def targets() -> dict[str, Target]:
    """The readers by name."""
    whole = payloads(SHAPE)
    lists = tuple(list_of(cut(each, SHAPE, PARTS)).blob for each in whole)
    return {
        "sums": Target(judge_sums, _sums()),
        "part list": Target(judge_part_list, lists, 50),
        "parts": Target(judge_parts, whole, 50),
    }

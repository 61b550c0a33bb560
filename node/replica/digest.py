"""Two names for the parameters of a replica: a quick one every round, a strong one at snapshots.

The quick one is a multilinear hash of the raw float32 bits in 64-bit wrap-around arithmetic.
Parameters in sorted-name order are cut into rows of 4096 words (a row never spans two parameters,
the row number runs on):

    h = sum_r b_r * (sum_j a_j * x_rj)  mod 2^64,    a_j and b_r odd, from splitmix64

Addition modulo 2^64 is exact and associative, so devices, thread counts and strip sizes all agree.
Odd multipliers are invertible: a change of any one word always changes h; any other accidental
change is missed with a probability of about 2^-33 at worst (only sign bits differ) and 2^-64
typically. The multipliers are public, so h proves nothing against an adversary: for that there is
`canonical_sha256`. Names and shapes do not enter h: within one run they are the same everywhere.

Source of splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014.
"""

import hashlib
from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

from node.exact.chunks import Shape
from node.replica.canonical import canonical_bytes, sorted_words, strips
from node.replica.share import shapes_of
from protocol.codec.state_hash import ROW_COUNTER_FIRST, ROW_WORDS, odd_multipliers
from protocol.ids import Digest

STRIP_ROWS = 512
"""Rows widened to int64 at once: 16 MiB of extra memory, and as fast as any larger strip."""


def state_digest(
    parameters: Mapping[str, Tensor],
    *,
    among: Mapping[str, Shape] | None = None,
    strip_rows: int = STRIP_ROWS,
) -> int:
    """64-bit hash of all parameter bits, in [0, 2^64).

    parameters: float32 tensors of any shape and device, by name. `among`: the shapes of all
    parameters, if these are some of them; the hashes of all parts add up to that of the whole.
    `strip_rows` bounds the extra memory (32 KiB each) and does not change the result. Raises
    `LocalProtocolError` for another dtype.
    """
    starts = _first_rows(shapes_of(parameters) if among is None else among)
    total = 0
    for name, words in sorted_words(parameters):
        rows_before = starts[name]
        columns = _to_device(odd_multipliers(0, ROW_WORDS), words)
        for strip in strips(words, strip_rows * ROW_WORDS):
            sums = _row_sums(strip, columns)  # int64 [rows]
            weights = odd_multipliers(ROW_COUNTER_FIRST + rows_before, len(sums))
            total += int((sums * _to_device(weights, sums)).sum())
            rows_before += len(sums)
    return total & (2**64 - 1)


def _first_rows(shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The number of each parameter's first row."""
    starts, rows = dict[str, int](), 0
    for name in sorted(shapes):
        starts[name] = rows
        rows += -(-prod(shapes[name]) // ROW_WORDS)
    return starts


def canonical_sha256(parameters: Mapping[str, Tensor]) -> Digest:
    """SHA-256 of the canonical bytes; raises `LocalProtocolError` for a tensor that is not
    float32.
    """
    hasher = hashlib.sha256()
    for piece in canonical_bytes(parameters):
        hasher.update(piece)
    return Digest(hasher.digest())


def _row_sums(words: Tensor, columns: Tensor) -> Tensor:
    """sum_j a_j * x_rj of each row, int64 [rows]; the last row may be short.

    words: int32 [entries], columns: int64 [ROW_WORDS].
    """
    whole = len(words) // ROW_WORDS * ROW_WORDS
    sums = words[:whole].view(-1, ROW_WORDS).to(torch.int64).mul_(columns).sum(1)
    rest = words[whole:]
    if len(rest) == 0:
        return sums
    return torch.cat([sums, (rest * columns[: len(rest)]).sum(0, keepdim=True)])


def _to_device(multipliers: np.ndarray, like: Tensor) -> Tensor:
    """The same 64 bits as int64, where `like` lives."""
    return torch.from_numpy(multipliers.view(np.int64)).to(like.device)

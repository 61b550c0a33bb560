"""The two names of a run's parameters, over their raw bits: what nodes compute with torch, and a
coordinator that checks a file with numpy.

Canonical bytes: per parameter in sorted-name order a header and the float32 bits, all
little-endian. The header is the name's length (u32), the name in UTF-8, the number of dimensions
(u32) and the dimensions (u64 each). Their SHA-256 is the strong name.

The quick one is a multilinear hash in 64-bit wrap-around arithmetic; `node.replica.digest` tells
what it is worth. Parameters in sorted-name order are cut into rows of 4096 words (a row never spans
two parameters, the row number runs on):

    h = sum_r b_r * (sum_j a_j * x_rj)  mod 2^64,    a_j and b_r odd, from splitmix64
"""

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Digest

ROW_WORDS = 4096
"""Words in a row; part of the definition of the hash."""

ROW_COUNTER_FIRST = 1 << 32
"""The rows' multipliers start this far into the splitmix64 sequence: `a` and `b` share none."""


def parameter_header(name: str, shape: Sequence[int]) -> bytes:
    """The header before a parameter's bits in the canonical bytes."""
    text = name.encode()
    return struct.pack("<I", len(text)) + text + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)


def odd_multipliers(first: int, count: int) -> NDArray[np.uint64]:
    """Outputs `first` to `first + count` of splitmix64 from state 0, made odd: uint64 [count]."""
    state = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state ^ (state >> np.uint64(31))) | np.uint64(1)


class StateHash:
    """Both names of parameters that come one after the other, in sorted-name order."""

    def __init__(self) -> None:
        self._sha256, self._total, self._rows = hashlib.sha256(), 0, 0
        self._columns = odd_multipliers(0, ROW_WORDS).view(np.int64)

    def begin(self, name: str, shape: Sequence[int]) -> None:
        """The next parameter."""
        self._sha256.update(parameter_header(name, shape))

    def take(self, bits: bytes) -> None:
        """The next float32 values of the parameter, little-endian: whole rows except the last."""
        self._sha256.update(bits)
        words = np.frombuffer(bits, dtype="<i4").astype(np.int64)
        whole = len(words) // ROW_WORDS * ROW_WORDS
        sums = (words[:whole].reshape(-1, ROW_WORDS) * self._columns).sum(1, dtype=np.int64)
        if rest := len(words) - whole:
            last = (words[whole:] * self._columns[:rest]).sum(dtype=np.int64)
            sums = np.append(sums, last)
        weights = odd_multipliers(ROW_COUNTER_FIRST + self._rows, len(sums)).view(np.int64)
        self._total += int((sums * weights).sum(dtype=np.int64))
        self._rows += len(sums)

    @property
    def state_digest(self) -> int:
        """The quick name, 64 bits."""
        return self._total & (2**64 - 1)

    @property
    def sha256(self) -> Digest:
        """The strong name."""
        return Digest(self._sha256.digest())

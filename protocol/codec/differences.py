"""Parameters as differences to a base that every node holds, one byte each, with a scale for each
block.

    base      uint64, little-endian: the state digest of the parameters that were taken away
    scales    float32 [blocks], little-endian: the largest difference of each `BLOCK` / 127
    levels    int8 [numbers], -127 to 127: difference / scale, rounded

What rounding leaves out stays with the sender, whose next difference to the same base has it again:
errors do not add up.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from protocol.errors import RemoteProtocolError

BLOCK: Final = 256
"""Numbers with one scale: 1.6 % on top of a byte for each."""

DIFFERENCE_MAX: Final = 65504.0
"""Largest difference: that of the largest float16."""

_LEVELS: Final = 127
_BASE: Final = struct.Struct("<Q")
_SCALE_MIN: Final = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """Rounded differences of some parameters to a base."""

    base: int
    scales: npt.NDArray[np.float32]
    """[blocks]"""
    levels: npt.NDArray[np.int8]
    """[numbers]"""

    def __len__(self) -> int:
        return len(self.levels)

    def values(self, first: int, last: int) -> npt.NDArray[np.float64]:
        """The differences of the parameters from place `first` to before `last`, exactly."""
        block = first // BLOCK
        scales = np.repeat(self.scales[block : blocks(last)].astype(np.float64), BLOCK)
        return scales[first - block * BLOCK :][: last - first] * self.levels[first:last]

    def equals(self, other: "Differences") -> bool:
        """Whether these are the same bytes."""
        return to_bytes(self) == to_bytes(other)


def blocks(numbers: int) -> int:
    """Scales of this many parameters."""
    return -(-numbers // BLOCK)


def difference_bytes(numbers: int) -> int:
    """Bytes of the differences of this many parameters."""
    return _BASE.size + 4 * blocks(numbers) + numbers


def rounded(base: int, differences: npt.NDArray[np.float32]) -> Differences:
    """Round differences to the base with this digest; float32 [numbers]. Those that are too large,
    or are no numbers, become something else: a training that diverges is no error here.
    """
    numbers = len(differences)
    padded = np.zeros(blocks(numbers) * BLOCK, np.float32)
    padded[:numbers] = np.nan_to_num(differences, nan=0.0)
    rows = padded.clip(-DIFFERENCE_MAX, DIFFERENCE_MAX).reshape(-1, BLOCK)
    scales = np.abs(rows).max(axis=1, initial=0.0) / np.float32(_LEVELS)
    scales[scales < _SCALE_MIN] = 0.0
    divisors = np.where(scales > 0, scales, np.float32(np.inf))
    levels = np.rint(rows / divisors[:, None]).clip(-_LEVELS, _LEVELS).astype(np.int8)
    return Differences(base, scales.astype(np.float32), levels.reshape(-1)[:numbers])


def to_bytes(differences: Differences) -> bytes:
    """The bytes of differences; those of the same ones are always the same."""
    scales = differences.scales.astype("<f4", copy=False)
    return _BASE.pack(differences.base) + scales.tobytes() + differences.levels.tobytes()


def from_bytes(body: memoryview, numbers: int) -> Differences:
    """The differences of this many parameters in these bytes, as views of them.

    Raises `RemoteProtocolError`, and nothing else, for bytes that `to_bytes` does not make.
    """
    if body.nbytes != (expected := difference_bytes(numbers)):
        raise RemoteProtocolError(
            f"expected {expected} bytes of {numbers} differences, got {body.nbytes}"
        )
    (base,) = _BASE.unpack(body[: _BASE.size])
    middle = _BASE.size + 4 * blocks(numbers)
    scales: npt.NDArray[Any] = np.frombuffer(body[_BASE.size : middle], "<f4")
    levels = np.frombuffer(body[middle:], np.int8)
    most = np.float32(DIFFERENCE_MAX) / np.float32(_LEVELS)
    if not ((scales >= 0) & (scales <= most) & ~np.signbit(scales)).all():
        raise RemoteProtocolError(f"expected scales from 0 to {most:g}, got others")
    if levels.min(initial=0) < -_LEVELS:
        raise RemoteProtocolError(f"expected levels from -{_LEVELS} to {_LEVELS}, got -128")
    return Differences(base, scales, levels)

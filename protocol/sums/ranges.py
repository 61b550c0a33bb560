"""The ranges into which the chunks of a model are cut, so that many can share the work of adding.

range i of n    chunks from C * i // n up to C * (i + 1) // n, C those of the model
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from protocol.errors import LocalProtocolError

RANGES_MIN: Final = 16
"""Ranges of a small crowd: as many shares of the work can be given by measured uplinks."""

RANGES_MAX: Final = 64
"""Ranges of a large crowd: each author sends that many parts to particular nodes."""


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Chunks of a model, at least one."""

    first: int
    stop: int

    @property
    def chunks(self) -> int:
        """How many there are."""
        return self.stop - self.first

    @property
    def slice(self) -> slice:
        """The place in an array of all chunks."""
        return slice(self.first, self.stop)


def range_count(chunks: int, authors: int) -> int:
    """Ranges of a round: the largest power of two that is at most the number of authors, between
    RANGES_MIN and RANGES_MAX, and no more than there are chunks.
    """
    crowd = 1 << (max(1, authors).bit_length() - 1)
    return max(1, min(chunks, RANGES_MAX, max(RANGES_MIN, crowd)))


def ranges_of(chunks: int, count: int) -> tuple[Range, ...]:
    """`count` ranges of as many chunks each as the others, or one more; ascending.

    `LocalProtocolError` unless `count` is 1 to RANGES_MAX, and each has a chunk.
    """
    if not 1 <= count <= min(chunks, RANGES_MAX):
        raise LocalProtocolError(
            f"expected 1 to {min(chunks, RANGES_MAX)} ranges of {chunks} chunks, got {count}"
        )
    bounds = [chunks * number // count for number in range(count + 1)]
    return tuple(Range(first, stop) for first, stop in pairwise(bounds))

"""The size of every payload of a run: chunks, coefficients, bits of a value, and scales.

Bounds what a reader of payloads takes before it looks at one.
"""

from dataclasses import dataclass
from typing import Final, Self

from protocol.codec.bits import rice_parameter, row_bytes
from protocol.codec.payload_header import (
    MAGIC,
    MAGIC_SCALED,
    ROUND_MAX,
    Header,
    Sizes,
    head_bytes,
)
from protocol.errors import SettingsError
from protocol.ids import PeerId, RunId
from protocol.limits import CHUNK_ENTRIES, CHUNKS_MAX, PAYLOAD_BYTES_LIMIT
from protocol.sections.algorithm import AlgorithmSpec

VALUE_BITS: Final = (1, 2, 4, 8)
"""Bits that a value may have."""

SCALED_VALUE_BITS: Final = (1, 2)
"""Bits that one with a scale may have: a sign, or a sign and one of two scales."""


@dataclass(frozen=True, slots=True)
class PayloadShape:
    """The size of every payload of a run, as the run file fixes it; `SettingsError` out of
    bounds.
    """

    chunks: int
    """Chunks of the model, 1 to CHUNKS_MAX."""

    top_k: int
    """Coefficients kept per chunk at most, 1 to 4096."""

    value_bits: int
    """Bits per value: 1, 2, 4 or 8."""

    scaled: bool = False
    """Whether each chunk states a scale for each magnitude of its values; without it only their
    proportions count."""

    def __post_init__(self) -> None:
        if not 1 <= self.chunks <= CHUNKS_MAX:
            raise SettingsError(f"expected 1 to {CHUNKS_MAX} chunks, got {self.chunks}")
        if not 1 <= self.top_k <= CHUNK_ENTRIES:
            raise SettingsError(f"expected a top_k of 1 to {CHUNK_ENTRIES}, got {self.top_k}")
        if self.value_bits not in VALUE_BITS:
            raise SettingsError(f"expected value_bits of {VALUE_BITS}, got {self.value_bits}")
        if self.scaled and self.value_bits not in SCALED_VALUE_BITS:
            raise SettingsError(
                f"expected value_bits of {SCALED_VALUE_BITS} with scales, got {self.value_bits}"
            )
        if self.bytes_max > PAYLOAD_BYTES_LIMIT:
            raise SettingsError(
                f"expected payloads of at most {PAYLOAD_BYTES_LIMIT} bytes, got up to "
                f"{self.bytes_max} "
                f"from {self}: lower top_k or value_bits"
            )

    @classmethod
    def of(cls, algorithm: AlgorithmSpec, chunks: int) -> Self:
        """That of a run whose model has this many chunks."""
        scaled = algorithm.facts.scaled
        return cls(chunks, algorithm.top_k, algorithm.value_bits, scaled)

    @property
    def sizes(self) -> Sizes:
        """The sizes in the header of a payload of this shape."""
        magic = MAGIC_SCALED if self.scaled else MAGIC
        return Sizes(magic, self.chunks, self.top_k, self.value_bits)

    @property
    def value_max(self) -> int:
        """Largest magnitude of a value."""
        return 1 << (self.value_bits - 1)

    @property
    def scale_count(self) -> int:
        """Scales of a chunk: 0, 1 or 2."""
        return self.value_max * self.scaled

    @property
    def count_bits(self) -> int:
        """Bits of the count of a short chunk, which is 0 to top_k - 1."""
        return (self.top_k - 1).bit_length()

    @property
    def bytes_max(self) -> int:
        """Bytes that no payload of this shape exceeds; some payload comes within 64 bytes of it.

        A chunk of c coefficients costs c * (b + 1 + value_bits) bits and its quotients' zeros,
        which are at most (4096 - c) >> b, the gaps of a chunk summing to 4096 - c. That grows with
        c, so the worst chunk is a full one or, for its count, one that lacks one coefficient; the
        bits that rows lose to padding are added on top.
        """
        rice_bits = rice_parameter(self.top_k)

        def chunk_bits(count: int) -> int:
            return count * (rice_bits + 1 + self.value_bits) + (
                (CHUNK_ENTRIES - count) >> rice_bits
            )

        worst_bits = max(chunk_bits(self.top_k), self.count_bits + chunk_bits(self.top_k - 1))
        rows = self.count_bits + rice_bits + 1 + self.value_bits
        widest = Header(RunId("0" * 32), ROUND_MAX, PeerId("0" * 32))
        head = len(head_bytes(widest, self.sizes, self.chunks)) + self.chunks * self.scale_count
        return head + row_bytes(self.chunks) + row_bytes(self.chunks * worst_bits) + rows

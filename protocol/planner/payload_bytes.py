"""Expected bytes of one DeMo payload whose chunks are full: what a node sends once each round.

The indices of a chunk are taken as k of 4096 drawn evenly, which real ones nearly are, so a gap is
at least m with probability C(4096 - m, k) / C(4096, k).
"""

from math import exp, lgamma

from protocol.codec.bits import rice_parameter
from protocol.codec.payload import PayloadShape
from protocol.limits import CHUNK_ENTRIES

HEADER_BYTES = 60
"""Bytes of a container before its planes, about."""


def index_bits(top_k: int) -> float:
    """Mean bits of one index in Rice code: remainder, the quotient's zeros, and the one that ends
    it.
    """
    width = rice_parameter(top_k)
    multiples = range(1 << width, CHUNK_ENTRIES - top_k + 1, 1 << width)
    return width + 1 + sum(_gap_reaches(length, top_k) for length in multiples)


def payload_bytes(shape: PayloadShape) -> float:
    """Expected bytes of a payload of full chunks."""
    coefficients = shape.chunks * shape.top_k
    scales = shape.chunks * shape.scaled
    bits = coefficients * (index_bits(shape.top_k) + shape.value_bits)
    return HEADER_BYTES + scales + bits / 8


def _gap_reaches(length: int, top_k: int) -> float:
    """Probability that a gap is at least `length`."""

    def log_choices(entries: int) -> float:
        return lgamma(entries + 1) - lgamma(top_k + 1) - lgamma(entries - top_k + 1)

    return exp(log_choices(CHUNK_ENTRIES - length) - log_choices(CHUNK_ENTRIES))

"""Expected bytes of one payload, by the run's algorithm: what a node makes in a round.

demo, local_steps   votes whose chunks are full; the indices of a chunk are taken as k of 4096
                    drawn evenly, which real ones nearly are, so a gap is at least m with
                    probability C(4096 - m, k) / C(4096, k)
gossip-adam         all parameters, in the form that the run file names; in a round of the mean
                    in float32
"""

from math import exp, lgamma

from protocol.codec.bits import rice_parameter
from protocol.codec.differences import difference_bytes
from protocol.codec.parameters import payload_bytes_max
from protocol.codec.payload import PayloadShape
from protocol.limits import CHUNK_ENTRIES
from protocol.planner.parameters import Size
from protocol.sections.algorithm import AlgorithmSpec

HEADER_BYTES = 60
"""Bytes of a container before its planes, about."""


def payload_bytes(algorithm: AlgorithmSpec, size: Size) -> float:
    """Expected bytes of a payload of a usual round."""
    if algorithm.facts.sends_parameters:
        return parameters_bytes(algorithm, size.parameters)
    return votes_bytes(PayloadShape.of(algorithm, size.chunks))


def mean_bytes(parameters: int) -> float:
    """Bytes of a payload in a round of the mean, where nodes mix parameters."""
    return HEADER_BYTES + 4 * parameters


def parameters_bytes(algorithm: AlgorithmSpec, parameters: int) -> float:
    """Bytes of all parameters in the form in which neighbours send them."""
    match algorithm.mixing.exchange:
        case "float32":
            return HEADER_BYTES + 4 * parameters
        case "float16":
            return HEADER_BYTES + 2 * parameters
        case "int8":
            return HEADER_BYTES + difference_bytes(parameters)


def largest_bytes(algorithm: AlgorithmSpec, size: Size) -> int:
    """Bytes of the largest payload of a run."""
    if algorithm.facts.sends_parameters:
        return payload_bytes_max(size.parameters)
    return PayloadShape.of(algorithm, size.chunks).bytes_max


def index_bits(top_k: int) -> float:
    """Mean bits of one index in Rice code: remainder, the quotient's zeros, and the one that ends
    it.
    """
    width = rice_parameter(top_k)
    multiples = range(1 << width, CHUNK_ENTRIES - top_k + 1, 1 << width)
    return width + 1 + sum(_gap_reaches(length, top_k) for length in multiples)


def votes_bytes(shape: PayloadShape) -> float:
    """Expected bytes of a payload of votes whose chunks are full."""
    coefficients = shape.chunks * shape.top_k
    scales = shape.chunks * shape.scale_count
    bits = coefficients * (index_bits(shape.top_k) + shape.value_bits)
    return HEADER_BYTES + scales + bits / 8


def _gap_reaches(length: int, top_k: int) -> float:
    """Probability that a gap is at least `length`."""

    def log_choices(entries: int) -> float:
        return lgamma(entries + 1) - lgamma(top_k + 1) - lgamma(entries - top_k + 1)

    return exp(log_choices(CHUNK_ENTRIES - length) - log_choices(CHUNK_ENTRIES))

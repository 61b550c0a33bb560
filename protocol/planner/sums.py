"""What a node sends in a round that summers add for all, and the crowd from which they pay.

    up     its payload to the two summers of each range, and its share of spreading the results
    down   the results and, where all add, as many parts as it sends; both are as large

    result of R authors, by entry      H(q) + q bits, times what the code takes over its entropy
    q, the share of levels             half of the entries with a vote, 0.28 of all at most

A vote that is alone is rounded to a level about each second time, and of many votes a good quarter
are beyond half a step. Real results are within a third of that, by where the step, a power of two,
comes to lie; those of the study (docs/results/sums.md) are within a twentieth.
"""

from math import log2
from typing import Any, Final

from protocol.codec.payload_shape import PayloadShape
from protocol.limits import CHUNK_ENTRIES, MEMBERS_MAX
from protocol.planner.parameters import Size, has_layout
from protocol.planner.payload_bytes import HEADER_BYTES, payload_bytes, votes_bytes
from protocol.runfile import RunSpec
from protocol.sections.algorithm import AlgorithmSpec
from protocol.sums.part_list import LIST_BYTES_MAX
from protocol.sums.ranges import RANGES_MAX, range_count

SUMMED: Final[dict[str, Any]] = {"top_k": 384, "value_bits": 2, "gain": 3.0, "fade": 0.0}
"""Values of the algorithm in a run with sums: a payload counts twice whatever the crowd, so it is
richer. Those of the study."""

AUTHORS_MIN: Final = 9
"""Fewest authors of a round with sums: of fewer, payloads to everybody teach no less."""

SUMMERS: Final = 2
"""Summers of a range."""

_DENSE: Final = 0.28
"""Share of levels among entries that all have votes."""

_CODE: Final = 1.03
"""Bytes of a result over the entropy of its levels."""


def summed(algorithm: AlgorithmSpec) -> AlgorithmSpec:
    """The algorithm with the payloads of a run with sums."""
    return algorithm.model_copy(update=SUMMED)


def with_sums(spec: RunSpec, size: Size) -> RunSpec:
    """The run with summers from the crowd on from which they pay; as it is where they never do."""
    if not (least := authors_from(spec.algorithm, size)):
        return spec
    rounds = spec.rounds.model_copy(update={"sums": least})
    return spec.model_copy(update={"rounds": rounds, "algorithm": summed(spec.algorithm)})


def parts_bytes(algorithm: AlgorithmSpec, size: Size, authors: int) -> float:
    """Expected bytes of a payload in parts, with the list of their names."""
    ranges = range_count(size.chunks, authors)
    names = LIST_BYTES_MAX / RANGES_MAX
    whole = votes_bytes(PayloadShape.of(algorithm, size.chunks))
    return whole + (ranges - 1) * HEADER_BYTES + ranges * names


def results_bytes(algorithm: AlgorithmSpec, size: Size, authors: int) -> float:
    """Expected bytes of the results of all ranges together."""
    voted = 1 - (1 - algorithm.top_k / CHUNK_ENTRIES) ** authors
    share = min(voted / 2, _DENSE)
    bits = -share * log2(share) - (1 - share) * log2(1 - share) + share
    return _CODE * bits * size.chunks * CHUNK_ENTRIES / 8


def exchanged_bytes(spec: RunSpec, size: Size, members: int) -> tuple[float, float]:
    """Expected bytes of a payload in a round of this many members, in parts where summers add, and
    of the results of all ranges: 0 where every payload goes to everybody, as it does where the
    chunks of the model are not known without torch.
    """
    algorithm = spec.algorithm
    if not (has_layout(spec.model) and 0 < spec.rounds.sums <= members):
        return payload_bytes(algorithm, size), 0.0
    return parts_bytes(algorithm, size, members), results_bytes(algorithm, size, members)


def round_bytes(spec: RunSpec, size: Size, members: int) -> float:
    """Expected bytes that a node sends in a usual round of this many members, and as many that it
    receives.
    """
    payload, results = exchanged_bytes(spec, size, members)
    if results:
        return SUMMERS * payload + results
    others = max(0, members - 1) if spec.algorithm.meets_all else 1
    return others * payload


def authors_from(algorithm: AlgorithmSpec, size: Size) -> int:
    """The least crowd from which a round with sums sends less than the algorithm as it is, with
    every payload to everybody; 0: none does, or the algorithm has no sums.
    """
    if not algorithm.facts.steps_within_round:
        return 0
    alone, richer = payload_bytes(algorithm, size), summed(algorithm)
    for authors in range(AUTHORS_MIN, MEMBERS_MAX + 1):
        if _with_sums(richer, size, authors) < (authors - 1) * alone:
            return authors
    return 0


def _with_sums(algorithm: AlgorithmSpec, size: Size, authors: int) -> float:
    sent = SUMMERS * parts_bytes(algorithm, size, authors)
    return sent + results_bytes(algorithm, size, authors)

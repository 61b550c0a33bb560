"""The results of a round's ranges as all nodes read them, and how far they may move.

    unit of S in a chunk       2^(E - r - 2)                  `protocol.sums.movements`
    no author moves further    s * sqrt(k), s the scale of the largest code that counts
    nor does their mean:       sum(S^2) <= k * (W * m)^2 * 4^(e + r - E)            s = m / 4 * 2^e
    rounding at most doubles   sum(l^2) * 4^t <= 4 times that

A chunk beyond that is the sum of no movements, whoever signed it, and nothing moves there; nor in
a range whose result is not one. Both follow from the bytes and the set of authors alone. Each side
of the comparison is a whole number below 2^53 times a power of four: float64 compares exactly.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from protocol.codec.commit_sums import AuthorSet
from protocol.codec.commits import Entry
from protocol.codec.payload import Blob
from protocol.codec.scales import EXPONENT_MIN, exponents, mantissas
from protocol.codec.sums import Levels, concatenated, decode_sums
from protocol.errors import RemoteProtocolError
from protocol.schedule import float32_value
from protocol.sections.algorithm import AlgorithmSpec
from protocol.sums.adding import Author, bounded
from protocol.sums.movements import range_bits, scaled_weights
from protocol.sums.ranges import Range


def author_set(authors: Sequence[Author]) -> AuthorSet:
    """What a step needs to know of these authors; those without a scale that counts move nothing,
    and have no weight.
    """
    moving = [author for author in authors if author.code_max >= 0]
    weights = scaled_weights([author.samples for author in moving])
    most = max((author.code_max for author in moving), default=-1)
    return AuthorSet(len(authors), len(moving), max(1, sum(weights)), most)


def authors_behind(
    entries: Iterable[Entry], learning_rate_bits: int, algorithm: AlgorithmSpec
) -> AuthorSet:
    """What a step needs to know of the authors of a commit."""
    weights = ((entry.author, entry.weight) for entry in entries)
    return author_set(bounded(weights, float32_value(learning_rate_bits), algorithm))


def read_results(
    blobs: Sequence[Blob], ranges: Sequence[Range]
) -> tuple[Levels, dict[int, RemoteProtocolError]]:
    """The levels of all chunks, from the results of the ranges in ascending order; and why results
    of some ranges, by their number, are none: nothing moves there.
    """
    refused = dict[int, RemoteProtocolError]()
    parts = []
    for number, (blob, among) in enumerate(zip(blobs, ranges, strict=True)):
        try:
            parts.append(decode_sums(blob, among.chunks))
        except RemoteProtocolError as error:
            refused[number] = error
            parts.append(_nothing(among.chunks))
    return concatenated(parts), refused


def within_reach(levels: Levels, authors: AuthorSet, top_k: int) -> npt.NDArray[np.bool_]:
    """[chunks]: whether the authors could have moved a chunk so far."""
    if authors.code_max < 0:
        return np.asarray(levels.counts == 0)
    code = np.array([authors.code_max], np.uint8)
    weighed = authors.weight_sum * int(mantissas(code)[0])
    largest = int(exponents(code)[0]) - EXPONENT_MIN + range_bits(authors.weight_sum)
    powers = largest - levels.exponents.astype(np.int64) - levels.steps
    rows = np.repeat(np.arange(len(levels.counts)), levels.counts)
    squares = np.bincount(rows, levels.values.astype(np.float64) ** 2, len(levels.counts))
    reach = np.ldexp(4.0 * top_k * weighed * weighed, 2 * powers)
    return np.asarray(squares <= reach)


def _nothing(chunks: int) -> Levels:
    """Levels of chunks in which nothing moves."""
    none = np.zeros(chunks, np.uint8)
    places = np.zeros(0, np.uint16)
    return Levels(none, none, none.astype(np.uint16), places, places.astype(np.int8))

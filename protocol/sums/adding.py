"""The sum of one range of chunks, which whoever adds the same parts says in the same bytes.

    authors    a fixed set: whose movements count, their samples, and the bounds of their scales
    parts      one of each author (`protocol.sums.parts`), whole and named by its root
    result     the exact sums, rounded to steps (`protocol.codec.sums`)

A part that does not decode, or is not of its author and round, says nothing; nor does an author
that has no part in the range. Its weight counts all the same, because other ranges count it: W is
one number in all ranges. So a result is a function of the bytes and the set alone. Neither the
order of the authors nor the groups in which they are added changes a bit, and the results of all
ranges are that of the whole payloads.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.codec.payload import Blob, Coefficients, Header, PayloadShape, decode
from protocol.codec.scales import EXPONENT_MIN
from protocol.codec.sums import Levels, concatenated, encode_sums, rounded
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.limits import CHUNK_ENTRIES, MEMBERS_MAX
from protocol.schedule import float32_value
from protocol.sections.algorithm import AlgorithmSpec
from protocol.sums.asked import Question
from protocol.sums.movements import Counted, Movement, changes_of, code_max_of
from protocol.sums.parts import shape_of, silence
from protocol.sums.ranges import ranges_of

COARSE: Final = 4
"""d of `protocol.codec.sums`: a step of about twice the root mean square of a chunk's sums."""

STRIP_CHUNKS = 128
"""Chunks whose sums are held at a time: 2 MiB, and twice that of squares."""


@dataclass(frozen=True, slots=True)
class Author:
    """One of the set whose parts are added."""

    peer: PeerId

    samples: int
    """Samples that the round counts for it, at least 1."""

    code_max: int
    """Code of the largest scale that its steps could have made (`movements.code_max`)."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the authors of a round moved together in one range."""

    blob: bytes
    """The rounded sums, canonical."""

    refused: Mapping[PeerId, str]
    """Authors whose part says nothing, and the reason."""

    @property
    def digest(self) -> Digest:
        """The name of the result, equal for all who added the same."""
        return sha256(self.blob)


def result_of(
    run_id: RunId,
    round: int,
    authors: Sequence[Author],
    parts: Mapping[PeerId, Blob],
    shape: PayloadShape,
    coarse: int = COARSE,
    *,
    silent: Collection[PeerId] = (),
) -> Result:
    """The result of one range of chunks, of this `shape`; `coarse` is the run's rounding. The
    `silent` of the authors have no part in the range, and say nothing.

    `LocalProtocolError` unless there is a part of each other author and of nobody else.
    """
    peers = sorted(author.peer for author in authors)
    speaking = [peer for peer in peers if peer not in silent]
    if not len(set(peers)) == len(peers) <= MEMBERS_MAX or speaking != sorted(parts):
        raise LocalProtocolError(
            f"expected the parts of {len(speaking)} authors, at most {MEMBERS_MAX}, each once, got "
            f"those of {len(parts)}"
        )
    movements, refused = list[Movement](), dict[PeerId, str]()
    for author in authors:
        if author.peer in silent:
            movements.append(Movement(author.samples, author.code_max, silence(shape)))
            continue
        try:
            sent = _read(parts[author.peer], Header(run_id, round, author.peer), shape)
        except RemoteProtocolError as error:
            refused[author.peer] = str(error)
            sent = silence(shape)
        movements.append(Movement(author.samples, author.code_max, sent))
    counted = Counted(movements, shape.chunks)
    return Result(encode_sums(levels_of(counted, shape.chunks, coarse)), refused)


def answer_to(
    question: Question, parts: Mapping[PeerId, Blob], shape: PayloadShape, algorithm: AlgorithmSpec
) -> Result:
    """The result that summers are asked for, from the parts of its authors that are not silent;
    `shape` is that of whole payloads. Raises what `result_of` raises.
    """
    samples = ((each.author, each.samples) for each in question.authors)
    authors = bounded(samples, float32_value(question.learning_rate_bits), algorithm)
    among = ranges_of(shape.chunks, question.ranges)[question.number]
    silent = {question.authors[place].author for place in question.silent}
    about = question.run_id, question.round, authors, parts
    return result_of(*about, shape_of(shape, among), silent=silent)


def bounded(
    samples: Iterable[tuple[PeerId, int]], learning_rate: float, algorithm: AlgorithmSpec
) -> list[Author]:
    """Authors of this many samples each, with the bounds of their scales."""
    return [
        Author(peer, count, code_max_of(count, learning_rate, algorithm)) for peer, count in samples
    ]


def levels_of(counted: Counted, chunks: int, coarse: int) -> Levels:
    """The rounded sums of these chunks, all of them."""
    everybody = range(len(counted.authors))
    strips = []
    for first in range(0, chunks, STRIP_CHUNKS):
        stop = min(chunks, first + STRIP_CHUNKS)
        sums, exponents = exact_sums(counted, everybody, first, stop)
        strips.append(rounded(sums, exponents, coarse))
    return concatenated(strips)


def exact_sums(
    counted: Counted, numbers: Iterable[int], first: int, stop: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """(S of some of the authors, by their `numbers`, [n, 4096], and the units of the chunks, [n])
    in the n chunks from `first` up to `stop`.
    """
    sizes, largest = counted.sizes(first, stop)
    sums = np.zeros((stop - first, CHUNK_ENTRIES), np.int32)
    flat, starts = sums.reshape(-1), np.arange(stop - first) * CHUNK_ENTRIES
    for number in numbers:
        sent = counted.within(number, first, stop)
        places = np.repeat(starts, sent.counts) + sent.indices  # an author has each place once
        flat[places] += changes_of(sent.values, sent.counts, sizes[number])
    return sums, (largest - EXPONENT_MIN).astype(np.uint8)


def _read(part: Blob, header: Header, shape: PayloadShape) -> Coefficients:
    """What a part says; `RemoteProtocolError` if it does not decode or has another header."""
    found, sent = decode(part, shape)
    if found != header:
        raise RemoteProtocolError(
            f"expected a part of {header.author} for round {header.round}, got one of "
            f"{found.author} for round {found.round}"
        )
    return sent

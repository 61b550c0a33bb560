"""What local steps add to the stand-in for a network: the size of what an author moved.

An author's scale is the largest that its samples and the rate of its round allow. So a commit that
counts other samples than the author trained, or that is applied at a bound of another round, cannot
pass unseen: the scale says how much was trained, and the weight has to say the same.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution
from node.exact.local_steps.aggregate import MovementSum
from node.exact.local_steps.results import LevelSum
from protocol.codec.commit_sums import RangeSum, Sums
from protocol.codec.commits import Commit
from protocol.codec.payload import PayloadShape
from protocol.ids import Digest
from protocol.limits import CHUNK_SIDE
from protocol.runfile import AlgorithmSpec
from protocol.schedule import float32_value
from protocol.sums.adding import Author, result_of
from protocol.sums.movements import Movement, code_max, code_max_of
from protocol.sums.parts import cut, shape_of
from protocol.sums.ranges import ranges_of
from protocol.sums.results import read_results

LAYOUT = ChunkLayout.from_shapes({"positions": (2 * CHUNK_SIDE, 2 * CHUNK_SIDE)})
"""As many chunks as the stand-in has."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an author trained in a round."""

    samples: int
    rate: float

    def code_max(self, algorithm: AlgorithmSpec, top_k: int) -> int:
        """Code of the largest scale of this work; below 0 if it may move nothing."""
        steps = -(-self.samples // algorithm.local_samples)
        return code_max(self.rate, steps, top_k)


def digest_of_movements(
    contributions: Iterable[Contribution], algorithm: AlgorithmSpec, rate: float, top_k: int
) -> bytes:
    """Digest of the sums and units from which a replica makes the step of a commit."""
    movements = [
        Movement(each.weight, Work(each.weight, rate).code_max(algorithm, top_k), each.coefficients)
        for each in contributions
    ]
    sums = torch.empty(LAYOUT.chunks, CHUNK_SIDE, CHUNK_SIDE)
    units = MovementSum(LAYOUT, movements).sum_strip(0, sums)
    return hashlib.sha256(sums.numpy().tobytes() + units.numpy().tobytes()).digest()


def digest_of_results(sums: Sums, blobs: Sequence[bytes], algorithm: AlgorithmSpec) -> bytes:
    """The same where summers have added: from the results of ranges, empty where there is none."""
    ranges, found = ranges_of(LAYOUT.chunks, sums.ranges), [b""] * sums.ranges
    for result, blob in zip(sums.results, blobs, strict=True):
        found[result.number] = blob
    levels, _ = read_results(found, ranges)
    sums_of = torch.empty(LAYOUT.chunks, CHUNK_SIDE, CHUNK_SIDE)
    total = LevelSum(LAYOUT, levels, sums.authors, algorithm.top_k)
    units = total.sum_strip(0, sums_of)
    return hashlib.sha256(sums_of.numpy().tobytes() + units.numpy().tobytes()).digest()


def authors_of(commit: Commit, algorithm: AlgorithmSpec) -> list[Author]:
    """The authors of a commit, with the bounds of their scales."""
    rate = float32_value(commit.learning_rate_bits)
    return [
        Author(each.author, each.samples, code_max_of(each.samples, rate, algorithm))
        for each in commit.entries
    ]


def added_again(
    commit: Commit,
    result: RangeSum,
    algorithm: AlgorithmSpec,
    payload_behind: Callable[[Digest], bytes],
) -> bytes:
    """The result of a range, added from the payloads that its authors made."""
    assert commit.sums is not None, "a commit with a result has sums"
    shape, count = PayloadShape.of(algorithm, LAYOUT.chunks), commit.sums.ranges
    among = ranges_of(shape.chunks, count)[result.number]
    silent = {commit.entries[place].author for place in result.silent}
    parts = {
        each.author: cut(payload_behind(each.digest), shape, count)[result.number]
        for each in commit.entries
        if each.author not in silent
    }
    authors, of_range = authors_of(commit, algorithm), shape_of(shape, among)
    found = result_of(commit.run_id, commit.round, authors, parts, of_range, silent=silent)
    return found.blob

"""The votes of one round, summed strip by strip: S = sum_i w_i * q_i, exact in any order.

On a CPU the places of a strip are found in numpy, as they are needed. To an accelerator all that was sent travels in
one piece first, and is put in its place there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from node.demo.accelerator import is_accelerator
from node.demo.chunks import ChunkLayout
from node.demo.dct import transposed
from protocol.errors import LocalProtocolError
from protocol.limits import CHUNK_ENTRIES, VOTE_SUM_MAX
from protocol.payload import Coefficients


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """One author's votes in a commit."""

    weight: int
    """Samples that the commit counts for the author, at least 1."""

    coefficients: Coefficients


@dataclass(frozen=True, slots=True, eq=False)
class _IndexedContribution:
    """A contribution that fits the model."""

    weight: int
    coefficients: Coefficients
    starts: npt.NDArray[np.int64]
    """[chunks + 1]: where each chunk's coefficients begin."""


class StackedContributions(NamedTuple):
    """The votes of a round on the host, author after author."""

    bounds: npt.NDArray[np.int64]
    """[R, chunks + 1]: where each author's coefficients of each chunk begin."""

    indices: npt.NDArray[np.uint16]
    """[n]: places in the chunk."""

    values: npt.NDArray[np.int16]
    """[n]"""

    weights: npt.NDArray[np.float32]
    """[R]"""


class Votes:
    """The contributions of one round, summed strip by strip."""

    def __init__(self, layout: ChunkLayout, contributions: Sequence[Contribution], device: torch.device) -> None:
        """`LocalProtocolError` if they do not fit the layout, or could sum to more than float32 counts exactly."""
        self._chunks = layout.chunks
        self._indexed = [_indexed(contribution, layout.chunks) for contribution in contributions]
        self._weights = np.array([author.weight for author in self._indexed], np.float32)
        self.sum_max = sum(author.weight * _magnitude(author.coefficients) for author in self._indexed)
        """No sum of votes can be larger in magnitude."""
        if self.sum_max > VOTE_SUM_MAX:
            raise LocalProtocolError(f"expected votes that sum to at most {VOTE_SUM_MAX}, got up to {self.sum_max}")
        self._sent = _sent(self._indexed, self._weights, device) if self._indexed and is_accelerator(device) else None

    def stacked(self) -> StackedContributions:
        """All that was sent, author after author."""
        sent = [author.coefficients for author in self._indexed]
        indices = np.concatenate([np.zeros(0, np.uint16), *(author.indices for author in sent)])
        values = np.concatenate([np.zeros(0, np.int16), *(author.values for author in sent)])
        return StackedContributions(_bounds(self._indexed, self._chunks), indices, values, self._weights)

    def sum_strip(self, first: int, strip: Tensor) -> Tensor:
        """Fill float32 [n, 64, 64] with S^T of the chunks from `first` on, and return it."""
        strip.zero_()
        if self._indexed:
            stop = first + len(strip)
            places, votes = self._sent.cut(first, stop) if self._sent else self._cut(first, stop)
            strip.view(-1).scatter_add_(0, places, votes)
        return strip

    def _cut(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """Of what was sent for a strip: int64 [n], where in the strip, and float32 [n], what it counts."""
        parts = [(author, slice(author.starts[first], author.starts[stop])) for author in self._indexed]
        counts = np.stack([author.coefficients.counts[first:stop] for author in self._indexed])  # [R, n]
        chunk_starts = np.tile(np.arange(stop - first) * CHUNK_ENTRIES, len(parts))
        places = np.repeat(chunk_starts, counts.ravel())
        places += transposed(np.concatenate([author.coefficients.indices[sent] for author, sent in parts]))
        votes = np.concatenate([author.coefficients.values[sent] for author, sent in parts], dtype=np.float32)
        votes *= np.repeat(self._weights, counts.sum(1, dtype=np.int64))
        return torch.from_numpy(places), torch.from_numpy(votes)


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """All that was sent, on an accelerator, author after author."""

    places: Tensor
    """int32 [n]: counted from the first entry of chunk 0."""

    votes: Tensor
    """float32 [n]: what each counts."""

    bounds: npt.NDArray[np.int64]
    """[R, chunks + 1], on the host: where each author's coefficients of each chunk begin."""

    def cut(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """Of what was sent for a strip: int64 [n], where in the strip, and float32 [n], what it counts."""
        parts = [slice(*bounds) for bounds in self.bounds[:, [first, stop]].tolist()]
        places = torch.cat([self.places[part] for part in parts]).long()
        return places.sub_(first * CHUNK_ENTRIES), torch.cat([self.votes[part] for part in parts])


def _sent(authors: Sequence[_IndexedContribution], weights: npt.NDArray[np.float32], device: torch.device) -> _Sent:
    """Carries contributions over in one copy of 16-bit numbers and one of their weights; waits for nothing else."""
    sent = [author.coefficients for author in authors]
    totals = [len(author.indices) for author in sent]
    chunks, count = len(authors[0].starts) - 1, sum(totals)
    arrays = [getattr(author, name) for name in ("counts", "indices", "values") for author in sent]
    pinned = torch.empty(chunks * len(sent) + 2 * count, dtype=torch.int16, pin_memory=device.type == "cuda")
    torch.cat([torch.from_numpy(array.view(np.int16)) for array in arrays], out=pinned)  # unlike numpy in all threads
    there = pinned.to(device, non_blocking=True)
    counts, indices, values = torch.split(there, [chunks * len(sent), count, count])
    rows = torch.arange(chunks, dtype=torch.int32, device=device).repeat(len(sent))
    places = rows.repeat_interleave(counts.long(), output_size=count).mul_(CHUNK_ENTRIES).add_(transposed(indices))
    shares = torch.tensor(totals).to(device, non_blocking=True)
    votes = torch.from_numpy(weights).to(device, non_blocking=True).repeat_interleave(shares, output_size=count)
    votes.mul_(values)
    return _Sent(places, votes, _bounds(authors, chunks))


def _bounds(authors: Sequence[_IndexedContribution], chunks: int) -> npt.NDArray[np.int64]:
    """[R, chunks + 1]: where each author's coefficients of each chunk begin, author after author."""
    bounds, total = np.zeros((len(authors), chunks + 1), np.int64), 0
    for row, author in zip(bounds, authors, strict=True):
        np.add(author.starts, total, out=row)
        total = int(row[-1])
    return bounds


def _indexed(contribution: Contribution, chunks: int) -> _IndexedContribution:
    """A contribution whose arrays fit each other and the model."""
    weight, sent = contribution.weight, contribution.coefficients
    total = int(sent.counts.sum(dtype=np.int64))
    shapes = (sent.counts.shape, sent.indices.shape, sent.values.shape)
    if shapes != ((chunks,), (total,), (total,)):
        raise LocalProtocolError(f"expected {chunks} counts, {total} indices and values, got {shapes}")
    if weight < 1:
        raise LocalProtocolError(f"expected a weight of at least 1, got {weight}")
    if (highest := int(sent.indices.max(initial=0))) >= CHUNK_ENTRIES:
        raise LocalProtocolError(f"expected indices below {CHUNK_ENTRIES}, got {highest}")
    starts = np.zeros(chunks + 1, np.int64)
    np.cumsum(sent.counts, out=starts[1:])
    return _IndexedContribution(weight, sent, starts)


def _magnitude(sent: Coefficients) -> int:
    """Largest |value|."""
    return max(int(sent.values.max(initial=0)), -int(sent.values.min(initial=0)))

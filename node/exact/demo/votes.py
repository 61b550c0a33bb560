"""The votes of one commit, summed strip by strip: S = sum over authors of w_i * q_i.

Weights w and coefficients q are whole numbers, and no sum can reach 2^24, so that float32 counts
exactly in any order. On the host the places of a strip are found in numpy as they are needed
(`Votes`). To an accelerator all coefficients travel in one piece first (`DeviceVotes`).

What is large is laid in one piece by as many threads as torch uses: each has authors of its own. So
threads change no number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution, threads_for
from node.exact.dct import transposed
from node.system.threads import spread
from protocol.codec.payload import Coefficients
from protocol.errors import LocalProtocolError
from protocol.limits import CHUNK_ENTRIES, VOTE_SUM_MAX

COPY_SPREAD_MIN = 1 << 22
"""Coefficients of all authors from which on several threads check them and lay them end to end, for
a tenth of the time of decoding.
"""


@dataclass(frozen=True, slots=True, eq=False)
class _IndexedContribution:
    """A contribution that fits the model."""

    weight: int
    coefficients: Coefficients
    starts: npt.NDArray[np.int64]
    """[chunks + 1]: where each chunk's coefficients begin."""

    vote_max: int
    """Largest magnitude of a vote: weight times value."""


class StackedContributions(NamedTuple):
    """The coefficients of R authors in the host's memory, author after author."""

    bounds: npt.NDArray[np.int64]
    """[R, chunks + 1]: where each author's coefficients of each chunk begin."""

    indices: npt.NDArray[np.uint16]
    """[n]: places in the chunk."""

    values: npt.NDArray[np.int16]
    """[n]"""

    weights: npt.NDArray[np.float32]
    """[R]"""


class Votes:
    """The contributions of one commit."""

    def __init__(self, layout: ChunkLayout, contributions: Sequence[Contribution]) -> None:
        """`LocalProtocolError` if they do not fit the layout, or if their sums could exceed what
        float32 counts exactly.
        """
        self._chunks = layout.chunks
        found: dict[int, _IndexedContribution] = {}

        def index(number: int) -> None:
            found[number] = _indexed(contributions[number], layout.chunks)

        values = sum(len(each.coefficients.values) for each in contributions)
        spread(index, range(len(contributions)), threads_for(values, COPY_SPREAD_MIN))
        self._authors = [found[number] for number in range(len(contributions))]
        self.weights = np.array([author.weight for author in self._authors], np.float32)
        """float32 [R]: the weight of each author."""
        self.sum_max = sum(author.vote_max for author in self._authors)
        """Bound on the magnitude of every sum of votes."""
        if self.sum_max > VOTE_SUM_MAX:
            raise LocalProtocolError(
                f"expected votes that sum to at most {VOTE_SUM_MAX}, got up to {self.sum_max}"
            )

    def stacked(self) -> StackedContributions:
        """The coefficients of all authors in one piece."""
        bounds, sent = self.bounds(), self.coefficients()
        count = int(bounds[-1, -1]) if sent else 0
        indices, values = np.empty(count, np.uint16), np.empty(count, np.int16)

        def copy(row: int) -> None:
            part = slice(bounds[row, 0], bounds[row, -1])
            indices[part], values[part] = sent[row].indices, sent[row].values

        spread(copy, range(len(sent)), threads_for(count, COPY_SPREAD_MIN))
        return StackedContributions(bounds, indices, values, self.weights)

    def sum_strip(self, first: int, strip: Tensor) -> Tensor:
        """Fill float32 [n, 64, 64] with S^T of the chunks from `first` on, and return it."""
        strip.zero_()
        if self._authors:
            places, votes = self._cut(first, first + len(strip))
            strip.view(-1).scatter_add_(0, places, votes)
        return strip

    def bounds(self) -> npt.NDArray[np.int64]:
        """[R, chunks + 1]: where each author's coefficients of each chunk begin in one piece."""
        bounds, total = np.zeros((len(self._authors), self._chunks + 1), np.int64), 0
        for row, author in zip(bounds, self._authors, strict=True):
            np.add(author.starts, total, out=row)
            total = int(row[-1])
        return bounds

    def coefficients(self) -> list[Coefficients]:
        """Those of each author."""
        return [author.coefficients for author in self._authors]

    def _cut(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """The votes for a strip: int64 [n], their places in it, and float32 [n], their weights."""
        parts = [
            (author.coefficients, slice(author.starts[first], author.starts[stop]))
            for author in self._authors
        ]
        counts = np.stack([sent.counts[first:stop] for sent, _ in parts])  # [R, n]
        chunk_starts = np.tile(np.arange(stop - first) * CHUNK_ENTRIES, len(parts))
        places = np.repeat(chunk_starts, counts.ravel())
        places += transposed(np.concatenate([sent.indices[part] for sent, part in parts]))
        votes = np.concatenate([sent.values[part] for sent, part in parts], dtype=np.float32)
        votes *= np.repeat(self.weights, counts.sum(1, dtype=np.int64))
        return torch.from_numpy(places), torch.from_numpy(votes)


class DeviceVotes:
    """The contributions of one commit on an accelerator, author after author."""

    def __init__(self, votes: Votes, device: torch.device) -> None:
        """Carries them over in one copy of 16-bit numbers and one of the weights, and waits for
        nothing else.
        """
        self.sum_max = votes.sum_max
        self._bounds = votes.bounds()  # on the host
        sent = votes.coefficients()
        chunks, totals = self._bounds.shape[1] - 1, [len(each.indices) for each in sent]
        count = sum(totals)
        arrays = [getattr(each, name) for name in ("counts", "indices", "values") for each in sent]
        pinned = torch.empty(
            chunks * len(sent) + 2 * count,
            dtype=torch.int16,
            device="cpu",
            pin_memory=device.type == "cuda",
        )
        if arrays:
            pieces = [torch.from_numpy(array.view(np.int16)) for array in arrays]
            torch.cat(pieces, out=pinned)  # unlike numpy in all threads
        there = pinned.to(device, non_blocking=True)
        counts, indices, values = torch.split(there, [chunks * len(sent), count, count])
        rows = torch.arange(chunks, dtype=torch.int32, device=device).repeat(len(sent))
        rows = rows.repeat_interleave(counts.long(), output_size=count)
        self._places = rows.mul_(CHUNK_ENTRIES).add_(transposed(indices))
        """int32 [n]: counted from the first entry of chunk 0."""
        shares = torch.tensor(totals, dtype=torch.int64, device="cpu")
        weights = torch.from_numpy(votes.weights).to(device, non_blocking=True)
        self._votes = weights.repeat_interleave(
            shares.to(device, non_blocking=True), output_size=count
        )
        """float32 [n]: weight times value."""
        self._votes.mul_(values)

    def sum_strip(self, first: int, strip: Tensor) -> Tensor:
        """`Votes.sum_strip`."""
        strip.zero_()
        parts = [slice(*part) for part in self._bounds[:, [first, first + len(strip)]].tolist()]
        if parts:
            places = torch.cat([self._places[part] for part in parts]).long()
            votes = torch.cat([self._votes[part] for part in parts])
            strip.view(-1).scatter_add_(0, places.sub_(first * CHUNK_ENTRIES), votes)
        return strip


def _indexed(contribution: Contribution, chunks: int) -> _IndexedContribution:
    """A contribution whose arrays fit each other and the model."""
    weight, sent = contribution.weight, contribution.coefficients
    total = int(sent.counts.sum(dtype=np.int64))
    shapes = (sent.counts.shape, sent.indices.shape, sent.values.shape)
    if shapes != ((chunks,), (total,), (total,)):
        raise LocalProtocolError(
            f"expected {chunks} counts, {total} indices and values, got {shapes}"
        )
    if weight < 1:
        raise LocalProtocolError(f"expected a weight of at least 1, got {weight}")
    if (highest := int(sent.indices.max(initial=0))) >= CHUNK_ENTRIES:
        raise LocalProtocolError(f"expected indices below {CHUNK_ENTRIES}, got {highest}")
    starts = np.zeros(chunks + 1, np.int64)
    np.cumsum(sent.counts, out=starts[1:])
    return _IndexedContribution(weight, sent, starts, weight * _magnitude(sent))


def _magnitude(sent: Coefficients) -> int:
    """Largest |value|."""
    return max(int(sent.values.max(initial=0)), -int(sent.values.min(initial=0)))

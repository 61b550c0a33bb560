"""Everybody's coefficients into the parameters, with the same bits on every node.

    S = sum_i w_i * q_i         whole numbers below 2^24: exact in float32 in any order
    U = sign(inverse(S))        whole numbers throughout: transform.py; or, of matrices, orthogonalised: orthogonal.py
    P <- P * decay              rounded to float32
    P <- P - learning_rate * U  rounded to float32. The sign's product is +-learning_rate or 0, so a fused
                                multiply-subtract would give the same bits; the other is rounded by itself first

Chunks are independent, so the work is done strip by strip in two small buffers, and the result depends on
neither the strips nor threads, device or the order of contributions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from node.demo.chunks import ChunkLayout, strips
from node.demo.orthogonal import inverse_orthogonal_
from node.demo.transform import exact_products, inverse_signs_, strip_chunks_for, transposed
from protocol.errors import LocalProtocolError
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE, VOTE_SUM_MAX
from protocol.payload import Coefficients

Contribution = tuple[int, Coefficients]
"""An author's weight in the commit, and what it sent."""

Rule = Literal["sign", "orthogonal"]
"""What an update is of the sum of votes. Small parameters have the sign in any case."""

RULES: tuple[Rule, ...] = get_args(Rule)

GUESS_ONE, GUESS_MAX = 16, 127
"""A guess at an update is kept in sixteenths, in a byte."""


def apply(
    layout: ChunkLayout,
    parameters: Mapping[str, Tensor],
    contributions: Sequence[Contribution],
    learning_rate: float,
    decay: float,
    *,
    rule: Rule = "sign",
    strip_chunks: int | None = None,
) -> None:
    """Make one step: change `parameters`, float32 on one device, in place by a commit's contributions.

    `learning_rate` and `decay` are the commit's float32 values. `LocalProtocolError`, before anything
    changed, for anything that could make bits differ between nodes. Takes two strips of extra memory, six with the
    rule "orthogonal".
    """
    for name, tensor in parameters.items():
        if tensor.dtype != torch.float32:
            raise LocalProtocolError(f"expected {name} in float32, got {tensor.dtype}")
    for name, value in (("learning_rate", learning_rate), ("decay", decay)):
        if not math.isfinite(value) or float(np.float32(value)) != value:
            raise LocalProtocolError(f"expected a {name} that is a float32 value, got {value!r}")
    views = layout.views(parameters)
    update(layout, views, contributions, (learning_rate, decay), rule=rule, strip_chunks=strip_chunks)
    layout.write_back(views, parameters)


def update(
    layout: ChunkLayout,
    views: Mapping[str, Tensor],
    contributions: Sequence[Contribution],
    rates: tuple[float, float],
    *,
    rule: Rule = "sign",
    strip_chunks: int | None = None,
) -> None:
    """`apply` for views from `layout.views`, of any of the parameters and any float dtype.

    `rates` is (learning rate, decay), rounded to the dtype of each tensor's arithmetic.
    """
    votes = Votes(layout, contributions)
    device = next(iter(views.values())).device if views else torch.device("cpu")
    size = min(layout.chunks, strip_chunks or strip_chunks_for(device))
    sums = torch.empty(size, CHUNK_SIDE, CHUNK_SIDE, dtype=torch.float32, device=device)
    learning_rate, decay = rates
    orthogonal = layout.matrix_chunks if rule == "orthogonal" else 0
    with exact_products(device):
        for first, stop in strips(orthogonal, size):
            step = inverse_orthogonal_(votes.sum_strip(first, sums[: stop - first])).mul_(learning_rate)
            for change, parameter in layout.pairs(views, first, step):
                _decayed_(parameter, decay).sub_(change)
        for first, stop in strips(layout.chunks, size, start=orthogonal):
            strip = inverse_signs_(votes.sum_strip(first, sums[: stop - first]), votes.sum_max)
            for signs, parameter in layout.pairs(views, first, strip):
                _decayed_(parameter, decay).add_(signs, alpha=-learning_rate)


def _decayed_(parameter: Tensor, decay: float) -> Tensor:
    return parameter if decay == 1 else parameter.mul_(decay)


def look_ahead(
    layout: ChunkLayout,
    committed: Mapping[str, Tensor],
    guess: Tensor,
    working: Mapping[str, Tensor],
    *,
    rates: tuple[float, float],
) -> None:
    """working <- committed * decay - learning_rate * guess / 16, the parameters to take early gradients at.

    `guess` is int8 [chunks, 64, 64] from `Engine.guess`, `rates` (learning rate, decay). `working` has tensors of the
    same names and shapes and any dtype, apart from `committed`, which stays as it is.
    """
    sources, targets = layout.views(committed), layout.views(working)
    learning_rate, decay = rates
    with torch.no_grad():
        for first, stop in strips(layout.chunks, strip_chunks_for(guess.device)):
            pairs = (layout.pairs(views, first, guess[first:stop]) for views in (sources, targets))
            for (signs, source), (_, target) in zip(*pairs, strict=True):
                target.copy_((source * decay).add_(signs, alpha=-learning_rate / GUESS_ONE))
    layout.write_back(targets, working)


def as_guess(update: Tensor) -> Tensor:
    """int8, in sixteenths, of an update whose root mean square is about one; changes it."""
    return update.mul_(GUESS_ONE).round_().clamp_(-GUESS_MAX, GUESS_MAX).to(torch.int8)


@dataclass(frozen=True, slots=True, eq=False)
class _Ballot:
    """One author's coefficients, and where they go."""

    weight: int
    coefficients: Coefficients
    places: npt.NDArray[np.uint16]
    """[n]: places of the indices in a transposed chunk."""

    starts: npt.NDArray[np.int64]
    """[chunks + 1]: where each chunk's coefficients begin."""


class Votes:
    """The contributions of one round, summed strip by strip."""

    def __init__(self, layout: ChunkLayout, contributions: Sequence[Contribution]) -> None:
        """`LocalProtocolError` if they do not fit the layout, or could sum to more than float32 counts exactly."""
        self._ballots = [_ballot(weight, sent, layout.chunks) for weight, sent in contributions]
        self._weights = np.array([ballot.weight for ballot in self._ballots], np.float32)
        self.sum_max = sum(ballot.weight * _magnitude(ballot.coefficients) for ballot in self._ballots)
        """No sum of votes can be larger in magnitude."""
        if self.sum_max > VOTE_SUM_MAX:
            raise LocalProtocolError(f"expected votes that sum to at most {VOTE_SUM_MAX}, got up to {self.sum_max}")

    def sum_strip(self, first: int, strip: Tensor) -> Tensor:
        """Fill float32 [n, 64, 64] with S^T of the chunks from `first` on, and return it."""
        strip.zero_()
        if not self._ballots:
            return strip
        cut = slice(first, first + len(strip))
        parts = [(ballot, slice(ballot.starts[cut.start], ballot.starts[cut.stop])) for ballot in self._ballots]
        counts = np.stack([ballot.coefficients.counts[cut] for ballot in self._ballots])  # [R, n]
        chunk_starts = np.tile(np.arange(len(strip)) * CHUNK_ENTRIES, len(parts))
        places = np.repeat(chunk_starts, counts.ravel())
        places += np.concatenate([ballot.places[sent] for ballot, sent in parts])
        votes = np.concatenate([ballot.coefficients.values[sent] for ballot, sent in parts], dtype=np.float32)
        votes *= np.repeat(self._weights, counts.sum(1, dtype=np.int64))
        strip.view(-1).scatter_add_(
            0, torch.from_numpy(places).to(strip.device), torch.from_numpy(votes).to(strip.device)
        )
        return strip


def _ballot(weight: int, sent: Coefficients, chunks: int) -> _Ballot:
    """A contribution whose arrays fit each other and the model."""
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
    return _Ballot(weight, sent, transposed(sent.indices), starts)


def _magnitude(sent: Coefficients) -> int:
    """Largest |value|."""
    return max(int(sent.values.max(initial=0)), -int(sent.values.min(initial=0)))

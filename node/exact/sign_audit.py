"""Whether a payload was made from the samples of its author: the signs that it sent, compared with
those of the gradient of these samples.

Data order and state of every round are known, so whoever has the state before a round can compute
the gradient of an author's share again, without momentum. An author of DeMo sends the signs of its
largest momentum, of which the newest gradient is a part: an honest one agrees with it in most
places, one that did part of its work in fewer, noise in half of them. A copy shares its places with
the payload that it was copied from.

With local steps the movement of the same steps takes the place of the gradient: an author sends the
signs of what it moved and did not say yet. There a sign counts as much as the step moves by it: by
the square of its scale, as the step counts scales (`acting_weights`). Else an author could do its
work where it says next to nothing, and turn the signs where it says much.

Nothing here decides. How far honest authors agree depends on the network, the round and k:
`tests.benchmarks.work_audit` measures it, and only what was measured may become a threshold. It
holds for rounds whose gradients are taken at the committed parameters, which is not so where rounds
overlap. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout
from node.exact.dct import transposed
from node.exact.demo.momentum import DemoSettings, Momentum
from protocol.codec.payload import Coefficients
from protocol.codec.scales import scales_of
from protocol.limits import CHUNK_ENTRIES
from protocol.sums.movements import Movement, counted_codes

Signs = npt.NDArray[np.int8]
Weights = npt.NDArray[np.float64]
Floating = TypeVar("Floating", np.float32, np.float64)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The signs of one payload beside those of a gradient."""

    compared: int
    """Sent places at which the gradient is not zero; where they weigh unlike, as many of one weight
    as tell as much."""

    share: float
    """The share of their weight that agrees; NaN where nothing could be compared."""

    @property
    def sigma(self) -> float:
        """Standard deviation of the share if places were independent; NaN without any."""
        share = self.share
        return math.sqrt(share * (1 - share) / self.compared) if self.compared else math.nan


NOTHING: Final = Agreement(0, math.nan)
"""Where nothing could be compared."""


def acting_weights(movements: Sequence[Movement], chunks: int) -> list[Weights]:
    """What a sign of each author of a round weighs, by chunk and scale: float64 [chunks], or
    [chunks, 2] of two scales. Places and signs are not looked at.
    """
    scales = scales_of(counted_codes(movements, chunks)).astype(np.float64)
    return list(scales * scales)


def gradient_coefficients(layout: ChunkLayout, gradients: Mapping[str, Tensor | None]) -> Tensor:
    """float32 [chunks, 64, 64]: a mean gradient by parameter as coefficients. `GradientError` for
    numbers that are not finite.
    """
    momentum = Momentum(layout, DemoSettings(), "cpu")
    momentum.accumulate(gradients)
    return momentum.entries


def sign_agreement(
    sent: Coefficients, gradient: Tensor, weights: Weights | None = None
) -> Agreement:
    """A payload's signs beside those of `gradient`, float32 [chunks, 64, 64] as
    `gradient_coefficients` makes it. `weights` are those of its author, None: all alike.
    """
    by_scale = np.ones(len(sent.counts)) if weights is None else weights
    return weighed(signs_followed(sent, gradient), of_values(by_scale, sent))


def of_values(by_scale: npt.NDArray[Floating], sent: Coefficients) -> npt.NDArray[Floating]:
    """[n]: of `by_scale`, which has [chunks] or [chunks, 2] numbers, that of each value."""
    columns = by_scale.reshape(len(sent.counts), -1).T
    lower, larger = (np.repeat(columns[each], sent.counts) for each in (0, -1))
    return np.where(sent.values & 1, lower, larger)


def weighed(followed: Signs, weights: Weights) -> Agreement:
    """The agreement of signs that are followed (1), not (-1), or not compared (0), by the weight of
    each, float64 [n].
    """
    compared = weights * (followed != 0)
    total = float(compared.sum())
    if not total:
        return NOTHING
    share = float(compared[followed > 0].sum()) / total
    return Agreement(round(total * total / float(np.square(compared).sum())), share)


def signs_followed(sent: Coefficients, gradient: Tensor) -> Signs:
    """int8 [n], for each place of a payload: 1 where its sign is that of `gradient`, -1 where it is
    the other one, 0 where the gradient has none.
    """
    entries = gradient.reshape(-1)
    found = entries[torch.from_numpy(_places(sent))].sign().numpy().astype(np.int8)
    return (found * np.sign(sent.values)).astype(np.int8)


def shared_places(one: Coefficients, other: Coefficients) -> float:
    """The share of places of the smaller payload that the other has too; 0 for an empty one. Two
    honest authors share about as many as chance gives them.
    """
    first, second = _places(one), _places(other)
    least = min(len(first), len(second))
    return len(np.intersect1d(first, second, assume_unique=True)) / least if least else 0.0


def _places(sent: Coefficients) -> npt.NDArray[np.int64]:
    """int64 [n]: where the coefficients lie in a tensor of transposed chunks, as engines have
    it.
    """
    chunks = np.repeat(np.arange(len(sent.counts), dtype=np.int64), sent.counts)
    inside: npt.NDArray[np.int64] = transposed(
        torch.from_numpy(sent.indices.astype(np.int64))
    ).numpy()
    return chunks * CHUNK_ENTRIES + inside

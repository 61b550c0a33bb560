"""Whether a payload was made from the samples of its author: the signs that it sent, compared with
those of the gradient of these samples.

Data order and state of every round are known, so whoever has the state before a round can compute
the gradient of an author's share again, without momentum. An author sends
the signs of its largest momentum, of which the newest gradient is a part: an honest one agrees with
it in most places, one that did part of its work in fewer, noise in half of them. A copy shares its
places with the payload that it was copied from.

With local steps the movement of the same steps takes the place of the gradient: an author sends the
signs of what it moved and did not say yet.

Nothing here decides. How far honest authors agree depends on the network, the round and k:
`tests.benchmarks.work_audit` measures it, and only what was measured may become a threshold. It
holds for rounds whose gradients are taken at the committed parameters, which is not so where rounds
overlap. Pure.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from node.demo.chunks import ChunkLayout
from node.demo.dct import transposed
from node.demo.engine import DemoSettings, Engine
from protocol.codec.payload import Coefficients
from protocol.limits import CHUNK_ENTRIES

Signs = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The signs of one payload beside those of a gradient."""

    compared: int
    """Sent places at which the gradient is not zero."""
    agreeing: int

    @property
    def share(self) -> float:
        """The share of places that agree; NaN where nothing could be compared."""
        return self.agreeing / self.compared if self.compared else math.nan

    @property
    def sigma(self) -> float:
        """Standard deviation of the share if places were independent; NaN without any."""
        share = self.share
        return math.sqrt(share * (1 - share) / self.compared) if self.compared else math.nan


def gradient_coefficients(layout: ChunkLayout, gradients: Mapping[str, Tensor | None]) -> Tensor:
    """float32 [chunks, 64, 64]: a mean gradient by parameter as coefficients. `GradientError` for
    numbers that are not finite.
    """
    engine = Engine(layout, DemoSettings(), "cpu")
    engine.accumulate(gradients)
    return engine.momentum


def sign_agreement(sent: Coefficients, gradient: Tensor) -> Agreement:
    """A payload's signs beside those of `gradient`, float32 [chunks, 64, 64] as
    `gradient_coefficients` makes it.
    """
    followed = signs_followed(sent, gradient)
    return Agreement(int(np.count_nonzero(followed)), int(np.count_nonzero(followed > 0)))


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

"""Everybody's movements into the parameters, with the same bits on every node.

What a node moved comes as signs and their scales in each chunk. `protocol.sums.movements` has what
they sum up to: S, the exponent E that it counts in, r, and the sum of weights W. Everything up to Z
is whole numbers:

    x     the run's gain, a multiple of 1/16; 1 where a single author counts
    S'    = S >> s, to nearest-even                          per chunk the least s with |S'| <= 2047
    Z     T^T S', shifted by t, times T: dct.py              2^(19 - s - t) times the orthonormal
                                                             inverse of S
    P     <- P * decay                                       rounded to float32
    P     <- P - f32(Z * c)                                  c = f32(x / W) * 2^(s + t + E - r - 21)

The division is one number: the host divides x by W in double precision and rounds that to float32;
c is it with another exponent. So the gain touches no sum, and no bound of an author. Z * c is one
float32 product, rounded to nearest-even as IEEE 754 says on every device, and the difference is a
second one. Neither the device, its strips and threads, nor the order of the contributions changes a
bit. T is the transform to within a percent, and S' keeps eleven bits, so that a step is x times
what was moved to about that.

The mean of R sparse movements that hardly agree is shorter than any of them; the gain makes up for
that. An author alone has no mean, and its movement counts as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from node.exact.accelerator import STRIP_CHUNKS_MAX, flat_order
from node.exact.backend import is_accelerator
from node.exact.chunks import ChunkLayout, require_exact, strips
from node.exact.dct import exact_products, integer_inverse, shift_, transposed
from node.exact.plain import STRIP_CHUNKS_PER_THREAD
from protocol.errors import LocalProtocolError
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE, GAIN_MAX, GAIN_PARTS
from protocol.sums.movements import Counted, Movement, changes_of

UNIT_BITS = 21
"""Z * 2^(s + t) is 2^19 times the inverse of S, and S counts mantissas in quarters."""


def apply(
    layout: ChunkLayout,
    parameters: Mapping[str, Tensor | None],
    movements: Sequence[Movement],
    decay: float,
    *,
    gain: float = 1.0,
    strip_chunks: int | None = None,
    flat: bool | None = None,
) -> None:
    """Make one step: change `parameters`, float32 on one device, in place by a commit; None for one
    that does not move.

    `decay` is the commit's float32 value, `gain` the run file's. `strip_chunks` are worked on at a
    time, and `flat` is the way of an accelerator; both have a default and change no bit.
    `LocalProtocolError`, before anything changed, for anything that could make bits differ between
    nodes.
    """
    total = MovementSum(layout, movements, gain)
    step(layout, parameters, total, decay, strip_chunks=strip_chunks, flat=flat)


class Total(Protocol):
    """What all authors moved together, strip by strip."""

    def sum_strip(self, first: int, strip: Tensor) -> Tensor:
        """Fill float32 [n, 64, 64], contiguous, with whole numbers, below 2^24 and transposed, of
        the chunks from `first` on, and return the unit of each chunk, float32 [n, 1, 1].
        """


def step(
    layout: ChunkLayout,
    parameters: Mapping[str, Tensor | None],
    total: Total,
    decay: float,
    *,
    strip_chunks: int | None = None,
    flat: bool | None = None,
) -> None:
    """Make one step by a total; the rest as with `apply`."""
    require_exact(parameters, {"decay": decay})
    views = layout.views(parameters)
    device = next(iter(views.values())).device
    flat = is_accelerator(device) if flat is None else flat
    size = strip_chunks or (
        STRIP_CHUNKS_MAX if flat else STRIP_CHUNKS_PER_THREAD * torch.get_num_threads()
    )
    strip_shape = (min(size, layout.chunks), CHUNK_SIDE, CHUNK_SIDE)
    sums = torch.empty(strip_shape, dtype=torch.float32, device=device)
    order = flat_order(layout, device) if flat else None
    with exact_products(device):
        if decay != 1:
            for view in views.values():
                view.mul_(decay)
        for first, stop in strips(layout.chunks, len(sums)):
            strip = sums[: stop - first]
            moved = inverse_(strip, total.sum_strip(first, strip), may_look=not flat)
            if order:
                order.move(views, first, moved, -1.0)
            else:
                for change, tensor in layout.pairs(views, first, moved):
                    tensor.sub_(change)
    moving = {name: tensor for name, tensor in parameters.items() if tensor is not None}
    layout.write_back(views, moving)


def inverse_(sums: Tensor, units: Tensor, *, may_look: bool = True) -> Tensor:
    """Replace transposed sums S^T [n, 64, 64], contiguous, by movements f32(Z * c), and return
    them.

    `units`, float32 [n, 1, 1], is c without 2^(s + t); `may_look` is that of `dct.shift_`. Call it
    under `exact_products`.
    """
    halved = shift_(sums, may_look=may_look)
    whole, powers = integer_inverse(sums, may_look=may_look)
    moved = torch.mul(whole, powers * halved * units, out=sums)
    return moved.add_(0.0)  # no -0: see `dct.inverse_signs_`


class MovementSum:
    """The movements of one commit, summed strip by strip: S and the unit that it counts in."""

    def __init__(
        self, layout: ChunkLayout, movements: Sequence[Movement], gain: float = 1.0
    ) -> None:
        """`LocalProtocolError` if they do not fit the layout, or the gain is not exact."""
        self._counted = Counted(movements, layout.chunks)
        self._share = share_of(len(self._counted.authors), self._counted.weight_sum, gain)

    def sum_strip(self, first: int, strip: Tensor) -> Tensor:
        """Fill float32 [n, 64, 64] with S^T of the chunks from `first` on.

        Returns the unit of each chunk, float32 [n, 1, 1]: f32(x / W) * 2^(E - r - 21).
        """
        stop = first + len(strip)
        strip.zero_()
        sizes, largest = self._counted.sizes(first, stop)
        if self._counted.authors:
            places, changes = self._cut(first, stop, sizes)
            strip.view(-1).scatter_add_(0, places.to(strip.device), changes.to(strip.device))
        powers = largest - self._counted.range_bits - UNIT_BITS
        units = np.ldexp(self._share, powers).astype(np.float32)
        return torch.from_numpy(units).to(strip.device)[:, None, None]

    def _cut(self, first: int, stop: int, sizes: npt.NDArray[np.int32]) -> tuple[Tensor, Tensor]:
        """The changes of a strip: int64 [n], their places in it, and float32 [n], w * m * q.

        `sizes` are those of each author in each chunk, [R, chunks of the strip, 1 or 2].
        """
        counted = self._counted
        parts = [counted.within(each, first, stop) for each in range(len(counted.authors))]
        counts = np.concatenate([part.counts for part in parts])  # [R * chunks]
        chunk_starts = np.tile(np.arange(stop - first) * CHUNK_ENTRIES, len(parts))
        places = np.repeat(chunk_starts, counts)
        places += transposed(np.concatenate([part.indices for part in parts]))
        values = np.concatenate([part.values for part in parts])
        changes = changes_of(values, counts, sizes.reshape(len(counts), -1)).astype(np.float32)
        return torch.from_numpy(places), torch.from_numpy(changes)


def share_of(authors: int, weight_sum: int, gain: float) -> np.float32:
    """f32(x / W); `LocalProtocolError` for a gain that is not exact."""
    if not 1 <= gain <= GAIN_MAX or gain * GAIN_PARTS % 1:
        raise LocalProtocolError(
            f"expected a gain of 1 to {GAIN_MAX} in parts of 1/{GAIN_PARTS}, got {gain}"
        )
    return np.float32((gain if authors > 1 else 1.0) / weight_sum)

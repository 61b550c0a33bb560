"""Everybody's movements into the parameters, with the same bits on every node.

What a node moved comes as signs q_i and one scale s_i = m_i / 4 * 2^e_i in each chunk, m_i from 4
to 7 (protocol/codec/scales.py). Everything up to Z is whole numbers:

    w_i   samples trained; where they exceed 512 together, scaled down to that, each at least 1
    W     = sum_i w_i, of all authors that count, those with nothing in a chunk included
    x     the run's gain, a multiple of 1/16; 1 where a single author counts
    E     the largest e_i of a chunk
    S     = sum_i w_i * (m_i << r - (E - e_i)) * q_i         e_i < E - r: nothing
    S'    = S >> s, to nearest-even                          per chunk the least s with |S'| <= 2047
    Z     T^T S', shifted by t, times T: dct.py              2^(19 - s - t) times the orthonormal
                                                             inverse of S
    P     <- P * decay                                       rounded to float32
    P     <- P - f32(Z * c)                                  c = f32(x / W) * 2^(s + t + E - r - 21)

r is the largest number up to 12 with 7 * W * 2^r < 2^24, so that float32 counts every sum of S
exactly, in any order. The division is one number: the host divides x by W in double precision and
rounds that to float32; c is it with another exponent. So the gain touches no sum. Z * c is one
float32 product, rounded to nearest-even as IEEE 754 says on every device, and the difference is a
second one. Neither the device, its strips and threads, nor the order of the contributions changes a
bit. T is the transform to within a percent, and S' keeps eleven bits, so that a step is x times
what was moved to about that.

No author moves a chunk further than h steps could (`code_max`): a larger scale is cut to that. Nor
much further than the others of the round: what is above 1.5 times their median is cut to that
(`beside_median`), so that who boasts adds little more than others do. Both come before the gain.

The mean of R sparse movements that hardly agree is shorter than any of them; the gain makes up for
that. An author alone has no mean, and its movement counts as it is.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from node.exact.accelerator import STRIP_CHUNKS_MAX, flat_order
from node.exact.backend import is_accelerator
from node.exact.chunks import ChunkLayout, require_exact, strips
from node.exact.dct import exact_products, integer_inverse, shift_, transposed
from node.exact.plain import STRIP_CHUNKS_PER_THREAD
from protocol.codec.payload import Coefficients
from protocol.codec.scales import CODE_MAX, Codes, exponents, mantissas, scales_of
from protocol.errors import LocalProtocolError
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE, GAIN_MAX, GAIN_PARTS, VOTE_SUM_MAX
from protocol.runfile import AlgorithmSpec

RANGE_BITS = 12
"""r at most: scales below 2^-12 of a chunk's largest are less than S' can tell from nothing."""

WEIGHTS_MAX = 512
"""Sum of the weights before each is made at least 1: 73 authors still have all 12 bits of r, and
4096 have 9."""

MANTISSA_MAX = 7

ABOVE_MEDIAN = 1.5
"""Times the scale of a chunk's median author that another's counts at most. Honest authors of equal
steps are within 1.25 of it in 99 of 100 chunks (docs/results/attack.md)."""

_MEDIAN_CHUNKS = 1024
"""Chunks whose medians are found at a time."""

UNIT_BITS = 21
"""Z * 2^(s + t) is 2^19 times the inverse of S, and S counts mantissas in quarters."""


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """The movement of one author of a commit."""

    samples: int
    """Samples that the commit counts for the author, at least 1."""

    code_max: int
    """Code of the largest scale that counts: `code_max`; below 0 nothing does."""

    coefficients: Coefficients
    """Signs, with scales."""


def code_max(learning_rate: float, steps: int, top_k: int) -> int:
    """Code of the largest scale of an author that made this many steps; -1 if none is small enough.

    A step moves no entry further than the learning rate, and so a chunk no further than 64 times
    that, in the norm that the transform keeps. k signs of scale s move it by s * sqrt(k). So the
    bound is s^2 * k <= (64 * steps * learning_rate)^2, compared in fractions.
    """
    reach = Fraction(learning_rate) * CHUNK_SIDE * steps
    if reach <= 0:
        return -1
    most = reach * reach / top_k
    return bisect_right(range(CODE_MAX + 1), most, key=_square) - 1


def code_max_of(samples: int, learning_rate: float, algorithm: AlgorithmSpec) -> int:
    """`code_max` of an author of this many samples."""
    steps = -(-samples // algorithm.local_samples)
    return code_max(learning_rate, steps, algorithm.top_k)


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
    require_exact(parameters, {"decay": decay})
    views = layout.views(parameters)
    total = MovementSum(layout, movements, gain)
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
        if not 1 <= gain <= GAIN_MAX or gain * GAIN_PARTS % 1:
            raise LocalProtocolError(
                f"expected a gain of 1 to {GAIN_MAX} in parts of 1/{GAIN_PARTS}, got {gain}"
            )
        self._authors = [
            _checked(movement, layout.chunks) for movement in movements if movement.code_max >= 0
        ]
        self.weights = scaled_weights([author.samples for author in self._authors])
        """w_i of the authors that count."""
        weight_sum = max(1, sum(self.weights))
        self.range_bits = range_bits(weight_sum)
        """r"""
        self._share = np.float32((gain if len(self.weights) > 1 else 1.0) / weight_sum)
        self._starts = [_starts(author.coefficients.counts) for author in self._authors]
        self._codes = counted_codes(self._authors, layout.chunks)

    def sum_strip(self, first: int, strip: Tensor) -> Tensor:
        """Fill float32 [n, 64, 64] with S^T of the chunks from `first` on.

        Returns the unit of each chunk, float32 [n, 1, 1]: f32(x / W) * 2^(E - r - 21).
        """
        stop = first + len(strip)
        strip.zero_()
        none = np.zeros((1, len(strip)), np.uint8)
        codes = np.concatenate([none, self._codes[:, first:stop]])  # [1 + R, n]
        powers = exponents(codes)
        largest = powers.max(axis=0)
        if self._authors:
            distances = largest - powers[1:]
            sizes = np.where(distances <= self.range_bits, mantissas(codes[1:]), 0)
            sizes <<= np.clip(self.range_bits - distances, 0, RANGE_BITS)
            sizes *= np.array(self.weights, np.int32)[:, None]
            places, changes = self._cut(first, stop, sizes.astype(np.float32))
            strip.view(-1).scatter_add_(0, places.to(strip.device), changes.to(strip.device))
        units = np.ldexp(self._share, largest - self.range_bits - UNIT_BITS).astype(np.float32)
        return torch.from_numpy(units).to(strip.device)[:, None, None]

    def _cut(self, first: int, stop: int, sizes: npt.NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        """The changes of a strip: int64 [n], their places in it, and float32 [n], w * m * q.

        `sizes` are those of each author in each chunk, [R, chunks of the strip].
        """
        parts = [
            (author.coefficients, slice(starts[first], starts[stop]))
            for author, starts in zip(self._authors, self._starts, strict=True)
        ]
        counts = np.stack([sent.counts[first:stop] for sent, _ in parts])  # [R, chunks]
        chunk_starts = np.tile(np.arange(stop - first) * CHUNK_ENTRIES, len(parts))
        places = np.repeat(chunk_starts, counts.ravel())
        places += transposed(np.concatenate([sent.indices[part] for sent, part in parts]))
        changes = np.concatenate([sent.values[part] for sent, part in parts], dtype=np.float32)
        changes *= np.repeat(sizes.ravel(), counts.ravel())
        return torch.from_numpy(places), torch.from_numpy(changes)


def counted_codes(movements: Sequence[Movement], chunks: int) -> Codes:
    """[R, chunks]: the scales of authors as the step counts them, 0 of empty chunks and of authors
    that do not count. Places and signs are not looked at.
    """
    found = np.zeros((len(movements), chunks), np.uint8)
    authors = [place for place, each in enumerate(movements) if each.code_max >= 0]
    if not authors:
        return found
    samples = scaled_weights([movements[place].samples for place in authors])
    weights = np.array(samples, np.int64)[:, None]
    for first in range(0, chunks, _MEDIAN_CHUNKS):
        part = slice(first, first + _MEDIAN_CHUNKS)
        codes, counts = [], []
        for author in (movements[place] for place in authors):
            sent = author.coefficients
            assert sent.scales is not None, "movements have scales"
            codes.append(np.minimum(sent.scales[part], author.code_max))
            counts.append(sent.counts[part])
        there = np.stack(counts) > 0
        found[authors, part] = beside_median(np.stack(codes), weights * there)
    return found


def beside_median(codes: Codes, weights: npt.NDArray[np.int64]) -> Codes:
    """Scales of authors, [R, n], none of them far above the median of its chunk.

    The median author is the one in the middle of the weights, [R, n], which are 0 where an author
    has nothing to say. A scale counts for at most `ABOVE_MEDIAN` times its scale, and for as many
    times more as its author's weight is larger: more steps move further. Every number is a float64
    that IEEE 754 says, whatever the order of the authors.
    """
    order = np.lexsort((weights, codes), axis=0)
    sums = np.take_along_axis(weights, order, 0).cumsum(axis=0)
    middle = (2 * sums > sums[-1]).argmax(axis=0)
    median = np.take_along_axis(order, middle[None], 0)  # [1, n]
    scales = _SCALES[np.take_along_axis(codes, median, 0)]
    heavier = weights / np.maximum(1, np.take_along_axis(weights, median, 0))
    most = ABOVE_MEDIAN * scales * np.maximum(1.0, heavier)
    bounds = np.searchsorted(_SCALES, most, side="right") - 1
    return np.minimum(codes, bounds).astype(np.uint8)


def scaled_weights(samples: Sequence[int]) -> list[int]:
    """w_i of authors by their samples, in the same order: the samples themselves, or their shares
    of WEIGHTS_MAX, rounded down, and at least 1.
    """
    total = sum(samples)
    if total <= WEIGHTS_MAX:
        return list(samples)
    return [max(1, count * WEIGHTS_MAX // total) for count in samples]


def range_bits(weight_sum: int) -> int:
    """The bits r for a sum of weights: those by which the scales of a chunk may differ."""
    return min(RANGE_BITS, (VOTE_SUM_MAX // (MANTISSA_MAX * weight_sum)).bit_length() - 1)


_SCALES: Final = scales_of(np.arange(CODE_MAX + 1, dtype=np.uint8)).astype(np.float64)
"""Those of all codes, ascending."""


def _square(code: int) -> Fraction:
    """The square of a scale."""
    return Fraction(float(scales_of(np.array([code], np.uint8))[0])) ** 2


def _starts(counts: npt.NDArray[np.uint16]) -> npt.NDArray[np.int64]:
    """[chunks + 1]: where each chunk's coefficients begin."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _checked(movement: Movement, chunks: int) -> Movement:
    """A movement that fits the model."""
    sent = movement.coefficients
    if sent.scales is None:
        raise LocalProtocolError("expected movements with scales, got none")
    total = int(sent.counts.sum(dtype=np.int64))
    found = (sent.counts.shape, sent.scales.shape, sent.indices.shape, sent.values.shape)
    if found != ((chunks,), (chunks,), (total,), (total,)):
        raise LocalProtocolError(
            f"expected {chunks} counts and scales, {total} indices and values, got {found}"
        )
    if movement.samples < 1:
        raise LocalProtocolError(f"expected at least 1 sample, got {movement.samples}")
    if sent.indices.max(initial=0) >= CHUNK_ENTRIES or (np.abs(sent.values) != 1).any():
        raise LocalProtocolError(f"expected signs at places below {CHUNK_ENTRIES}, got others")
    return movement

"""The accelerator's way: few large operations, whatever the number of tensors, and no waiting.

Every operation is a launch, and a strip of a real model has hundreds of tensors. So all entries
count as one line in the order of the chunks: matrix after matrix, row by row, then the small
parameters.

    line      | a: rows 0-63 | a: rows 64-99 | w: rows 0-63 | w: rows 64-127 | small ones |
    strip                      [chunks of these rows                ]
    span                     | the whole rows that the strip has a chunk of  |

A span is slices of the tensors. One concatenation makes it, one lookup cuts it into chunks, one
scatter lays chunks out again, and one operation on lists of tensors changes them. The lookups come
from four numbers for each chunk, which stay on the device.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout, Line, Matrix, strips
from node.exact.dct import exact_products, forward_dtype, inverse_signs_, transposed
from node.exact.demo.votes import DeviceVotes, Votes
from node.exact.device_packing import packed
from node.exact.plain import Views, accumulate_strip, take
from node.exact.top_k import largest_in_groups
from protocol.codec.payload import Body, PayloadShape
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE

STRIP_CHUNKS_MAX, STRIPS = 8192, 5
"""Limit on chunks of a strip: 128 MiB, enough work to hide the launches. Smaller models are cut
into five strips, since the work on a strip takes several times its size (not measured)."""


class Accelerator:
    """The accelerator's way for one layout and device; `backend.Backend` says what it promises."""

    def __init__(
        self, layout: ChunkLayout, device: torch.device, strip_chunks: int | None = None
    ) -> None:
        """strip_chunks: chunks of a strip, which have a default."""
        self._layout = layout
        self._device = device
        self._order = flat_order(layout, device)
        size = strip_chunks or min(STRIP_CHUNKS_MAX, -(-layout.chunks // STRIPS))
        self.strip_chunks = min(layout.chunks, size)

    def magnitude(self, views: Views) -> Tensor:
        return self._order.magnitude(views, self.strip_chunks)

    def accumulate(
        self,
        gradients: Views,
        unsaid: Tensor,
        decay: float,
        active: Tensor | None = None,
        *,
        start: int = 0,
    ) -> None:
        dtype = forward_dtype(self._device)
        gathered = torch.empty_like(unsaid[: self.strip_chunks], dtype=dtype)
        with exact_products(self._device):
            for first, stop in strips(len(unsaid), len(gathered)):
                strip, kept = gathered[: stop - first], unsaid[first:stop]
                self._order.gather(gradients, start + first, strip)
                accumulate_strip(strip, kept, decay, None if active is None else active[first:stop])

    def extract(
        self, unsaid: Tensor, top_k: int, alpha: float, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        chunks, device = len(unsaid), self._device
        indices = torch.empty(chunks, top_k, dtype=torch.int16, device=device)
        previous = torch.empty(chunks, top_k, dtype=torch.float32, device=device)
        for first, stop in strips(chunks, self.strip_chunks):
            entries = unsaid[first:stop].view(-1, CHUNK_ENTRIES)
            places = transposed(largest_in_groups(entries.abs(), top_k)).to(torch.int16)
            indices[first:stop] = places.sort(dim=1).values
            share = alpha if active is None else alpha * active[first:stop, None]
            previous[first:stop] = take(entries, indices[first:stop], share)
        return indices, previous

    def update(self, parameters: Views, votes: Votes, rates: tuple[float, float]) -> None:
        learning_rate, decay = rates
        there = DeviceVotes(votes, self._device)
        sums = torch.empty(
            self.strip_chunks, CHUNK_SIDE, CHUNK_SIDE, dtype=torch.float32, device=self._device
        )
        with exact_products(self._device):
            self._decay(parameters, decay)
            for first, stop in strips(self._layout.chunks, len(sums)):
                strip = there.sum_strip(first, sums[: stop - first])
                signs = inverse_signs_(strip, there.sum_max, may_look=False)
                self._order.move(parameters, first, signs, -learning_rate)

    def pack(self, indices: Tensor, values: Tensor, shape: PayloadShape) -> Body:
        return packed(indices, values, shape)

    def _decay(self, views: Views, decay: float) -> None:
        if decay != 1 and views:
            torch._foreach_mul_(list(views.values()), decay)


class FlatOrder:
    """Where the entries of every chunk stand in the line of all entries, on one device."""

    def __init__(
        self, matrices: Sequence[Matrix], lines: Sequence[Line], chunks: int, device: torch.device
    ) -> None:
        table = np.zeros((4, chunks), np.int64)
        self._low, self._high = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
        self._tensors: list[tuple[str, int, int, int]] = []
        """(name, first, stop, columns): entries [first, stop) of the line; columns is 0 for a small
        parameter."""
        first = 0
        for matrix in matrices:
            end = first + matrix.rows * matrix.columns
            self._tensors.append((matrix.name, first, end, matrix.columns))
            row, column = np.divmod(np.arange(matrix.stop - matrix.first), matrix.columns_of_chunks)
            low = first + row * CHUNK_SIDE * matrix.columns
            width = np.minimum(matrix.columns - column * CHUNK_SIDE, CHUNK_SIDE)
            cut = slice(matrix.first, matrix.stop)
            table[:, cut] = (
                low + column * CHUNK_SIDE,
                np.full_like(row, matrix.columns),
                width,
                np.full_like(row, end),
            )
            self._low[cut], self._high[cut] = (
                low,
                np.minimum(low + CHUNK_SIDE * matrix.columns, end),
            )
            first = end
        if lines:
            shift = first - lines[0].first
            self._tensors += [
                (line.name, line.first + shift, line.stop + shift, 0) for line in lines
            ]
            end, whole = lines[-1].stop + shift, lines[0].first // CHUNK_ENTRIES
            low = first + np.arange(chunks - whole) * CHUNK_ENTRIES
            side = np.full_like(low, CHUNK_SIDE)
            table[:, whole:] = low, side, side, np.full_like(low, end)
            self._low[whole:], self._high[whole:] = low, np.minimum(low + CHUNK_ENTRIES, end)
        self._table = torch.from_numpy(table).to(device)
        self._side = torch.arange(CHUNK_SIDE, device=device)

    def gather(self, views: Mapping[str, Tensor], first: int, strip: Tensor) -> None:
        """`ChunkLayout.gather_strip`, in three operations and those of the lookup."""
        low, high = self._span(first, len(strip))
        span = self._cut(views, low, high)
        strip.copy_(span[self._places(first, len(strip), low, high)])

    def magnitude(self, views: Mapping[str, Tensor], strip_chunks: int) -> Tensor:
        """Largest |entry| of all tensors, a scalar on the device; NaN if one is NaN."""
        spans = (
            self._span(first, stop - first) for first, stop in strips(len(self._low), strip_chunks)
        )
        extremes = [
            extreme for low, high in spans for extreme in torch.aminmax(self._cut(views, low, high))
        ]
        return torch.stack(extremes).abs().max()

    def move(self, views: Mapping[str, Tensor], first: int, strip: Tensor, alpha: float) -> None:
        """Add `alpha` times a strip [n, 64, 64], from chunk `first` on, to the tensors that `views`
        view.
        """
        low, high = self._span(first, len(strip))
        span = strip.new_zeros(high - low + 1)
        span.scatter_(0, self._places(first, len(strip), low, high).view(-1), strip.reshape(-1))
        found = [
            (view[rows], span[start - low : stop - low])
            for view, rows, start, stop in self._slices(views, low, high)
            if view is not None
        ]
        if found:
            targets, changes = zip(
                *((target, change.view(target.shape)) for target, change in found), strict=True
            )
            torch._foreach_add_(targets, changes, alpha=alpha)

    def _span(self, first: int, count: int) -> tuple[int, int]:
        """Entries [low, high) of the line: the whole rows that hold these chunks."""
        return int(self._low[first]), int(self._high[first + count - 1])

    def _cut(self, views: Mapping[str, Tensor], low: int, high: int) -> Tensor:
        """A span in one piece, [high - low + 1]: zeros for tensors that are not there, and one more
        for padding.
        """
        zero = torch.zeros(1, dtype=torch.float32, device=self._side.device)
        slices = [
            zero.expand(stop - start) if view is None else view[rows].reshape(-1)
            for view, rows, start, stop in self._slices(views, low, high)
        ]
        return torch.cat([*slices, zero])

    def _slices(
        self, views: Mapping[str, Tensor], low: int, high: int
    ) -> Iterator[tuple[Tensor | None, slice, int, int]]:
        """(view, its rows or entries, start, stop) of each tensor in a span; [start, stop) is their
        place in the line.
        """
        for name, first, end, columns in self._tensors:
            start, stop = max(low, first), min(high, end)
            if start < stop:
                length = columns or 1
                yield (
                    views.get(name),
                    slice((start - first) // length, (stop - first) // length),
                    start,
                    stop,
                )

    def _places(self, first: int, count: int, low: int, high: int) -> Tensor:
        """Int64 [n, 64, 64]: places in the span of the entries of chunks; behind its end for
        padding.
        """
        base, stride, width, end = self._table[:, first : first + count, None, None]
        places: Tensor = self._side[:, None] * stride + (base - low) + self._side
        inside = (self._side < width) & (places < end - low)
        return places.masked_fill_(~inside, high - low)


def flat_order(layout: ChunkLayout, device: torch.device) -> FlatOrder:
    """The layout's order on a device; made once for each."""
    return _flat_order(layout.matrices, layout.lines, layout.chunks, device)


@lru_cache(maxsize=16)
def _flat_order(
    matrices: tuple[Matrix, ...], lines: tuple[Line, ...], chunks: int, device: torch.device
) -> FlatOrder:
    return FlatOrder(matrices, lines, chunks, device)

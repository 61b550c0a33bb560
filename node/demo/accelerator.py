"""Strips of chunks out of tensors and into them, in as many operations for hundreds of tensors as for one.

On a CPU a strip goes tensor by tensor (`ChunkLayout.pairs`): every entry is touched once, in the cache. On an
accelerator every operation is a launch, and a strip of a real model has hundreds of tensors. There all entries count
as one line in the order of the chunks: matrix after matrix, row by row, then the small parameters.

    line      | a: rows 0-63 | a: rows 64-99 | w: rows 0-63 | w: rows 64-127 | small ones |
    strip                      [chunks of these rows                ]
    span                     | the whole rows that the strip has a chunk of  |

A span is slices of the tensors, so one concatenation makes it, one lookup cuts it into chunks, one scatter lays chunks
out again, and one operation on lists of tensors moves them. The lookups come from four numbers for each chunk, which
stay on the device.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from node.demo.chunks import ChunkLayout, Line, Matrix, strips
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE

ONE_BY_ONE = frozenset({"cpu"})
"""Types of device that do better with small operations that keep to a cache, and may be asked for a number."""


def is_accelerator(device: torch.device) -> bool:
    """Whether this device should be given few large operations, and never be waited for."""
    return device.type not in ONE_BY_ONE


class FlatOrder:
    """Where the entries of every chunk stand in the line of all entries, on one device."""

    def __init__(self, matrices: Sequence[Matrix], lines: Sequence[Line], chunks: int, device: torch.device) -> None:
        table = np.zeros((4, chunks), np.int64)
        self._low, self._high = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
        self._tensors: list[tuple[str, int, int, int]] = []
        """Name, first entry and the one behind the last in the line, and entries of a row: 0 for a small one."""
        first = 0
        for matrix in matrices:
            end = first + matrix.rows * matrix.columns
            self._tensors.append((matrix.name, first, end, matrix.columns))
            row, column = np.divmod(np.arange(matrix.stop - matrix.first), matrix.columns_of_chunks)
            low = first + row * CHUNK_SIDE * matrix.columns
            width = np.minimum(matrix.columns - column * CHUNK_SIDE, CHUNK_SIDE)
            cut = slice(matrix.first, matrix.stop)
            table[:, cut] = low + column * CHUNK_SIDE, np.full_like(row, matrix.columns), width, np.full_like(row, end)
            self._low[cut], self._high[cut] = low, np.minimum(low + CHUNK_SIDE * matrix.columns, end)
            first = end
        if lines:
            shift = first - lines[0].first
            self._tensors += [(line.name, line.first + shift, line.stop + shift, 0) for line in lines]
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
        """Largest |entry| of all tensors, a scalar on the device; NaN if one is. Looks at so many chunks at once."""
        spans = (self._span(first, stop - first) for first, stop in strips(len(self._low), strip_chunks))
        extremes = [extreme for low, high in spans for extreme in torch.aminmax(self._cut(views, low, high))]
        return torch.stack(extremes).abs().max()

    def move(self, views: Mapping[str, Tensor], first: int, strip: Tensor, alpha: float) -> None:
        """Add `alpha` times a strip [n, 64, 64], from chunk `first` on, to the tensors that `views` returned."""
        low, high = self._span(first, len(strip))
        span = strip.new_zeros(high - low + 1)
        span.scatter_(0, self._places(first, len(strip), low, high).view(-1), strip.reshape(-1))
        found = [
            (view[rows], span[start - low : stop - low])
            for view, rows, start, stop in self._slices(views, low, high)
            if view is not None
        ]
        if found:
            targets, changes = zip(*((target, change.view(target.shape)) for target, change in found), strict=True)
            torch._foreach_add_(targets, changes, alpha=alpha)

    def _span(self, first: int, count: int) -> tuple[int, int]:
        """Entries of the line, from one up to another, that are whole rows and hold these chunks."""
        return int(self._low[first]), int(self._high[first + count - 1])

    def _cut(self, views: Mapping[str, Tensor], low: int, high: int) -> Tensor:
        """[high - low + 1]: a span in one piece; zeros for tensors that are not there, and one more for padding."""
        zero = torch.zeros(1, device=self._side.device)
        slices = [
            zero.expand(stop - start) if view is None else view[rows].reshape(-1)
            for view, rows, start, stop in self._slices(views, low, high)
        ]
        return torch.cat([*slices, zero])

    def _slices(
        self, views: Mapping[str, Tensor], low: int, high: int
    ) -> Iterator[tuple[Tensor | None, slice, int, int]]:
        """Of each tensor in a span: itself, which of its rows or entries, and where these stand in the line."""
        for name, first, end, columns in self._tensors:
            start, stop = max(low, first), min(high, end)
            if start < stop:
                length = columns or 1
                yield views.get(name), slice((start - first) // length, (stop - first) // length), start, stop

    def _places(self, first: int, count: int, low: int, high: int) -> Tensor:
        """int64 [n, 64, 64]: where in the span the entries of chunks stand; behind its end for padding."""
        base, stride, width, end = self._table[:, first : first + count, None, None]
        places: Tensor = self._side[:, None] * stride + (base - low) + self._side
        inside = (self._side < width) & (places < end - low)
        return places.masked_fill_(~inside, high - low)


def flat_order(layout: ChunkLayout, device: torch.device) -> FlatOrder:
    """The layout's order on a device; made once for each."""
    return _flat_order(layout.matrices, layout.lines, layout.chunks, device)


@lru_cache(maxsize=16)
def _flat_order(matrices: tuple[Matrix, ...], lines: tuple[Line, ...], chunks: int, device: torch.device) -> FlatOrder:
    return FlatOrder(matrices, lines, chunks, device)


def mover(
    layout: ChunkLayout, views: Mapping[str, Tensor], decay: float, device: torch.device
) -> Callable[[int, Tensor, float], None]:
    """What adds, to tensors that `layout.views` returned, strips that together hold every chunk once.

    It takes a strip's first chunk, the strip [n, 64, 64] and a factor. Every entry is multiplied by `decay` first,
    rounded, and then changed by the product."""
    if is_accelerator(device):
        order = flat_order(layout, device)
        if decay != 1 and views:
            torch._foreach_mul_(list(views.values()), decay)
        return partial(order.move, views)

    def move(first: int, strip: Tensor, alpha: float) -> None:
        for change, tensor in layout.pairs(views, first, strip):
            (tensor if decay == 1 else tensor.mul_(decay)).add_(change, alpha=alpha)

    return move


def gatherer(layout: ChunkLayout, device: torch.device) -> Callable[[Mapping[str, Tensor], int, Tensor], None]:
    """What fills the strip [n, 64, 64] that begins at a chunk from tensors that `layout.views` returned."""
    return flat_order(layout, device).gather if is_accelerator(device) else layout.gather_strip

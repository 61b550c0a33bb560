"""Chunks: the whole model as one tensor `[chunks, 64, 64]`, and back.

Parameters are taken in sorted-name order. One of two or more dimensions is a matrix (first
dimension, rest), padded with zeros to multiples of 64 both ways and cut into 64 x 64 chunks, row of
chunks after row of chunks. A small one (of fewer dimensions, or more than doubled by that padding)
is laid end to end with all other small ones behind the matrices, in one line padded to a multiple
of 4096.

    parameter "a" [64, 130]      "b" [10]     "w" [130, 64]
    chunks    0 1 2                           3        |  "b" and padding
                                              4        |  6
                                              5        |

Entries are only ever copied between a strip (any range of chunks, small enough for the cache) and
views of the tensors: `pairs` yields those views, and gathering, scattering and updating are three
loops over it. Chunks depend on nothing but names and shapes, so that every node cuts alike.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from protocol.errors import LocalProtocolError
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE

Shape = tuple[int, ...]
Pair = tuple[Tensor, Tensor]
"""Two views of one shape: entries of a strip, and of a tensor those that belong there."""

PADDING_FACTOR_MAX = 2
"""A matrix that padding makes more than this many times larger is small."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A parameter that has chunks of its own."""

    name: str
    rows: int
    columns: int
    first: int
    """Its first chunk."""

    @property
    def columns_of_chunks(self) -> int:
        return -(-self.columns // CHUNK_SIDE)

    @property
    def stop(self) -> int:
        """The chunk behind its last one."""
        return self.first + -(-self.rows // CHUNK_SIDE) * self.columns_of_chunks


@dataclass(frozen=True, slots=True)
class Line:
    """A small parameter, laid out flat among the others."""

    name: str
    entries: int
    first: int
    """Its first entry, counted from the first entry of chunk 0."""

    @property
    def stop(self) -> int:
        """The entry behind its last one."""
        return self.first + self.entries


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """The place of every entry of every parameter in `[chunks, 64, 64]`."""

    shapes: Mapping[str, Shape]
    """Shape of every parameter, in sorted-name order."""

    matrices: tuple[Matrix, ...]
    lines: tuple[Line, ...]
    chunks: int

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, Shape]) -> Self:
        """Layout of parameters with these names and shapes; `LocalProtocolError` if they hold no
        entry.
        """
        ordered = {name: tuple(shapes[name]) for name in sorted(shapes)}
        matrices: list[Matrix] = []
        first = 0
        for name, shape in ordered.items():
            if not _is_small(shape):
                matrices.append(Matrix(name, shape[0], math.prod(shape[1:]), first))
                first = matrices[-1].stop
        lines: list[Line] = []
        entry = first * CHUNK_ENTRIES
        for name, shape in ordered.items():
            if _is_small(shape):
                lines.append(Line(name, math.prod(shape), entry))
                entry = lines[-1].stop
        chunks = -(-entry // CHUNK_ENTRIES)
        if not chunks:
            raise LocalProtocolError(
                f"expected parameters with at least one entry, got shapes {ordered}"
            )
        return cls(ordered, tuple(matrices), tuple(lines), chunks)

    @property
    def parameters(self) -> int:
        """Entries of all parameters together, padding not counted."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def matrix_chunks(self) -> int:
        """Chunks of matrices, which come first; the others hold small parameters."""
        return self.matrices[-1].stop if self.matrices else 0

    def chunks_of(self, names: Collection[str]) -> Tensor:
        """Bool [chunks]: whether a chunk holds an entry of one of these parameters."""
        held = torch.zeros(self.chunks, dtype=torch.bool, device="cpu")
        for matrix in self.matrices:
            if matrix.name in names:
                held[matrix.first : matrix.stop] = True
        for line in self.lines:
            if line.name in names and line.entries:
                held[line.first // CHUNK_ENTRIES : -(-line.stop // CHUNK_ENTRIES)] = True
        return held

    def gather(self, tensors: Mapping[str, Tensor | None], out: Tensor | None = None) -> Tensor:
        """Chunks, float32 [chunks, 64, 64], of tensors of any dtype and strides; zeros for None and
        for padding.
        """
        views = self.views(tensors)
        if out is None:
            device = next(iter(views.values())).device if views else "cpu"
            out = torch.empty(
                self.chunks, CHUNK_SIDE, CHUNK_SIDE, dtype=torch.float32, device=device
            )
        self.gather_strip(views, 0, out)
        return out

    def gather_strip(self, views: Mapping[str, Tensor], first: int, strip: Tensor) -> None:
        """Fill the strip [n, 64, 64], of any float dtype, that begins at chunk `first`; `views` are
        those of `ChunkLayout.views`.
        """
        pairs = list(self.pairs(views, first, strip))
        if sum(entries.numel() for entries, _ in pairs) < strip.numel():  # None or padding
            strip.zero_()
        for entries, tensor in pairs:
            entries.copy_(
                tensor.to(entries.dtype)
            )  # converted where it lies in long rows: twice as fast

    def scatter(self, chunks: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Write [chunks, 64, 64] back over tensors: the inverse of `gather`; padding is dropped."""
        views = self.views(tensors)
        for entries, tensor in self.pairs(views, 0, chunks):
            tensor.copy_(entries)
        self.write_back(views, tensors)

    def views(self, tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """Matrices and lines that view the tensors, without those that are None.

        `LocalProtocolError` for tensors of other names or shapes. A tensor whose strides allow no
        such view is copied: after changing views call `write_back`.
        """
        if tensors.keys() != self.shapes.keys():
            odd = sorted(tensors.keys() ^ self.shapes.keys())
            raise LocalProtocolError(
                f"expected a tensor for each of {len(self.shapes)} parameters, got {len(tensors)}, "
                f"at odds over {odd[:8]}"
            )
        for name, tensor in tensors.items():
            if tensor is not None and tuple(tensor.shape) != self.shapes[name]:
                raise LocalProtocolError(
                    f"expected {name} of shape {self.shapes[name]}, got {tuple(tensor.shape)}"
                )
        views: dict[str, Tensor] = {}
        for matrix in self.matrices:
            if (tensor := tensors[matrix.name]) is not None:
                views[matrix.name] = tensor.detach().reshape(matrix.rows, matrix.columns)
        for line in self.lines:
            if (tensor := tensors[line.name]) is not None:
                views[line.name] = tensor.detach().reshape(-1)
        return views

    def write_back(self, views: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Copy changes of views that had to be copies into their tensors."""
        for name, view in views.items():
            if view.data_ptr() != tensors[name].data_ptr():
                tensors[name].detach().copy_(view.view(self.shapes[name]))

    def pairs(self, views: Mapping[str, Tensor], first: int, strip: Tensor) -> Iterator[Pair]:
        """Views of the strip [n, 64, 64] that begins at chunk `first`, each with its view of a
        tensor.

        Together they cover every entry of the strip that belongs to one of the views, once.
        """
        for matrix, low, high in self.matrices_in(first, first + len(strip)):
            if matrix.name in views:
                part = strip[matrix.first + low - first : matrix.first + high - first]
                yield from _matrix_pairs(views[matrix.name], low, part, matrix)
        yield from self._line_pairs(views, first * CHUNK_ENTRIES, strip.view(-1))

    def matrices_in(self, first: int, stop: int) -> Iterator[tuple[Matrix, int, int]]:
        """(matrix, low, high) for each matrix with chunks from `first` up to `stop`: these are its
        own chunks [low, high), counted from 0.
        """
        start = bisect_right(self.matrices, first, key=lambda matrix: matrix.stop)
        for matrix in self.matrices[start:]:
            if matrix.first >= stop:
                break
            yield matrix, max(first - matrix.first, 0), min(stop, matrix.stop) - matrix.first

    def names_in(self, first: int, stop: int) -> set[str]:
        """The parameters with entries in the chunks from `first` up to `stop`."""
        low, high = first * CHUNK_ENTRIES, stop * CHUNK_ENTRIES
        small = {line.name for line in self.lines if line.first < high and line.stop > low}
        return small | {matrix.name for matrix, _, _ in self.matrices_in(first, stop)}

    def _line_pairs(self, views: Mapping[str, Tensor], first: int, strip: Tensor) -> Iterator[Pair]:
        """The pairs of small parameters, for a flat strip that begins at entry `first`."""
        stop = first + len(strip)
        start = bisect_right(self.lines, first, key=lambda line: line.stop)
        for line in self.lines[start:]:
            if line.first >= stop:
                break
            if line.name in views:
                low, high = max(first, line.first), min(stop, line.stop)
                yield (
                    strip[low - first : high - first],
                    views[line.name][low - line.first : high - line.first],
                )


def strips(chunks: int, strip_chunks: int, *, start: int = 0) -> Iterator[tuple[int, int]]:
    """Ranges [first, stop) of at most `strip_chunks` chunks that cover the chunks from `start` on,
    in order.
    """
    for first in range(start, chunks, strip_chunks):
        yield first, min(first + strip_chunks, chunks)


def _is_small(shape: Shape) -> bool:
    """Whether a parameter shares its chunks with others."""
    if len(shape) < 2:
        return True
    rows, columns = shape[0], math.prod(shape[1:])
    padded = -(-rows // CHUNK_SIDE) * -(-columns // CHUNK_SIDE) * CHUNK_ENTRIES
    return padded > PADDING_FACTOR_MAX * rows * columns


def _matrix_pairs(view: Tensor, first: int, strip: Tensor, matrix: Matrix) -> Iterator[Pair]:
    """The pairs of a strip that lies within one matrix and begins at the matrix's chunk `first`."""
    width = matrix.columns_of_chunks
    stop = first + len(strip)
    low = first
    while low < stop:
        row, column = divmod(low, width)
        if column or stop - low < width:  # a piece of one row of chunks
            rows, columns = 1, min(width - column, stop - low)
        else:
            rows, columns = (stop - low) // width, width
        high = low + rows * columns
        grid = strip[low - first : high - first].view(rows, columns, CHUNK_SIDE, CHUNK_SIDE)
        yield from _grid_pairs(
            grid,
            view[
                row * CHUNK_SIDE : (row + rows) * CHUNK_SIDE,
                column * CHUNK_SIDE : (column + columns) * CHUNK_SIDE,
            ],
        )
        low = high


def _grid_pairs(grid: Tensor, region: Tensor) -> Iterator[Pair]:
    """The pairs of chunks [rows, columns, 64, 64] and the region that they hold: its inside, its
    two edges and its corner.
    """
    for chunk_rows, rows, height in _cuts(region.shape[0]):
        for chunk_columns, columns, width in _cuts(region.shape[1]):
            entries = grid[chunk_rows, chunk_columns, :height, :width].transpose(1, 2)
            yield entries, region[rows, columns].view(entries.shape)


def _cuts(length: int) -> Iterator[tuple[slice, slice, int]]:
    """(chunks, entries, entries per chunk) of the whole chunks along one side, then of the cut
    chunk.
    """
    whole, rest = divmod(length, CHUNK_SIDE)
    if whole:
        yield slice(0, whole), slice(0, whole * CHUNK_SIDE), CHUNK_SIDE
    if rest:
        yield slice(whole, whole + 1), slice(whole * CHUNK_SIDE, length), rest


def require_exact(parameters: Mapping[str, Tensor | None], scalars: Mapping[str, float]) -> None:
    """`LocalProtocolError` for parameters that are not float32, or scalars that are not finite
    float32 values: nodes could make different bits of them.
    """
    for name, tensor in parameters.items():
        if tensor is not None and tensor.dtype != torch.float32:
            raise LocalProtocolError(f"expected {name} in float32, got {tensor.dtype}")
    for name, value in scalars.items():
        if not math.isfinite(value) or float(np.float32(value)) != value:
            raise LocalProtocolError(f"expected a {name} that is a float32 value, got {value!r}")

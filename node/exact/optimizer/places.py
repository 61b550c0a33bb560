"""The place of each trained parameter of a group in the engine's chunks.

A matrix has chunks of its own. All others, of which a model may have thousands, lie end to end in
one line behind the matrices (`chunks`). To work on them all at once, the engine gets them as few
long lines, one for each dtype.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import prod

import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout
from protocol.limits import CHUNK_ENTRIES


@dataclass(frozen=True, slots=True)
class Stretch:
    """Parameters of one dtype that lie end to end: one parameter to the engine."""

    name: str
    dtype: torch.dtype
    indices: tuple[int, ...]
    """Which parameters of the group, in order."""

    lengths: tuple[int, ...]
    """Entries of each."""

    start: int
    """Its first entry, counted along the line."""

    @property
    def stop(self) -> int:
        return self.start + sum(self.lengths)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parameters of one group are."""

    shapes: Mapping[int, tuple[int, ...]]
    """The shape of every trained parameter, by its index in the group."""

    matrices: Mapping[int, str]
    """The engine's names of those with chunks of their own."""

    stretches: tuple[Stretch, ...]
    layout: ChunkLayout

    @classmethod
    def of(cls, parameters: Mapping[int, Tensor]) -> "Places":
        """Places of trained parameters, by their index in the group."""
        shapes = {index: tuple(parameter.shape) for index, parameter in parameters.items()}
        alone = ChunkLayout.from_shapes({_name(index): shape for index, shape in shapes.items()})
        matrices = {int(matrix.name): matrix.name for matrix in alone.matrices}
        keys = {index: str(parameters[index].dtype) for index in shapes if index not in matrices}
        stretches: list[Stretch] = []
        start = 0
        for key, members in groupby(sorted(keys, key=lambda index: (keys[index], index)), keys.get):
            indices = tuple(members)
            lengths = tuple(prod(shapes[index]) for index in indices)
            stretches.append(
                Stretch(str(key), parameters[indices[0]].dtype, indices, lengths, start)
            )
            start = stretches[-1].stop
        layout = ChunkLayout.from_shapes(
            {name: shapes[index] for index, name in matrices.items()}
            | {stretch.name: (stretch.stop - stretch.start,) for stretch in stretches}
        )
        return cls(shapes, matrices, tuple(stretches), layout)

    @property
    def starts(self) -> dict[int, int]:
        """First entries of those that lie end to end, counted along the line."""
        lengths = [length for stretch in self.stretches for length in stretch.lengths]
        return dict(zip(self.line, accumulate(lengths, initial=0), strict=False))

    @property
    def line(self) -> list[int]:
        """Indices of the parameters that lie end to end, in order."""
        return [index for stretch in self.stretches for index in stretch.indices]

    def length(self, indices: Sequence[int]) -> int:
        """Entries of these parameters together."""
        return sum(prod(self.shapes[index]) for index in indices)

    def active(self, present: Collection[int]) -> Tensor | None:
        """Bool [chunks] on the CPU: which hold an entry of one of these parameters; None: all."""
        if len(present) == len(self.shapes):
            return None
        held = torch.zeros(self.layout.chunks, dtype=torch.bool, device="cpu")
        for matrix in self.layout.matrices:
            held[matrix.first : matrix.stop] = int(matrix.name) in present
        first = self.layout.matrix_chunks * CHUNK_ENTRIES
        for stretch in self.stretches:
            for index, length in zip(stretch.indices, stretch.lengths, strict=True):
                if index in present:
                    held[first // CHUNK_ENTRIES : -(-(first + length) // CHUNK_ENTRIES)] = True
                first += length
        return held


def _name(index: int) -> str:
    """A name that sorts in the group's own order."""
    return f"{index:08d}"

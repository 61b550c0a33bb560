"""The parameters that one rank of a node owns: committed, residual and optimizer's state of them.

Who owns what is a function of the shapes and of the number of ranks. A matrix belongs to one rank,
whole, and so do its chunks. Small parameters share chunks, and belong to one rank together. The
largest comes first, each to the rank with the least so far: so no rank owns more than its part of
the model and one largest parameter.

    chunks of the model     a a a b c c c c | small ones
    owner, of two ranks     1 1 1 1 0 0 0 0   1
    chunks of rank 1        a a a b           small ones      the same ones in the same order
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod

import numpy as np
import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout, Shape
from protocol.codec.payload import Coefficients
from protocol.codec.sums import Levels


def owners_of(layout: ChunkLayout, ranks: int) -> dict[str, int]:
    """The rank that owns each parameter."""
    groups = [[matrix.name] for matrix in layout.matrices] + [[line.name for line in layout.lines]]
    sizes = [sum(prod(layout.shapes[name]) for name in names) for names in groups]
    owners, loads = dict[str, int](), [0] * ranks
    for size, names in sorted(
        zip(sizes, groups, strict=True), key=lambda each: (-each[0], each[1])
    ):
        owner = loads.index(min(loads))
        loads[owner] += size
        owners |= dict.fromkeys(names, owner)
    return owners


class RankShare:
    """One rank's parameters, and their chunks among those of the model."""

    def __init__(self, layout: ChunkLayout, rank: int = 0, ranks: int = 1) -> None:
        self._whole = layout
        self.owners = owners_of(layout, ranks)
        """The owner of each parameter of the model."""
        self.names = [name for name in layout.shapes if self.owners[name] == rank]
        shapes = {name: layout.shapes[name] for name in self.names}
        self.layout = ChunkLayout.from_shapes(shapes) if shapes else ChunkLayout({}, (), (), 0)
        """The layout of these parameters alone."""
        self.chunks = self.chunks_of(rank)
        """Bool [chunks of the model]: those of this rank."""

    def chunks_of(self, rank: int) -> Tensor:
        """Bool [chunks of the model]: those of a rank."""
        return self._whole.chunks_of([name for name, each in self.owners.items() if each == rank])

    def cut(self, coefficients: Coefficients) -> Coefficients:
        """The coefficients of this rank's chunks among those of all."""
        mine, scales = self.chunks.numpy(), coefficients.scales
        if mine.all():
            return coefficients
        entries = np.repeat(mine, coefficients.counts)
        return Coefficients(
            coefficients.counts[mine],
            coefficients.indices[entries],
            coefficients.values[entries],
            None if scales is None else scales[mine],
        )

    def cut_levels(self, levels: Levels) -> Levels:
        """The sums of this rank's chunks among those of all."""
        mine = self.chunks.numpy()
        if mine.all():
            return levels
        entries = np.repeat(mine, levels.counts)
        return Levels(
            levels.exponents[mine],
            levels.steps[mine],
            levels.counts[mine],
            levels.indices[entries],
            levels.values[entries],
        )


class SpreadParameters(Mapping[str, Tensor]):
    """Parameters that lie on several ranks. Each one is fetched when it is asked for, a copy."""

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        fetch: Callable[[str], Tensor],
        put: Callable[[str, Tensor], None],
    ) -> None:
        """`put` gives a parameter's new value to its owner."""
        self.shapes, self._fetch, self.put = shapes, fetch, put

    def __getitem__(self, name: str) -> Tensor:
        return self._fetch(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def shapes_of(parameters: Mapping[str, Tensor]) -> Mapping[str, Shape]:
    """The shape of each, of which none is fetched for it."""
    if isinstance(parameters, SpreadParameters):
        return parameters.shapes
    return {name: tuple(tensor.shape) for name, tensor in parameters.items()}


def prefixed(parameters: Mapping[str, Tensor], prefix: str) -> Mapping[str, Tensor]:
    """The same parameters, with longer names."""
    if not isinstance(parameters, SpreadParameters):
        return {prefix + name: tensor for name, tensor in parameters.items()}
    return SpreadParameters(
        {prefix + name: shape for name, shape in parameters.shapes.items()},
        lambda name: parameters[name.removeprefix(prefix)],
        parameters.put,
    )


@contextmanager
def filled(parameters: Mapping[str, Tensor], name: str) -> Iterator[Tensor]:
    """A tensor that is to be filled with a parameter's new value, and is the parameter's own where
    that lies here.
    """
    if isinstance(parameters, SpreadParameters):
        tensor = torch.empty(parameters.shapes[name], device="cpu")
        yield tensor
        parameters.put(name, tensor)
    else:
        yield parameters[name]

"""The processor's way: compiled kernels take every chunk through all steps in its own cache.

A kernel works on some chunks of one matrix; here this is done for a model, by as many threads as
torch would use. Small parameters, which are few, and tensors that no kernel can change in place go
the plain way. Without numba everything does, and where a first step in kernels differs from the
plain one by a bit.
"""

import logging
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout, strips
from node.exact.contributions import Contribution
from node.exact.dct import dct_matrix, integer_matrix
from node.exact.demo.votes import Votes
from node.exact.plain import Plain, Views
from node.system.threads import spread
from protocol.codec.payload import Body, Coefficients, PayloadShape
from protocol.limits import CHUNK_SIDE

PART_CHUNKS = 64
"""Chunks that a thread takes at a time: some tenths of a millisecond of work, many times what it
takes to fetch them."""

Part = tuple[int, int]
"""A range of chunks [first, stop)."""

log = logging.getLogger("lockstep.node")

_CPU = torch.device("cpu")

_own = threading.local()


class CpuKernels:
    """Compiled kernels for one layout; `backend.Backend` says what its methods promise."""

    def __init__(self, layout: ChunkLayout, kernels: ModuleType) -> None:
        self._layout = layout
        self._kernels = kernels
        self._plain = Plain(layout)

    def accumulate(
        self,
        gradients: Views,
        unsaid: Tensor,
        decay: float,
        active: Tensor | None = None,
        *,
        start: int = 0,
    ) -> None:
        moved, flags = unsaid.numpy(), self._flags(active, len(unsaid))
        transform, rate = _forward_matrix(), np.float32(decay)

        def work(part: Part) -> None:
            for matrix, first, stop in self._layout.matrices_in(*part):
                width = matrix.columns_of_chunks
                top = first // width
                here = slice(matrix.first + first - start, matrix.first + stop - start)
                kept, flagged = moved[here], flags[here]
                low, high = first - top * width, stop - top * width
                if matrix.name in gradients:
                    last = -(-stop // width)
                    rows = gradients[matrix.name][top * CHUNK_SIDE : last * CHUNK_SIDE]
                    gradient = rows.float().contiguous().numpy()
                    place, tools = (width, low, high), self._tools(transform)
                    self._kernels.accumulate(gradient, place, kept, (rate, flagged), tools)
                else:
                    kept *= np.where(flagged, rate, np.float32(1))[:, None, None]

        small = max(start, min(self._layout.matrix_chunks, start + len(unsaid)))
        _spread(work, small, start)
        if small < start + len(unsaid):
            rest = slice(small - start, None)
            flagged = None if active is None else active[rest]
            self._plain.accumulate(gradients, unsaid[rest], decay, flagged, start=small)

    def extract(
        self, unsaid: Tensor, top_k: int, alpha: float, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        chunks = len(unsaid)
        indices = torch.empty(chunks, top_k, dtype=torch.int16, device="cpu")
        previous = torch.empty(chunks, top_k, dtype=torch.float32, device="cpu")
        moved, leaving = unsaid.numpy(), (np.float32(alpha), self._flags(active, chunks))
        out = indices.numpy(), previous.numpy()
        _spread(lambda part: self._kernels.extract(moved, part, leaving, out), chunks)
        return indices, previous

    def update(self, parameters: Views, votes: Votes, rates: tuple[float, float]) -> None:
        if not self._can_change(parameters):
            self._plain.update(parameters, votes, rates)
            return
        stacked = tuple(votes.stacked())
        how = np.float32(rates[0]), np.float32(rates[1])
        transform = integer_matrix(_CPU).numpy()

        def work(part: Part) -> None:
            for matrix, first, stop in self._layout.matrices_in(*part):
                if matrix.name in parameters:
                    place = (matrix.columns_of_chunks, first, stop, matrix.first)
                    parameter = parameters[matrix.name].numpy()
                    self._kernels.update(parameter, place, stacked, how, self._tools(transform))

        matrix_chunks = self._layout.matrix_chunks
        _spread(work, matrix_chunks)
        self._plain.update(parameters, votes, rates, start=matrix_chunks)

    def magnitude(self, views: Views) -> Tensor:
        return self._plain.magnitude(views)

    def pack(self, indices: Tensor, values: Tensor, shape: PayloadShape) -> Body:
        return self._plain.pack(indices, values, shape)

    def _can_change(self, parameters: Views) -> bool:
        """Whether kernels can change these tensors where they are."""
        names = (matrix.name for matrix in self._layout.matrices)
        matrices = (parameters[name] for name in names if name in parameters)
        return all(view.dtype == torch.float32 and view.is_contiguous() for view in matrices)

    def _tools(self, transform: Any) -> Any:
        return transform, _scratch(self._kernels.SCRATCH)

    def _flags(self, active: Tensor | None, chunks: int) -> Any:
        """Bool [chunks]."""
        return np.ones(chunks, np.bool_) if active is None else active.numpy()


@cache
def _forward_matrix() -> Any:
    """float32 [64, 32]: D as the kernels take it, each line's first part as a column: of its rows
    1, 3, 5... the first halves stand in those rows, and of rows 0, 4, 8... and of 2, 6, 10... the
    first quarters in theirs; the rest is 0.
    """
    matrix, found = dct_matrix(_CPU), torch.zeros(CHUNK_SIDE, CHUNK_SIDE // 2, dtype=torch.float32)
    for first, step in ((0, 4), (2, 4), (1, 2)):
        length = CHUNK_SIDE // step
        found[first::step, :length] = matrix[first::step, :length].T
    return found.numpy()


@cache
def exact_kernels() -> ModuleType | None:
    """The kernels; None without numba, where numba does not support this numpy or Python yet, or
    where its machine code for this processor is not exact.
    """
    try:
        kernels = import_module("node.exact.kernels.compiled")
        exact = _exact(kernels)
    except ImportError:
        return None
    except Exception as error:  # a compiler may raise anything on a processor new to it
        log.warning(
            "expected kernels for this processor, got %r: the engine works without, more slowly",
            error,
        )
        return None
    if not exact:
        log.warning(
            "expected exact kernels for this processor, got other bits: the engine works without, "
            "more slowly"
        )
    return kernels if exact else None


def _exact(kernels: ModuleType) -> bool:
    """Whether a step equals the plain one, for votes that use all bits."""
    layout = ChunkLayout.from_shapes({"m": (130, 120)})
    places = np.tile(np.arange(7, 4096, 13, dtype=np.uint16), layout.chunks)
    counts = np.full(layout.chunks, len(places) // layout.chunks, np.uint16)
    sizes = np.arange(len(places)) ** 2 % 255 - 127
    sent = Coefficients(counts, places, np.where(sizes == 0, 128, sizes).astype(np.int16))
    votes = Votes(layout, [Contribution(1, sent), Contribution(100_000, sent)])
    rates = float(np.float32(0.004)), float(np.float32(0.9996))
    before = torch.linspace(-1, 1, 130 * 120, device="cpu").view(130, 120)
    found, expected = {"m": before.clone()}, {"m": before.clone()}
    CpuKernels(layout, kernels).update(found, votes, rates)
    Plain(layout).update(expected, votes, rates)
    return torch.equal(found["m"], expected["m"])


def _scratch(chunks: int) -> Any:
    """Chunks to work in, this thread's own; torch aligns them with the lines of the cache."""
    if not hasattr(_own, "scratch"):
        size = (chunks, CHUNK_SIDE, CHUNK_SIDE)
        _own.scratch = torch.empty(size, dtype=torch.float32, device="cpu").numpy()
    return _own.scratch


def _spread(work: Callable[[Part], object], stop: int, start: int = 0) -> None:
    """Have all parts of these chunks worked on, each once, by this thread and others."""
    spread(work, list(strips(stop, PART_CHUNKS, start=start)), torch.get_num_threads())

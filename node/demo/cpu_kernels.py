"""The engine on a CPU, in compiled kernels: every chunk taken through all steps of a part in a processor's own cache.

What a kernel does for some chunks of one matrix is done here for a model, by as many threads as torch would use.
Small parameters, which are few, and whatever has no kernel go the plain way, strip by strip. A model of a few chunks
does so altogether: to load the compiler takes longer than it saves. Without numba every model does, and where a first
step in kernels is not bit for bit the plain one.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.demo.accelerator import is_accelerator
from node.demo.chunks import ChunkLayout, strips
from node.demo.dct import dct_matrix, exact_products, integer_matrix, inverse_signs_
from node.demo.orthogonalise import inverse_orthogonal_
from node.demo.vote_sum import Contribution, Votes
from protocol.limits import CHUNK_SIDE
from protocol.payload import Coefficients

CHUNKS_MIN = 1024
"""Chunks from which on kernels are used: four million parameters. To load them takes most of a second, and some ten
the first time on a machine."""

PART_CHUNKS = 64
"""Chunks that a thread takes at a time: some tenths of a millisecond, many times what it takes to fetch them."""

Part = tuple[int, int]
"""Chunks, from the first up to another one."""

log = logging.getLogger("lockstep.node")

_CPU = torch.device("cpu")

_own = threading.local()


class Fused:
    """Kernels for one layout."""

    def __init__(self, layout: ChunkLayout, kernels: ModuleType) -> None:
        self._layout = layout
        self._kernels = kernels

    def takes(self, views: Mapping[str, Tensor]) -> bool:
        """Whether kernels can change these tensors, from `layout.views`, where they are."""
        matrices = (views[matrix.name] for matrix in self._layout.matrices if matrix.name in views)
        return all(view.dtype == torch.float32 and view.is_contiguous() for view in matrices)

    def accumulate(
        self, views: Mapping[str, Tensor], momentum: Tensor, decay: float, active: Tensor | None = None
    ) -> None:
        """M <- decay * M + DCT2(G) for all matrices; a missing one counts as zeros."""
        moved, flags = momentum.numpy(), self._flags(active)
        transform, rate = _forward_matrix(), np.float32(decay)

        def work(part: Part) -> None:
            for matrix, first, stop in self._layout.matrices_in(*part):
                width = matrix.columns_of_chunks
                top = first // width
                kept, flagged = (each[matrix.first + top * width : matrix.stop] for each in (moved, flags))
                first, stop = first - top * width, stop - top * width
                if matrix.name in views:
                    rows = views[matrix.name][top * CHUNK_SIDE :][: -(-stop // width) * CHUNK_SIDE]
                    gradient = rows.float().contiguous().numpy()
                    place = (width, first, stop)
                    self._kernels.accumulate(gradient, place, kept, (rate, flagged), self._tools(transform))
                else:
                    kept[first:stop] *= np.where(flagged[first:stop], rate, np.float32(1))[:, None, None]

        _spread(work, self._layout.matrix_chunks)

    def extract(self, momentum: Tensor, alpha: float, active: Tensor | None, out: tuple[Tensor, Tensor]) -> None:
        """Take the k largest |M| of each chunk, or alpha of them, out of the momentum.

        `out` is int16 [chunks, k], their places in ascending order, and float32 [chunks, k], what stood there."""
        moved, leaving = momentum.numpy(), (np.float32(alpha), self._flags(active))
        places, previous = (each.numpy() for each in out)
        _spread(lambda part: self._kernels.extract(moved, part, leaving, (places, previous)), self._layout.chunks)

    def update(
        self, views: Mapping[str, Tensor], votes: Votes, rates: tuple[float, float], *, orthogonal: bool
    ) -> None:
        """P <- P * decay - learning_rate * U for all matrices; `rates` is (learning rate, decay)."""
        found = tuple(votes.stacked())
        rule = ((np.float32(rates[0]), np.float32(rates[1])), orthogonal)
        transform = integer_matrix(_CPU).numpy()

        def work(part: Part) -> None:
            for matrix, first, stop in self._layout.matrices_in(*part):
                if matrix.name in views:
                    place = (matrix.columns_of_chunks, first, stop, matrix.first)
                    parameter = views[matrix.name].numpy()
                    self._kernels.update(parameter, place, found, rule, self._tools(transform))

        _spread(work, self._layout.matrix_chunks)

    def guess(self, momentum: Tensor, sent: tuple[Tensor, Tensor], guess: Tensor, *, orthogonal: bool) -> None:
        """Fill int8 [chunks, 64, 64] for all matrices, as `Engine.guess` does; `sent` is (indices, values)."""
        moved, out = momentum.numpy(), (guess.numpy(), orthogonal)
        indices, values = (each.numpy() for each in sent)
        transform = (integer_matrix if orthogonal else dct_matrix)(_CPU).numpy()

        def work(part: Part) -> None:
            self._kernels.guess(moved, part, (indices, values), out, self._tools(transform))

        _spread(work, self._layout.matrix_chunks)

    def _tools(self, transform: Any) -> Any:
        return transform, _scratch(self._kernels.SCRATCH)

    def _flags(self, active: Tensor | None) -> Any:
        return np.ones(self._layout.chunks, np.bool_) if active is None else active.numpy()


def fused(layout: ChunkLayout, device: torch.device) -> Fused | None:
    """Kernels for a model on a device, where there are any and they pay."""
    if is_accelerator(device) or layout.chunks < CHUNKS_MIN:
        return None
    kernels = _kernels()
    return Fused(layout, kernels) if kernels else None


@cache
def _forward_matrix() -> Any:
    """float32 [64, 32]: first halves of D's rows 1, 3, 5... as columns in these rows, and first quarters of its rows 0,
    4, 8... and of 2, 6, 10... in theirs; what is left is 0."""
    matrix, found = dct_matrix(_CPU), torch.zeros(CHUNK_SIDE, CHUNK_SIDE // 2)
    for first, step in ((0, 4), (2, 4), (1, 2)):
        length = CHUNK_SIDE // step
        found[first::step, :length] = matrix[first::step, :length].T
    return found.numpy()


@cache
def _kernels() -> ModuleType | None:
    """The kernels; None without numba, where numba does not know this numpy or Python yet, or where what it makes for
    this processor is not exact."""
    try:
        kernels = import_module("node.demo.kernels")
        exact = all(_exact(kernels, orthogonal=orthogonal) for orthogonal in (False, True))
    except ImportError:
        return None
    except Exception as error:  # a compiler may raise anything on a processor on which nobody has tried it
        log.warning("expected kernels for this processor, got %r: all is done without, more slowly", error)
        return None
    if not exact:
        log.warning("expected exact kernels for this processor, got other bits: all is done without, more slowly")
    return kernels if exact else None


def _exact(kernels: ModuleType, *, orthogonal: bool) -> bool:
    """Whether a step is that of the plain way, for votes that take all the bits there are."""
    layout = ChunkLayout.from_shapes({"m": (130, 120)})
    places = np.tile(np.arange(7, 4096, 13, dtype=np.uint16), layout.chunks)
    counts = np.full(layout.chunks, len(places) // layout.chunks, np.uint16)
    sizes = np.arange(len(places)) ** 2 % 255 - 127
    sent = Coefficients(counts, places, np.where(sizes == 0, 128, sizes).astype(np.int16))
    votes = Votes(layout, [Contribution(1, sent), Contribution(100_000, sent)], _CPU)
    rate, decay = float(np.float32(0.004)), float(np.float32(0.9996))
    before, step = torch.linspace(-1, 1, 130 * 120).view(130, 120), torch.empty(130, 120)
    found = before.clone()
    Fused(layout, kernels).update({"m": found}, votes, (rate, decay), orthogonal=orthogonal)
    with exact_products(_CPU):
        sums = votes.sum_strip(0, torch.empty(layout.chunks, CHUNK_SIDE, CHUNK_SIDE))
        layout.scatter(inverse_orthogonal_(sums) if orthogonal else inverse_signs_(sums, votes.sum_max), {"m": step})
    return torch.equal(found, (before * decay).sub_(step.mul_(rate)))


def _scratch(chunks: int) -> Any:
    """Chunks to work in, this thread's own; torch begins them at the beginning of a line of the cache."""
    if not hasattr(_own, "scratch"):
        _own.scratch = torch.empty(chunks, CHUNK_SIDE, CHUNK_SIDE).numpy()
    return _own.scratch


def _spread(work: Callable[[Part], object], chunks: int) -> None:
    """Have all parts of so many chunks worked on, each once, by this thread and others."""
    parts = iter(list(strips(chunks, PART_CHUNKS)))  # of a list: next() of it is one step, so no part comes twice

    def take() -> None:
        for part in parts:
            work(part)

    others = torch.get_num_threads() - 1
    tasks = [_pool(others).submit(take) for _ in range(others)]
    try:
        take()
    finally:
        wait(tasks)
    for task in tasks:
        task.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="demo")

"""A pass made in each of its ways: its time, and the memory that it takes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from node.model import head, training
from node.model.training import TrainingModel
from tests.benchmarks.engine.footprint import peak_extra_bytes
from tests.benchmarks.spread import spread
from tests.support.allocations import peak_allocated_bytes

Row = dict[str, Any]


@contextlib.contextmanager
def logits_at_once(count: int) -> Iterator[None]:
    """Meanwhile a pass makes at most this many logits at once."""
    with contextlib.ExitStack() as stack:
        for module in (head, training):
            stack.enter_context(mock.patch.object(module, "PIECE_ENTRIES", count))
        yield


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Most memory of tensors on the device during `work` above what is held before."""
    if device.type == "cpu":
        return peak_allocated_bytes(work)
    return peak_extra_bytes(work, device) or 0


def measured(trainee: TrainingModel, tokens: Tensor, repeats: int) -> Iterator[list[Row]]:
    """Rows of all ways, again and again as they grow: logits whole or by pieces, activations kept
    or computed again, in turns; `ratio` is to the first way's time in the same turn.
    """
    trainee.zero_gradients()
    ways = [
        {"pieces": pieces, "recomputes": recomputes}
        for recomputes, pieces in product((False, True), repeat=2)
    ]
    peaks = [
        peak_bytes(lambda way=way: _made(trainee, tokens, **way), trainee.device) for way in ways
    ]
    laps: list[list[float]] = []
    for _ in range(repeats):
        laps.append([_made(trainee, tokens, **way) for way in ways])
        yield [
            {
                **way,
                "peak_bytes": peak,
                "seconds": spread([turn[place] for turn in laps], 6),
                "ratio": spread([turn[place] / turn[0] for turn in laps], 4),
                "tokens_per_second": round(_targets(tokens) / min(t[place] for t in laps), 1),
            }
            for place, (way, peak) in enumerate(zip(ways, peaks, strict=True))
        ]


def _made(trainee: TrainingModel, tokens: Tensor, *, pieces: bool, recomputes: bool) -> float:
    """Seconds of a pass made this way; on a CPU those of the processor, which others' work does not
    lengthen.
    """
    clock = time.process_time if trainee.device.type == "cpu" else time.perf_counter
    if trainee.recomputes != recomputes and not trainee.recompute(recomputes):
        raise RuntimeError("expected a model that can compute its blocks again, got another")
    trainee.model.train()
    with contextlib.nullcontext() if pieces else logits_at_once(2**62):
        began_s = clock()
        trainee.gradient(tokens)
        return clock() - began_s


def _targets(tokens: Tensor) -> int:
    return len(tokens) * (tokens.shape[1] - 1)

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
from node.model.precision import gradient_of
from node.model.training import TrainingModel
from tests.benchmarks.engine.footprint import peak_extra_bytes
from tests.benchmarks.spread import spread
from tests.support.allocations import peak_allocated_bytes

Row = dict[str, Any]

QUEUED_PASSES = 4
"""Passes of a round whose queue is measured."""


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
    ways = [
        {"pieces": pieces, "recomputes": recomputes}
        for recomputes, pieces in product((False, True), repeat=2)
    ]
    for way in ways:  # compiled blocks are compiled for each
        trainee.give_back_gradients()
        _made(trainee, tokens, **way)
    trainee.zero_gradients()
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


def queued(trainee: TrainingModel, tokens: Tensor, repeats: int) -> list[Row]:
    """Rows of a round of passes: each waited for before the next one is given, and as nodes make
    them, through the device's queue; `ratio` is to the first one's time in the same turn.
    """
    batches = [tokens] * QUEUED_PASSES
    ways: list[Callable[[], object]] = [
        lambda: _waited(trainee, batches),
        lambda: _as_nodes(trainee, batches),
    ]
    laps = []
    for turn in range(repeats + 1):
        seconds = [_seconds(way, trainee.device) for way in ways]
        if turn:  # the first one takes memory
            laps.append(seconds)
    return [
        {
            "queue": name,
            "seconds": spread([turn[place] for turn in laps], 6),
            "ratio": spread([turn[place] / turn[0] for turn in laps], 4),
            "tokens_per_second": round(
                QUEUED_PASSES * _targets(tokens) / min(turn[place] for turn in laps), 1
            ),
        }
        for place, name in enumerate((False, True))
    ]


def _waited(trainee: TrainingModel, batches: list[Tensor]) -> None:
    trainee.model.train()
    trainee.zero_gradients()
    for piece in trainee.pieces(batches):
        trainee.gradient(piece).item()
    for parameter in trainee.parameters.values():
        gradient_of(parameter).div_(len(batches) * len(batches[0]))


def _as_nodes(trainee: TrainingModel, batches: list[Tensor]) -> None:
    passes = trainee.passes(trainee.queue.fetched(batches))
    while passes.next():
        pass
    passes.finish()


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of the processor on a CPU, which others' work does not lengthen."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    began_s = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - began_s


def _made(trainee: TrainingModel, tokens: Tensor, *, pieces: bool, recomputes: bool) -> float:
    """Seconds of a pass made this way."""
    if trainee.recomputes != recomputes and not trainee.recompute(recomputes):
        raise RuntimeError("expected a model that can compute its blocks again, got another")
    trainee.model.train()
    with contextlib.nullcontext() if pieces else logits_at_once(2**62):
        return _seconds(lambda: trainee.gradient(tokens), trainee.device)


def _targets(tokens: Tensor) -> int:
    return len(tokens) * (tokens.shape[1] - 1)

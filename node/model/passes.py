"""The passes of one round, and what they leave: the mean gradient over the samples managed before
the bell.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from node.model.queue import PassQueue
from protocol.errors import LocalProtocolError

Tokens = np.ndarray | Tensor
"""Samples as int64 [samples, sequence_length + 1]: inputs are all but the last, targets all but the
first."""


@dataclass(frozen=True, slots=True)
class RoundWork:
    """The work of one node in one round."""

    samples: int
    """Samples whose gradients are in `.grad`: the first ones of what was offered."""

    loss_nats_per_token: float
    """Mean cross-entropy over them; not finite when the numbers have blown up, and then neither is
    `.grad`."""

    tokens: int
    """Targets predicted."""


@dataclass(frozen=True, slots=True)
class EndedPasses:
    """What passes have summed up, as far as the device has made them."""

    samples: int
    tokens: int
    nats: tuple[Tensor, ...]
    """Cross-entropy of each pass over its targets, scalars on the device."""

    def work(self) -> RoundWork:
        """All of it; waits for the device."""
        nats = sum(each.item() for each in self.nats)
        return RoundWork(self.samples, nats / self.tokens, self.tokens)


class Passes(Protocol):
    """Forward and backward passes of one round, one micro-batch after the other. Blocks."""

    @property
    def samples(self) -> int:
        """Samples trained so far."""

    def next(self) -> bool:
        """Make one pass; False when there are no more samples."""

    def finish(self) -> RoundWork:
        """Complete the gradients."""


class BatchPasses(Passes, Protocol):
    """Those of one batch, whose gradients are one."""

    def end(self) -> EndedPasses:
        """Leave the mean gradient over the samples done, of which there must be one, in every
        parameter's `.grad`, without waiting for the device.
        """


class Trainee(Protocol):
    """The model at work, as its passes see it: see `node.model.training.TrainingModel`."""

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Those that are trained, by name."""

    @property
    def queue(self) -> PassQueue:
        """How the device takes passes."""

    def pieces(self, batches: Iterable[Tokens]) -> Iterator[Tensor]:
        """The samples in passes, on the device."""

    def gradient(self, piece: Tensor) -> Tensor:
        """Add the gradients of a piece; its cross-entropy, summed, a scalar on the device."""

    def zero_gradients(self) -> None:
        """Zeros for all parameters."""

    def in_memory(self, attempt: Callable[[], bool]) -> bool:
        """The result of an attempt that fits the memory."""


class GradientAccumulation:
    """One round's work, pass by pass: between two of them the bell may ring, or the parameters may
    move.
    """

    def __init__(self, trainee: Trainee, batches: Iterable[Tokens]) -> None:
        self._trainee, self._source = trainee, iter(batches)
        self._drawn: list[Tokens] = []
        self.samples = 0
        """Samples whose gradients are summed so far."""
        self._begin()

    def next(self) -> bool:
        """Make one pass; False when no sample is left. Raises what `in_memory` raises."""
        return self._trainee.in_memory(self._pass)

    def finish(self) -> RoundWork:
        """Leaves the mean gradient over the samples done, of which there must be one, in every
        parameter's `.grad`.
        """
        if self.samples == 0:
            raise LocalProtocolError("expected at least one sample to train on, got none")
        return self.end().work()

    def end(self) -> EndedPasses:
        """The same, without waiting for the device."""
        for parameter in self._trainee.parameters.values():
            if parameter.grad is not None:
                parameter.grad /= self.samples
        return EndedPasses(self.samples, self._tokens, tuple(self._nats))

    def _begin(self) -> None:
        self._trainee.zero_gradients()
        self.samples, self._tokens, self._failed = 0, 0, False
        self._nats: list[Tensor] = []
        self._pieces = self._trainee.pieces(chain(list(self._drawn), self._recorded()))

    def _pass(self) -> bool:
        if (
            self._failed
        ):  # it ran out of memory and has left part of its gradients behind: all starts again
            self._begin()
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._failed = True
        with self._trainee.queue.given(len(piece)):
            self._nats.append(self._trainee.gradient(piece))
        self.samples += len(piece)
        self._tokens += len(piece) * (piece.shape[1] - 1)
        self._failed = False
        return True

    def _recorded(self) -> Iterator[Tokens]:
        """The batches as they are drawn, which are kept: for a second attempt in smaller pieces."""
        for batch in self._source:
            self._drawn.append(batch)
            yield batch

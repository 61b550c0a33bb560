"""The local steps of one round, pass by pass: each batch makes one step of the node's optimizer.

    batch 1: pass pass | step    batch 2: pass pass | step    batch 3: pass  (the bell) | step

A batch that the bell cuts short makes a step of the samples that were trained, so no pass is for
nothing, and a node too slow for a whole batch makes one step all the same.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from node.exact.engine import GRADIENT_MAX, GradientError, require_finite
from node.exact.rounding import strips_of
from node.model.passes import BatchPasses, EndedPasses, RoundWork, Tokens
from node.model.training import TrainingModel
from protocol.errors import LocalProtocolError


class StepMaker(Protocol):
    """An optimizer of the model's parameters."""

    def step(self, learning_rate: float) -> None:
        """One step of every parameter by its `.grad`, which it may take."""


class MovedFrom(Mapping[str, Tensor]):
    """What steps have moved each parameter by, `start` less where it is now, as the residual takes
    it: computed each time that it is asked for, so that it takes no memory.
    """

    def __init__(self, start: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> None:
        """Steps in bfloat16 began at `start`, rounded to the nearest."""
        self._start, self._parameters = start, parameters

    def __getitem__(self, name: str) -> Tensor:
        start, now = self._start[name], self._parameters[name].detach()
        return start.to(now.dtype, copy=True).sub_(now.to(start.device))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


def moved_in_place(
    start: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """The same, with the same bits, in the memory of parameters that nobody needs any more."""
    moved = {name: parameter.detach() for name, parameter in parameters.items()}
    for name, place in moved.items():
        for begun, now in strips_of(start[name], place):
            torch.sub(begun.to(now.dtype), now, out=now)
    return moved


class LocalSteps:
    """One round's local steps; a round's `Passes`."""

    def __init__(
        self,
        trainee: TrainingModel,
        batches: Iterable[Tokens],
        optimizer: StepMaker,
        learning_rate: float,
    ) -> None:
        """`batches`: int64 [samples, length + 1] each, one for every step."""
        self._trainee, self._batches = trainee, trainee.queue.fetched(batches)
        self._optimizer, self._learning_rate = optimizer, learning_rate
        self._passes: BatchPasses | None = None
        self._left = 0
        self._done: list[EndedPasses] = []
        self._failure: GradientError | None = None
        self._unbounded: list[Tensor] = []
        """Flags of the steps on a device that is behind: gradients without bounds."""

    @property
    def samples(self) -> int:
        """Samples trained so far."""
        begun = self._passes.samples if self._passes else 0
        return sum(work.samples for work in self._done) + begun

    @property
    def steps(self) -> int:
        """Steps made so far."""
        return len(self._done)

    def next(self) -> bool:
        """Make one pass, and a step if it was the last one of its batch. False when no sample is
        left, or when gradients have blown up.
        """
        if self._failure:
            return False
        if self._passes is None:
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._passes, self._left = self._trainee.passes([batch]), len(batch)
        made = self._passes.next()
        if self._passes.samples == self._left:
            self._step(self._passes)
        return made

    def finish(self) -> RoundWork:
        """Make the step of a batch that the bell cut short, and sum up the round.

        `GradientError` when gradients were not finite: the steps before them were made, and are to
        be discarded.
        """
        if self._passes is not None and self._passes.samples and not self._failure:
            self._step(self._passes)
        self._failure = self._failure or self._found_behind()
        if self._failure:
            raise self._failure
        if not self._done:
            raise LocalProtocolError("expected at least one sample to train on, got none")
        samples = sum(each.samples for each in self._done)
        tokens = sum(each.tokens for each in self._done)
        return EndedPasses(samples, tokens, tuple(chain(*(e.nats for e in self._done)))).work()

    def _step(self, passes: BatchPasses) -> None:
        self._passes = None
        try:
            ended = passes.end()
            self._judge()
        except GradientError as error:
            self._failure = error
            return
        self._optimizer.step(self._learning_rate)
        self._done.append(ended)

    def _judge(self) -> None:
        """`GradientError` for gradients without bounds, which a device that is behind leaves out;
        of many ranks each has judged its own.
        """
        if self._trainee.crew:
            return
        gradients: dict[str, Any] = {
            name: parameter.grad for name, parameter in self._trainee.parameters.items()
        }
        if self._trainee.queue.is_behind:
            self._unbounded.append(leave_out_unbounded(gradients.values(), GRADIENT_MAX))
        else:
            require_finite(gradients, GRADIENT_MAX)

    def _found_behind(self) -> GradientError | None:
        """The error of the first step whose gradients had no bounds; waits for the device."""
        for number, is_unbounded in enumerate(self._unbounded, 1):
            if is_unbounded.item():
                return GradientError(
                    f"expected gradients of magnitude up to {GRADIENT_MAX:g}, got others in local "
                    f"step {number} of the round"
                )
        return None


def leave_out_unbounded(gradients: Iterable[Tensor], most: float) -> Tensor:
    """Make zeros of all gradients if one has an entry that is NaN or beyond `most`, and tell
    whether, a bool scalar on their device, without waiting for it. So no step spoils what an
    optimizer remembers.
    """
    every = list(gradients)
    is_unbounded = ~(get_total_norm(every, math.inf).float() <= most)
    for each in every:
        each.masked_fill_(is_unbounded, 0)
    return is_unbounded

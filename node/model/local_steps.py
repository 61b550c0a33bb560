"""The local steps of one round, pass by pass: each batch makes one step of the node's optimizer.

    batch 1: pass pass | step    batch 2: pass pass | step    batch 3: pass  (the bell) | step

A batch that the bell cuts short makes a step of the samples that were trained, so no pass is for
nothing, and a node too slow for a whole batch makes one step all the same.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from node.exact.engine import GRADIENT_MAX, GradientError, require_finite
from node.model.passes import GradientAccumulation, RoundWork, Tokens
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
        return start.to(now.dtype) - now.to(start.device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


class LocalSteps:
    """One round's local steps; the same interface as `GradientAccumulation`."""

    def __init__(
        self,
        trainee: TrainingModel,
        batches: Iterable[Tokens],
        optimizer: StepMaker,
        learning_rate: float,
    ) -> None:
        """`batches`: int64 [samples, length + 1] each, one for every step."""
        self._trainee, self._batches = trainee, iter(batches)
        self._optimizer, self._learning_rate = optimizer, learning_rate
        self._passes: GradientAccumulation | None = None
        self._left = 0
        self._done: list[RoundWork] = []
        self._failure: GradientError | None = None

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
        if self._failure:
            raise self._failure
        if not self._done:
            raise LocalProtocolError("expected at least one sample to train on, got none")
        samples = sum(work.samples for work in self._done)
        tokens = sum(work.tokens for work in self._done)
        nats = sum(work.loss_nats_per_token * work.tokens for work in self._done)
        return RoundWork(samples, nats / tokens, tokens)

    def _step(self, passes: GradientAccumulation) -> None:
        self._passes, work = None, passes.finish()
        gradients: dict[str, Any] = {
            name: parameter.grad for name, parameter in self._trainee.parameters.items()
        }
        try:
            require_finite(gradients, GRADIENT_MAX)
        except GradientError as error:
            self._failure = error
            return
        self._optimizer.step(self._learning_rate)
        self._done.append(work)

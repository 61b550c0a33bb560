"""The passes of all ranks of a node: between two of them the bell may ring, or parameters move.

A pass has at most `micro_batch_max` samples for each rank, and fewer for slow ones. They are dealt
by the ranks' speeds, so a batch that is small for one rank is shared all the same.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from node.model.passes import EndedPasses, RoundWork, Tokens
from node.model.training import TrainingModel
from protocol.errors import LocalProtocolError


class Sharing(Protocol):
    """The ranks, as passes need them (`node.ranks.crew.Crew`)."""

    def pass_samples(self, most: int) -> int:
        """Samples of a pass of all ranks, of which each can have `most`."""

    def make_pass(self, trainee: TrainingModel, samples: Tensor, *, anew: bool) -> float:
        """Add the gradients of samples to those of all ranks; the cross-entropy of all targets."""

    def sum(self, samples: int) -> None:
        """Leave the mean gradient over these samples of all ranks in every `.grad`, on the owner of
        each parameter. Raises `GradientError` where it is not finite.
        """


class SharedPasses:
    """One round's work, or one batch's, pass by pass."""

    def __init__(self, crew: Sharing, trainee: TrainingModel, batches: Iterable[Tokens]) -> None:
        self._crew, self._trainee = crew, trainee
        self._source = (torch.as_tensor(row) for batch in batches for row in batch)
        self._rows: list[Tensor] = []
        self.samples, self._nats, self._anew = 0, 0.0, True

    def next(self) -> bool:
        """Make one pass; False when no sample is left. Raises what `TrainingModel.in_memory`
        raises, and `DeviceError` when a rank is at fault.
        """
        return self._trainee.in_memory(self._pass)

    def finish(self) -> RoundWork:
        """Leaves the mean gradient over the samples done, of which there must be one, in every
        parameter's `.grad` on its owner.
        """
        if self.samples == 0:
            raise LocalProtocolError("expected at least one sample to train on, got none")
        return self.end().work()

    def end(self) -> EndedPasses:
        """The same; nothing is left to wait for."""
        self._crew.sum(self.samples)
        tokens = sum(len(row) - 1 for row in self._rows[: self.samples])
        return EndedPasses(self.samples, tokens, (torch.tensor(self._nats),))

    def _pass(self) -> bool:
        if self._anew:  # at first, and where memory ran out and gradients are there in part
            self.samples, self._nats = 0, 0.0
        most = self.samples + self._crew.pass_samples(self._trainee.micro_batch_max)
        self._rows.extend(islice(self._source, max(0, most - len(self._rows))))
        rows = self._rows[self.samples : most]
        if not rows:
            return False
        anew, self._anew = self._anew, True
        self._nats += self._crew.make_pass(self._trainee, torch.stack(rows), anew=anew)
        self._anew = False
        self.samples += len(rows)
        return True

"""`lockstep join` with a stand-in for the forward and backward pass.

    python -m tests.benchmarks.wan.node join ...

Three things are replaced before the command starts, as the environment says. `TrainingModel.passes`
draws its samples, sleeps and leaves the pool's gradients; the arithmetic of DeMo (gradients into
momentum, extract, encode, decode, apply, digest, guess) and of local steps (Muon and AdamW,
movement into residual, the same) is timed; and the steps, local ones too, are noted. In slow motion
gossip has as much more patience. Everything else is the product's.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import torch

from lockstep.cli import main as lockstep
from node import own_replica
from node.exact.local_steps.optimizer import LocalOptimizer
from node.model.check import ModelFacts
from node.model.passes import EndedPasses, RoundWork, Tokens
from node.model.precision import gradient_of
from node.model.training import TrainingModel
from node.replica.demo import DemoReplica
from node.replica.gossip_adam import GossipAdamReplica
from node.replica.local_steps import LocalStepsReplica
from node.replica.replica import Replica
from node.round.own_payloads import OwnPayloads
from tests.benchmarks.wan.model import GradientPool, Notes
from tests.benchmarks.wan.slow_motion import slow_waits

VARIABLE = "WAN_STAND_IN"
"""Environment variable that holds a `StandIn` as JSON."""

ARITHMETIC = (
    (OwnPayloads, "extract"),
    (Replica, "apply"),
    (DemoReplica, "stand_at"),
    (DemoReplica, "accumulate"),
    (GossipAdamReplica, "stand_at"),
    (GossipAdamReplica, "accumulate"),
    (GossipAdamReplica, "apply"),
    (LocalOptimizer, "step"),
    (LocalStepsReplica, "stand_at"),
    (LocalStepsReplica, "accumulate"),
)
"""Functions of a round that compute and neither wait nor send."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """The stand-in for computing in one node."""

    compute_s: float
    seed: int
    notes: str
    """Path of the file that takes them."""
    slowed: int
    """Factor by which lines and computation are slower than life."""


def stand_in(settings: StandIn) -> None:
    """Replace the computation of this process's trainer."""
    notes = Notes.to(Path(settings.notes))
    pools: list[GradientPool] = []

    def passes(trainee: TrainingModel, batches: Iterable[Tokens]) -> OnePass:
        parameters = list(trainee.parameters.values())
        if not pools:
            pools.append(
                GradientPool(sum(parameter.numel() for parameter in parameters), settings.seed)
            )
        notes.next_step().compute_s = settings.compute_s
        return OnePass(trainee, list(batches), settings.compute_s, pools[0])

    own_replica.try_model = lambda *_: ModelFacts(0, ())  # it makes a pass of its own
    TrainingModel.passes = passes  # type: ignore[assignment, method-assign]
    for owner, name in ARITHMETIC:
        setattr(owner, name, _noted(getattr(owner, name), notes))
    slow_waits(settings.slowed)


class OnePass:
    """The work of a round or a local step in one pass: waits, and takes the pool's gradients."""

    steps = count()

    def __init__(
        self,
        trainee: TrainingModel,
        batches: Sequence[Tokens],
        compute_s: float,
        pool: GradientPool,
    ) -> None:
        self.samples = 0
        self._trainee, self._batches, self._compute_s, self._pool = (
            trainee,
            batches,
            compute_s,
            pool,
        )

    def next(self) -> bool:
        """Makes the whole pass, the first time."""
        if self.samples:
            return False
        time.sleep(self._compute_s)
        gradients = [gradient_of(each) for each in self._trainee.parameters.values()]
        self._pool.copy(gradients, next(self.steps))
        self.samples = sum(map(len, self._batches))
        return True

    def finish(self) -> RoundWork:
        """Returns a loss of 0: there is none."""
        return self.end().work()

    def end(self) -> EndedPasses:
        """The same, for local steps."""
        tokens = self.samples * (self._batches[0].shape[1] - 1)
        return EndedPasses(self.samples, tokens, (torch.zeros(()),))


def _noted(function: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
    @functools.wraps(function)
    def noted(*arguments: Any, **named: Any) -> Any:
        with notes.arithmetic():
            return function(*arguments, **named)

    return noted


if __name__ == "__main__":
    stand_in(msgspec.json.decode(os.environ[VARIABLE], type=StandIn))
    sys.exit(lockstep())

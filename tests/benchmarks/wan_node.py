"""`lockstep join` as it is, but for the forward and backward pass: `python -m tests.benchmarks.wan_node join ...`.

Three things are put in before the command starts, told by the environment: `Trainee.work` draws its samples, sleeps
and leaves the pool's gradients; what is arithmetic of DeMo (gradients into momentum, extract, encode, decode, apply,
digest, guess) is timed; and the steps are noted. In slow motion gossip has as much more patience. Everything else is
the product's.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from lockstep.cli import main as lockstep
from node.model import Tokens, Trainee, Work
from node.replica import Replica
from node.trainer import Trainer
from tests.benchmarks.slow_motion import slow_waits
from tests.benchmarks.wan_model import GradientPool, Notes

VARIABLE = "WAN_STAND_IN"
"""Of the environment: a `StandIn` as JSON."""

ARITHMETIC = ((Trainer, "_extract"), (Replica, "stand_at"), (Replica, "accumulate"), (Replica, "apply"))
"""Functions of a round that compute and neither wait nor speak to anybody."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """What stands for computing in one node."""

    compute_s: float
    seed: int
    notes: str
    """Path of the file that takes them."""
    slowed: int
    """So many times slower than life go lines and computation."""


def stand_in(settings: StandIn) -> None:
    """Change this process's trainer."""
    notes = Notes.to(Path(settings.notes))
    pools: list[GradientPool] = []
    steps = 0

    def work(trainee: Trainee, batches: Iterable[Tokens], stop: Callable[[], bool]) -> Work:
        nonlocal steps
        parameters = list(trainee.parameters.values())
        if not pools:
            pools.append(GradientPool(sum(parameter.numel() for parameter in parameters), settings.seed))
        drawn = list(batches)
        notes.next_step().compute_s = settings.compute_s
        time.sleep(settings.compute_s)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
        pools[0].copy([parameter.grad for parameter in parameters if parameter.grad is not None], steps)
        steps += 1
        samples = sum(map(len, drawn))
        return Work(samples, 0.0, samples * (drawn[0].shape[1] - 1))  # a loss of 0: there is none

    Trainee.work = work  # type: ignore[assignment, method-assign]
    for owner, name in ARITHMETIC:
        setattr(owner, name, _noted(getattr(owner, name), notes))
    slow_waits(settings.slowed)


def _noted(function: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
    @functools.wraps(function)
    def noted(*arguments: Any, **named: Any) -> Any:
        with notes.arithmetic():
            return function(*arguments, **named)

    return noted


if __name__ == "__main__":
    stand_in(msgspec.json.decode(os.environ[VARIABLE], type=StandIn))
    sys.exit(lockstep())

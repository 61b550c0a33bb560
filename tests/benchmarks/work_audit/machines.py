"""The same network on machines that round unlike. An auditor computes in float32, a batch at once.

bfloat16    autocast in the forward pass, as a node does on a GPU (`node.model.training`)
pieces      passes of half a batch, whose sums are added up
"""

import contextlib
import copy
from typing import Any

import torch

from node.model.training import TrainingModel
from tests.benchmarks.parity.task import Fixture


class Bfloat16Model(TrainingModel):
    """Computes on the processor as a node does on a GPU: products in bfloat16, the rest in
    float32.
    """

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast("cpu", dtype=torch.bfloat16)


def in_bfloat16(fixture: Fixture) -> Fixture:
    """The same parameters, trained in bfloat16."""
    model = Bfloat16Model(fixture.trainee.model, "cpu", fixture.trainee.micro_batch_max)
    return _with(fixture, model)


def in_pieces(fixture: Fixture, samples: int) -> Fixture:
    """The same parameters, trained in passes of at most this number of samples."""
    return _with(fixture, TrainingModel(fixture.trainee.model, "cpu", samples))


def _with(fixture: Fixture, trainee: TrainingModel) -> Fixture:
    found = copy.copy(fixture)
    found.trainee = trainee
    return found

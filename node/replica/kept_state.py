"""The state after a round, kept until its loss is measured, while training goes on."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from node.model.evaluate import nats_at
from node.model.passes import Tokens
from node.model.training import TrainingModel
from node.system.device import free_memory_bytes
from protocol.errors import UnavailableError

FREE_PART = 2
"""A copy takes at most this part of the free memory: training comes first."""


class KeptState(Protocol):
    """The parameters of a state, somewhere. Its methods block."""

    @property
    def at_once(self) -> int:
        """Samples of one pass that fit the memory."""

    def nats(self, samples: Tokens) -> float:
        """Cross-entropy summed over all targets of int64 [samples, length + 1]. Nobody else may use
        the model meanwhile.
        """


class CopiedState:
    """A copy of committed parameters beside them."""

    def __init__(self, trainee: TrainingModel, committed: Mapping[str, Tensor]) -> None:
        """Raises `UnavailableError` where there is no memory for it."""
        tensors = committed.values()
        require_room(sum(each.nbytes for each in tensors), next(iter(tensors)).device)
        self._trainee = trainee
        self._parameters = {name: tensor.clone() for name, tensor in committed.items()}

    @property
    def at_once(self) -> int:
        return self._trainee.micro_batch_max

    def nats(self, samples: Tokens) -> float:
        """As `KeptState.nats`; the copy is put in the place of the model's own parameters, and
        back.
        """
        return nats_at(self._trainee, self._parameters, samples)


def require_room(needed: int, device: torch.device) -> None:
    """Raises `UnavailableError` where a copy of this many bytes would take memory that training may
    need.
    """
    free = free_memory_bytes(device)
    if free is not None and needed > free // FREE_PART:
        raise UnavailableError(
            f"a copy of the parameters needs {needed:,} bytes, and {free:,} are free: "
            f"expected {FREE_PART} times as many"
        )

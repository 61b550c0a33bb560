"""A replica whose network computes gradients in the committed parameters themselves."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from node.model.passes import Passes, Tokens
from node.model.training import TrainingModel
from node.replica.replica import Replica
from protocol import wire_pb2 as wire


class InPlaceReplica(Replica):
    """State of one node for one run, on one device that may have no room for other weights."""

    def _at_genesis(self, genesis: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        working = {name: parameter.data for name, parameter in self.trainee.parameters.items()}
        for name, tensor in working.items():
            tensor.copy_(genesis[name].data)
        return working

    def _trainee(self, model: nn.Module, device: torch.device, samples: int) -> TrainingModel:
        return TrainingModel(model, device, samples)

    @property
    def applies_beside(self) -> bool:
        return False

    def begin(
        self, batches: Iterable[Tokens], pending: wire.Announced | None, rate_bits: tuple[int, int]
    ) -> Passes:
        return self.trainee.passes(self.trainee.queue.fetched(batches))

    def stand_at(self) -> None:
        """The model stands there already."""
        self.trainee.moved()

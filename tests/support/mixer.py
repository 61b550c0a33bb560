"""Gossip Adam as plainly as it can be said: one node, whose messages the caller carries."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from node.gossip_adam.adam import AdamSettings, Moments, direction_
from node.gossip_adam.edges import Edges
from node.gossip_adam.projection import project
from node.gossip_adam.wire import WireFormat
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId


class Mixer:
    """One node: parameters as one vector, its moments, its edges."""

    def __init__(
        self,
        start: Tensor,
        settings: AdamSettings,
        wire: WireFormat = "float16",
        weight_decay: Tensor | float = 0.0,
    ) -> None:
        """start: float32 [numbers], equal on all nodes. weight_decay: decoupled, one number or one
        for each parameter.
        """
        self.values = start.detach().to(torch.float32, copy=True)
        """x, float32 [numbers]; forward and backward use it as it is between `begin` and
        `finish`."""
        self.update_size = 0.0
        """Euclidean size of the last step, without what mixing moved."""
        self._settings, self._decay = settings, weight_decay
        self._moments = Moments.like(self.values)
        self._edges = Edges(wire, start)

    def begin(self, neighbours: Iterable[PeerId]) -> dict[PeerId, Tensor]:
        """Begin this round's mix: the message to each neighbour."""
        return self._edges.begin(self.values, neighbours)

    def finish(self, weights: Mapping[PeerId, float], messages: Mapping[PeerId, Tensor]) -> None:
        """Mix with the neighbours in `messages`; see `Edges.finish_`."""
        self._edges.finish_(self.values, weights, messages)

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """The Adam step, with the gradient at the parameters as they were before `finish`."""
        if self._edges.open is not None:
            raise LocalProtocolError("expected the mix to be finished before the step, got a step")
        moved = direction_(self._moments, gradient, self._settings).mul_(learning_rate)
        moved.add_(self.values * self._decay, alpha=learning_rate)
        self.values -= moved
        self.update_size = float(moved.norm())

    def report(self) -> list[float]:
        """The projection of the parameters: `protocol.mixing.consensus.PROJECTION_SIZE`
        numbers.
        """
        return [float(number) for number in project(self.values)]

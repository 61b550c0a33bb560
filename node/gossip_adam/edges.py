"""The edges over which a node of gossip Adam mixes, without its network.

Between two rounds nothing stands still: the exchange of a round runs behind the forward and
backward pass, which see the un-mixed parameters.

      begin(edges) ------ messages travel ------ finish(messages) -- step(gradient) -- begin ...
                   x      forward, backward at x                x

    finish   x <- x + sum_j W_ij (x_j - x_i)          over the edges that hold
    step     x <- (1 - lr wd) x - lr Adam(gradient at the x before `finish`)

Without `step` between `finish` and `begin`, a round only mixes.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from node.gossip_adam.wire import EdgeWire, WireFormat, edge_wire
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId

NEIGHBOURS_MAX: Final = 256
"""Edges of one node over a whole run: each keeps estimates as large as the model with int8."""


class Edges:
    """A node's ends of all edges that it has ever had."""

    def __init__(self, wire: WireFormat, start: Tensor) -> None:
        """start: float32 [numbers], the parameters from which all nodes started."""
        self._wire: WireFormat = wire
        self._start = start.detach().clone()
        self._ends: dict[PeerId, EdgeWire] = {}
        self._open: tuple[PeerId, ...] | None = None

    @property
    def open(self) -> tuple[PeerId, ...] | None:
        """Neighbours of the mix under way, sorted; None between `finish` and `begin`."""
        return self._open

    def begin(self, values: Tensor, neighbours: Iterable[PeerId]) -> dict[PeerId, Tensor]:
        """The message to each neighbour about these parameters, float32 [numbers]."""
        if self._open is not None:
            raise LocalProtocolError(f"expected the mix with {self._open} to be finished first")
        self._open = tuple(sorted(neighbours))
        return {peer: self._end(peer).send(values) for peer in self._open}

    def finish_(
        self, values: Tensor, weights: Mapping[PeerId, float], messages: Mapping[PeerId, Tensor]
    ) -> None:
        """Mix with the neighbours in `messages`, whose edges hold; those left out failed.

        values: float32 [numbers], as they were at `begin`, changed in place. weights: W_ij of this
        round's neighbours. `RemoteProtocolError` for a message that is none; then nothing has
        changed, and the mix goes on.
        """
        if self._open is None:
            raise LocalProtocolError("expected a mix that was begun, got none")
        strangers = sorted(set(messages).difference(self._open))
        if strangers:
            raise LocalProtocolError(f"expected messages of {self._open}, got {strangers}")
        for peer, message in messages.items():
            self._ends[peer].judge(message)
        order, self._open = self._open, None
        total = torch.zeros_like(values)
        for peer in order:
            if peer in messages:
                total.add_(self._ends[peer].settle(messages[peer]), alpha=weights[peer])
        values += total

    def _end(self, peer: PeerId) -> EdgeWire:
        if peer not in self._ends:
            if len(self._ends) >= NEIGHBOURS_MAX:
                raise LocalProtocolError(
                    f"expected at most {NEIGHBOURS_MAX} neighbours over a run, got one more"
                )
            self._ends[peer] = edge_wire(self._wire, self._start)
        return self._ends[peer]

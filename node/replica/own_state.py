"""The own state of a node that mixes parameters: moments, and the parameters as it sent them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from node.gossip_adam.adam import AdamSettings, Moments, direction_
from protocol.codec.parameters import Sent

_MOMENTS = "moments/"
_COUNTS = ("windows", "gradients")


@dataclass(frozen=True, slots=True, eq=False)
class SentParameters:
    """The content of a payload."""

    values: Sent
    """float16 or float32 [numbers], or differences; on the host."""


class OwnState:
    """Moments of all parameters."""

    def __init__(self, parameters: Mapping[str, Tensor], settings: AdamSettings) -> None:
        self._settings = settings
        self._moments = {name: Moments.like(each) for name, each in parameters.items()}
        self.update_size = 0.0
        """Euclidean size of the newest step; 0 before the first of this process."""

    def step(self, parameters: Mapping[str, Tensor], rate: float, decay: float) -> None:
        """Move every parameter with a gradient: x <- decay * x - rate * Adam(gradient)."""
        sizes = []
        for name, gradient in ((name, parameters[name].grad) for name in parameters):
            if gradient is not None:
                moved = direction_(self._moments[name], gradient, self._settings).mul_(rate)
                moved.add_(parameters[name].data, alpha=1 - decay)
                parameters[name].data.sub_(moved)
                sizes.append(moved.norm())
        size = float(torch.stack(sizes).norm()) if sizes else 0.0
        self.update_size = size if math.isfinite(size) else 0.0

    @property
    def has_stepped(self) -> bool:
        """Whether the moments have seen a gradient."""
        return any(each.windows or each.gradients for each in self._moments.values())

    def tensors(self) -> dict[str, Tensor]:
        """All moments, to be saved."""
        found: dict[str, Tensor] = {}
        for name, moments in self._moments.items():
            for part, value in moments.as_state().items():
                kept = value if torch.is_tensor(value) else torch.tensor(value, dtype=torch.int64)
                found[f"{_MOMENTS}{part}/{name}"] = kept
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` returned."""
        for name, moments in self._moments.items():
            state: dict[str, Any] = {
                part: tensors[f"{_MOMENTS}{part}/{name}"] for part in moments.as_state()
            }
            counts = {part: int(state[part]) for part in _COUNTS}
            self._moments[name] = Moments.among(state | counts)

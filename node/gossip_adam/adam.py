"""Adam whose moments stay with the node, and whose gradients may accumulate (AccumAdam).

A node's own batch is small, so its gradients are noisy, and so are moments made of them: the second
moment then measures the noise, and steps shrink. With `accumulate` = s the moments take the mean of
s successive gradients, as if the batch were s times as large, while parameters still step on every
gradient ("From promise to practice", 2410.11998). Within a window the step uses the moments as they
would be if the window ended now; its last gradient makes them permanent.

    a <- mean of the gradients of this window so far
    m' = beta1 m + (1 - beta1) a        v' = beta2 v + (1 - beta2) a^2
    direction = m' / (1 - beta1^n) / (sqrt(v' / (1 - beta2^n)) + epsilon),  n windows with this one
    after s gradients: m, v <- m', v'

accumulate = 1 is Adam (Kingma, Ba, 1412.6980), to the rounding of float32.
"""

from dataclasses import dataclass, fields
from typing import Any, Final

import torch
from torch import Tensor

from protocol.errors import SettingsError

ACCUMULATE_MAX: Final = 4096
"""Largest number of gradients in a window: a sanity limit, far above any use."""


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """Hyper-parameters; `SettingsError` for one outside its bounds."""

    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and of the second moment, in [0, 1)."""

    epsilon: float = 1e-8
    """Added to the root of the second moment, above 0."""

    accumulate: int = 1
    """s: successive gradients whose mean enters the moments."""

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise SettingsError(f"expected two betas in [0, 1), got {self.betas}")
        if not 0 < self.epsilon < float("inf"):
            raise SettingsError(f"expected a finite epsilon above 0, got {self.epsilon}")
        if not 1 <= self.accumulate <= ACCUMULATE_MAX:
            raise SettingsError(
                f"expected an accumulate of 1 to {ACCUMULATE_MAX}, got {self.accumulate}"
            )


@dataclass(slots=True)
class Moments:
    """One parameter's state, float32 tensors of its shape."""

    first: Tensor
    """m."""

    second: Tensor
    """v."""

    window_sum: Tensor
    """Sum of the gradients of the window under way."""

    windows: int = 0
    """Complete windows."""

    gradients: int = 0
    """Gradients in the window under way."""

    @classmethod
    def like(cls, parameter: Tensor) -> "Moments":
        """Moments that have seen nothing."""
        first, second, window_sum = (
            torch.zeros_like(parameter, dtype=torch.float32) for _ in range(3)
        )
        return cls(first, second, window_sum)

    @classmethod
    def among(cls, state: dict[str, Any]) -> "Moments":
        """The moments in a state that `as_state` made; its tensors are shared."""
        return cls(**{field.name: state[field.name] for field in fields(cls)})

    def as_state(self) -> dict[str, Any]:
        """Values by name, for a torch optimizer's state."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def direction_(moments: Moments, gradient: Tensor, settings: AdamSettings) -> Tensor:
    """Take in a gradient and return the direction of the step, about one in each entry: to be
    subtracted times the learning rate. float32 of the parameter's shape.
    """
    beta1, beta2 = settings.betas
    moments.gradients += 1
    if settings.accumulate == 1:
        mean = gradient.float()
    else:
        moments.window_sum += gradient
        mean = moments.window_sum / moments.gradients
    ends = moments.gradients >= settings.accumulate
    first = moments.first if ends else moments.first.clone()
    second = moments.second if ends else moments.second.clone()
    first.lerp_(mean, 1 - beta1)
    second.mul_(beta2).addcmul_(mean, mean, value=1 - beta2)
    window = moments.windows + 1
    if ends:
        moments.windows, moments.gradients = window, 0
        moments.window_sum.zero_()
    root = (second / (1 - beta2**window)).sqrt_().add_(settings.epsilon)
    return (first / (1 - beta1**window)).div_(root)

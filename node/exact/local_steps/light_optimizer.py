"""The optimizers of local steps with their state in bfloat16, for weights of either kind.

    each parameter, or strip of one   weights, gradient and state in float32
                                      -> a step of torch's Muon or AdamW
                                      -> weights and state rounded at random, gradient given back

So there is no float32 copy of more than one matrix at a time. AdamW works entry by entry, and its
parameters, of which an embedding may be a third of the model, are taken in strips. Of a table it
keeps one second moment for each row, their mean after the step, from which every entry of the row
begins at the next one:

    v_ij <- 0.99 * v_i + 0.01 * g_ij^2 | AdamW's step by v_ij | v_i <- mean_j v_ij

So the first step is AdamW's own.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from node.exact.local_steps.optimizer import (
    MUON_MOMENTUM,
    adamw_of,
    muon_of,
    set_rates,
    sorted_out,
)
from node.exact.rounding import Rounding, row_strips_of, strips_of

_SECOND = "exp_avg_sq"
_ADAMW_STATE, _MUON_STATE = ("exp_avg", _SECOND), ("momentum_buffer",)
"""Torch's names of the tensors that the optimizers keep."""


class LightOptimizer:
    """Muon and AdamW for the parameters of one model. A step takes their gradients."""

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], rounding: Rounding
    ) -> None:
        """Parameters and errors as those of `LocalOptimizer`."""
        self._matrices, self._rest = sorted_out(model, parameters)
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._rounding = rounding
        self._state: dict[int, dict[str, Tensor]] = {}
        """bfloat16 by the parameter's identity and torch's name, a row's second moment float32
        [rows, 1]; none before the first step.
        """
        self._steps = 0
        # The optimizers move one parameter, which stands in for each of the model's in turn.
        self._matrix, self._strip = nn.Parameter(torch.empty(0, 0)), nn.Parameter(torch.empty(0))
        self._muon, self._adamw = muon_of([self._matrix]), adamw_of([self._strip])

    def step(self, learning_rate: float, momentum: float = MUON_MOMENTUM) -> None:
        """One step of every parameter by its `.grad`, which is None afterwards."""
        set_rates((self._muon, self._adamw), learning_rate, momentum)
        for parameter in self._rest:
            name = self._names[id(parameter)]
            for number, strip in enumerate(_strips(*self._tensors(parameter, _ADAMW_STATE))):
                self._move(self._adamw, self._strip, strip, (name, number))
            parameter.grad = None
        for parameter in self._matrices:
            tensors, what = self._tensors(parameter, _MUON_STATE), (self._names[id(parameter)], 0)
            self._move(self._muon, self._matrix, tensors, what)
            parameter.grad = None
        self._steps += 1

    def _tensors(self, parameter: nn.Parameter, names: tuple[str, ...]) -> list[Tensor]:
        """Weights, gradient, and the state by these names."""
        assert parameter.grad is not None, "every parameter has a gradient"
        held = self._state.setdefault(id(parameter), {})
        for name in names:
            if name in held:
                continue
            if name == _SECOND and parameter.ndim == 2:
                held[name] = torch.zeros(len(parameter), 1, device=parameter.device)
            else:
                held[name] = torch.zeros_like(parameter.data, dtype=torch.bfloat16)
        return [parameter.data, parameter.grad, *(held[name] for name in names)]

    def _move(
        self,
        optimizer: torch.optim.Optimizer,
        stand_in: nn.Parameter,
        tensors: Sequence[Tensor],
        what: tuple[str, int],
    ) -> None:
        """A step of one optimizer, on weights, gradient and state in float32, of a parameter's
        strip: its name and the strip's number.
        """
        names = _MUON_STATE if stand_in is self._matrix else _ADAMW_STATE
        weights, gradient = (tensor.float() for tensor in tensors[:2])
        held = [tensor.float().expand_as(weights).contiguous() for tensor in tensors[2:]]
        stand_in.grad = None
        stand_in.data, stand_in.grad = weights, gradient
        state = optimizer.state[stand_in]
        state.update(zip(names, held, strict=True))
        state["step"] = torch.tensor(float(self._steps), device="cpu")
        optimizer.step()
        pairs = zip((tensors[0], *tensors[2:]), (weights, *held), strict=True)
        for kind, (target, exact) in enumerate(pairs):
            if target.shape == exact.shape:
                self._rounding.into(target, exact, "step", self._steps, *what, kind)
            else:
                target.copy_(exact.mean(1, keepdim=True))
        stand_in.grad, stand_in.data = None, stand_in.data.new_empty(0)
        state.clear()


def _strips(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Strips of weights, gradient and AdamW's state: whole rows where second moments are theirs."""
    weights, second = tensors[0], tensors[-1]
    return strips_of(*tensors) if second.shape == weights.shape else row_strips_of(*tensors)

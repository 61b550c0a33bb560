"""The optimizers of local steps with their state in bfloat16, for weights of either kind.

    each parameter, or strip of one   weights, gradient and state in float32
                                      -> a step of torch's Muon or AdamW
                                      -> weights and state rounded at random, gradient given back

So there is no float32 copy of more than one matrix at a time. AdamW works entry by entry, and its
parameters, of which an embedding may be a third of the model, are taken in strips; gains and biases
are one strip together, as each would cost a card as many kernels as a table. Of a table it keeps
one second moment for each row, their mean after the step, from which every entry of the row begins
at the next one:

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
    step_of,
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
        self._matrices, rest = sorted_out(model, parameters)
        self._tables = [each for each in rest if each.ndim != 1]
        self._vectors = [each for each in rest if each.ndim == 1]
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._rounding = rounding
        self._places: Tensor | None = None
        self._state: dict[int, dict[str, Tensor]] = {}
        """bfloat16 by the parameter's identity and torch's name, a row's second moment float32
        [rows, 1], that of all vectors by the first one's identity; none before the first step.
        """
        self._steps = -1
        """Steps before the newest."""
        # The optimizers move one parameter, which stands in for each of the model's in turn.
        self._matrix, self._strip = nn.Parameter(torch.empty(0, 0)), nn.Parameter(torch.empty(0))
        self._muon, self._adamw = muon_of([self._matrix]), adamw_of([self._strip])

    def step(self, learning_rate: float, momentum: float = MUON_MOMENTUM) -> None:
        """One step of every parameter by its `.grad`, which is None afterwards."""
        self.begin_step(learning_rate, momentum)
        for parameter in self._tables:
            self._step_table(parameter)
        self.move_vectors()
        for parameter in self._matrices:
            self._step_matrix(parameter)

    # ---- a step in parts, of parameters that are there one at a time

    def begin_step(self, learning_rate: float, momentum: float = MUON_MOMENTUM) -> None:
        """A step begins, in which each parameter is moved once."""
        set_rates((self._muon, self._adamw), learning_rate, momentum)
        self._steps += 1

    def move(self, parameter: nn.Parameter) -> None:
        """Move a parameter that is no vector by its `.grad`, which is None afterwards."""
        is_matrix = any(parameter is each for each in self._matrices)
        (self._step_matrix if is_matrix else self._step_table)(parameter)

    def move_vectors(self) -> None:
        """Move all vectors, one behind the other, by their `.grad`s, which are None afterwards."""
        if self._vectors:
            self._step_vectors()

    def _step_table(self, parameter: nn.Parameter) -> None:
        name, tensors = self._names[id(parameter)], self._tensors(parameter, _ADAMW_STATE)
        for number, strip in enumerate(_strips(*tensors)):
            self._round(self._moved(self._adamw, self._strip, strip), name, number)
        parameter.grad = None

    def _step_matrix(self, parameter: nn.Parameter) -> None:
        tensors = self._tensors(parameter, _MUON_STATE)
        self._round(self._moved(self._muon, self._matrix, tensors), self._names[id(parameter)], 0)
        parameter.grad = None

    def _step_vectors(self) -> None:
        first, sizes = self._vectors[0], [len(each) for each in self._vectors]
        weights = torch.cat([each.data for each in self._vectors])
        gradient = torch.cat([_gradient(each) for each in self._vectors])
        held = self._held(first, weights, _ADAMW_STATE)
        if self._places is None:
            names = (self._names[id(each)] for each in self._vectors)
            self._places = self._rounding.places(dict(zip(names, sizes, strict=True)))
        pairs = self._moved(self._adamw, self._strip, [weights, gradient, *held])
        self._rounding.into_at(pairs, self._places, "step", self._steps)
        for each, part in zip(self._vectors, torch.split(weights, sizes), strict=True):
            each.data.copy_(part)
            each.grad = None

    def _round(self, pairs: Sequence[tuple[Tensor, Tensor]], name: str, number: int) -> None:
        """Round what a step made of a parameter's strip of this number."""
        self._rounding.into_each(pairs, "step", self._steps, name, number)

    def _tensors(self, parameter: nn.Parameter, names: tuple[str, ...]) -> list[Tensor]:
        """Weights, gradient, and the state by these names."""
        held = self._held(parameter, parameter.data, names)
        return [parameter.data, _gradient(parameter), *held]

    def _held(
        self, parameter: nn.Parameter, like: Tensor, names: tuple[str, ...]
    ) -> Iterator[Tensor]:
        """The state that is kept by a parameter's identity, for weights such as these."""
        held = self._state.setdefault(id(parameter), {})
        for name in names:
            if name not in held:
                by_row = name == _SECOND and like.ndim == 2
                held[name] = (
                    torch.zeros(len(like), 1, device=like.device)
                    if by_row
                    else torch.zeros_like(like, dtype=torch.bfloat16)
                )
            yield held[name]

    def _moved(
        self, optimizer: torch.optim.Optimizer, stand_in: nn.Parameter, tensors: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """Make a step of one optimizer in float32, of weights by a gradient with the state. Pairs
        of what is to be rounded, and what the step made of it.
        """
        names = _MUON_STATE if stand_in is self._matrix else _ADAMW_STATE
        weights, gradient = (tensor.float() for tensor in tensors[:2])
        held = [tensor.float().expand_as(weights).contiguous() for tensor in tensors[2:]]
        stand_in.grad = None
        stand_in.data, stand_in.grad = weights, gradient
        state = optimizer.state[stand_in]
        state.update(zip(names, held, strict=True))
        state["step"] = torch.tensor(float(self._steps), device="cpu")
        step_of(optimizer)
        stand_in.grad, stand_in.data = None, stand_in.data.new_empty(0)
        state.clear()
        pairs = list(zip((tensors[0], *tensors[2:]), (weights, *held), strict=True))
        if pairs[-1][0].shape != weights.shape:
            target, exact = pairs.pop()
            target.copy_(exact.mean(1, keepdim=True))
        return pairs


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "every parameter has a gradient"
    return parameter.grad


def _strips(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Strips of weights, gradient and AdamW's state: whole rows where second moments are theirs."""
    weights, second = tensors[0], tensors[-1]
    return strips_of(*tensors) if second.shape == weights.shape else row_strips_of(*tensors)

"""The optimizers of local steps: Muon for matrices, AdamW for embeddings, gains and the rest.

Both are torch's own, but for Muon's products (`muon`). Their state is one node's: it need not be
equal on two nodes. A Muon step is scaled to the root mean square of an AdamW step
(`match_rms_adamw`), so that one learning rate serves both, and so that no entry moves much further
than the rate in a step, which is what replicas allow an author (`movements.code_max`).

A node keeps that state in bfloat16 (`light_optimizer`). Here it is float32 and exact, as the
optimizer of a torch loop saves it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from node.exact.local_steps.muon import muon_step
from protocol.errors import LocalProtocolError, SettingsError

ADAM_DECAYS = (0.9, 0.99)

MUON_MOMENTUM = 0.95


class LocalOptimizer:
    """Muon and AdamW for the parameters of one model."""

    def __init__(
        self,
        model: nn.Module | None,
        parameters: Mapping[str, nn.Parameter],
        *,
        muon: bool = True,
    ) -> None:
        """`parameters`: those of the model that are trained, by name; without a model, none of them
        is a table. Without `muon` AdamW moves all. `SettingsError` when this torch has no Muon.
        """
        self._parameters = dict(parameters)
        matrices, rest = sorted_out(model, parameters, muon=muon)
        self._optimizers: list[torch.optim.Optimizer] = []
        if matrices:
            self._optimizers.append(muon_of(matrices))
        if rest:
            self._optimizers.append(adamw_of(rest))

    def step(self, learning_rate: float, momentum: float = MUON_MOMENTUM) -> None:
        """One step of every parameter by its `.grad`. AdamW's first decay is the momentum, where
        that is below its own.
        """
        set_rates(self._optimizers, learning_rate, momentum)
        for optimizer in self._optimizers:
            step_of(optimizer)

    def state(self) -> dict[str, Tensor]:
        """The state's tensors by parameter and kind, not copied; none before the first step."""
        return {
            f"{name}/{kind}": tensor
            for name, parameter in self._parameters.items()
            for optimizer in self._optimizers
            for kind, tensor in optimizer.state.get(parameter, {}).items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned. `LocalProtocolError` for a state of other parameters."""
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for key, tensor in state.items():
            name, _, kind = key.rpartition("/")
            parameter = self._parameters.get(name)
            if parameter is None or tensor.shape not in (parameter.shape, torch.Size([])):
                raise LocalProtocolError(
                    f"expected an optimizer's state of this model, got {key} of "
                    f"{tuple(tensor.shape)}"
                )
            # AdamW counts its steps on the host, wherever its parameters are.
            held = tensor if tensor.ndim else tensor.cpu()
            self._owner(parameter).state[parameter][kind] = held

    def _owner(self, parameter: nn.Parameter) -> torch.optim.Optimizer:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if any(parameter is each for each in group["params"]):
                    return optimizer
        raise AssertionError("every parameter has an optimizer")


def sorted_out(
    model: nn.Module | None, parameters: Mapping[str, nn.Parameter], *, muon: bool = True
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those that Muon moves, and those that AdamW moves. `SettingsError` when this torch has no
    Muon.
    """
    if not hasattr(torch.optim, "Muon"):
        raise SettingsError(
            f"algorithm.name: local_steps need torch 2.9 or later, got {torch.__version__}; "
            "update it, or join another run"
        )
    tables = tables_of(model) if model else set()
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for parameter in parameters.values():
        is_matrix = muon and parameter.ndim == 2 and id(parameter) not in tables
        (matrices if is_matrix else rest).append(parameter)
    return matrices, rest


def muon_of(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Torch's Muon, with steps as large as AdamW's."""
    muon: Any = torch.optim.Muon
    made: torch.optim.Optimizer = muon(
        parameters, weight_decay=0.0, momentum=MUON_MOMENTUM, adjust_lr_fn="match_rms_adamw"
    )
    return made


def step_of(optimizer: torch.optim.Optimizer) -> None:
    """A step of one of the two."""
    if isinstance(optimizer, torch.optim.AdamW):
        optimizer.step()
    else:
        muon_step(optimizer)


def adamw_of(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Torch's AdamW."""
    return torch.optim.AdamW(parameters, betas=ADAM_DECAYS, weight_decay=0.0)


def set_rates(
    optimizers: Iterable[torch.optim.Optimizer], learning_rate: float, momentum: float
) -> None:
    """Set what the next step goes by. AdamW's first decay is the momentum, where that is below its
    own.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
            if "betas" in group:
                group["betas"] = (min(momentum, ADAM_DECAYS[0]), ADAM_DECAYS[1])
            else:
                group["momentum"] = momentum


def tables_of(model: nn.Module) -> set[int]:
    """Identities of parameters with a row per token or position: embeddings, and what makes logits
    of hidden states.
    """
    found = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    output: Any = getattr(model, "get_output_embeddings", lambda: None)()
    return found | ({id(output.weight)} if output is not None else set())

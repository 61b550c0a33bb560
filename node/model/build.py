"""The network, built from the run file.

Any causal language model that transformers has code for is built from its configuration alone, in
float32, without the network and without code from anywhere else. transformers takes seconds to
import, so it is imported when the first model is built.
"""

import contextlib
import copy
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

from node.model.configuration import (
    configuration_errors,
    model_config,
    no_noise,
    quiet_transformers,
)
from node.model.shapes_only import ShapesOnly
from node.model.undrawn import Undrawn
from protocol.errors import SettingsError


def build_model(
    model_type: str, config: Mapping[str, Any], device: Literal["cpu", "meta"] = "cpu"
) -> nn.Module:
    """The causal language model of this type and configuration: float32, in training mode.

    config: fields of the type's transformers configuration, as the run file holds them. Initial
    values are transformers' own (`genesis.fill` replaces them); torch's random state is left as it
    was. On the device "meta" its parameters have shapes and no values, and take no memory. Raises
    `SettingsError` naming the field that is unknown or out of bounds.
    """
    full = model_config(model_type, config)
    with torch.random.fork_rng(devices=[]), no_noise():
        if device == "cpu":
            with configuration_errors(model_type):
                return _made(full)
        with contextlib.suppress(Exception), ShapesOnly():
            return _made(full)
        with configuration_errors(model_type), torch.device("meta"):
            return _made(full)


def build_undrawn(model_type: str, config: Mapping[str, Any]) -> tuple[nn.Module, frozenset[str]]:
    """The same model in the host's memory, and the names of its trainable parameters that are
    noise, have no values, and take no memory before they are written.
    """
    with Undrawn() as undrawn:
        model = build_model(model_type, config)
    parameters = named_parameters_once(model)
    return model, frozenset(name for name in parameters if undrawn.has_left(parameters[name]))


def _made(full: Any) -> nn.Module:
    """The model of a configuration of transformers, with torch's own attention, asked for by name,
    where the type can have it.
    """
    options = {"dtype": torch.float32, "trust_remote_code": False}
    make = quiet_transformers().AutoModelForCausalLM.from_config
    try:
        model = make(copy.deepcopy(full), attn_implementation="sdpa", **options)
    except ValueError:
        model = make(full, **options)
    trainee: nn.Module = model.train()
    return trainee


def named_parameters_once(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters in sorted-name order; of tied weights only the first name."""
    first: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in sorted(model.named_parameters(remove_duplicate=False)):
        if parameter.requires_grad:
            first.setdefault(id(parameter), (name, parameter))
    return dict(first.values())


def require_fits(model: nn.Module, vocabulary_size: int, sequence_length: int) -> None:
    """Raises `SettingsError` unless the model knows every token and position of the data: a device
    would find out in the middle of a pass and name no cause.
    """
    config: Any = model.config
    if config.vocab_size < vocabulary_size:
        raise SettingsError(
            f"model.config.vocab_size: expected at least {vocabulary_size}, the tokens of the "
            "data, "
            f"got {config.vocab_size}"
        )
    require_positions(model, sequence_length)


def require_positions(model: nn.Module, sequence_length: int) -> None:
    """Raises `SettingsError` unless the model knows every position of a sample."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and 0 < positions < sequence_length:  # XLNet says -1: no bound
        raise SettingsError(
            f"model.config: expected at least data.sequence_length = {sequence_length} positions, "
            f"got {positions}"
        )


def asks_for_balance(model: nn.Module) -> bool:
    """Whether the configuration asks that a mixture's experts be kept equally busy."""
    config: Any = model.config
    return bool(getattr(config.get_text_config(), "output_router_logits", False))


def balance_weight(model: nn.Module) -> float | None:
    """Weight of the balance loss as transformers' own training loss has it; None if the type has
    none.
    """
    config: Any = model.config
    for place in (model, config.get_text_config()):
        for name in ("router_aux_loss_coef", "aux_loss_coef"):
            weight = getattr(place, name, None)
            if isinstance(weight, int | float):
                return float(weight)
    return None

"""A parameter group's settings and parameters, judged before anything moves."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from node.exact.demo.momentum import DemoSettings
from node.exact.local_steps.optimizer import MUON_MOMENTUM, tables_of
from node.system.hardware import MPS_REFUSAL
from protocol.codec.payload_shape import SCALED_VALUE_BITS
from protocol.errors import SettingsError

Group = dict[str, Any]
"""A parameter group of torch: its parameters and its hyper-parameters."""

RATES = ("lr", "weight_decay")

INNERS = ("muon", "adamw")
"""Optimizers of the local steps of a group's matrices; all else moves by AdamW."""

SETTINGS = (*RATES, "momentum_decay", "top_k", "value_bits")
"""Settings of every group, equal on all ranks; those of LOCAL too."""

DEFAULTS: Group = {"lr": 1.2e-2, "top_k": 192, "value_bits": 1}
"""Defaults with local steps."""

LOCAL: Group = {"inner": INNERS[0], "momentum": MUON_MOMENTUM}
"""Settings that only local steps have, by default: the optimizer of matrices; the momentum of Muon,
and the first decay of AdamW where that would be larger, which schedulers may cycle."""

VERSION = 2
"""Counts changes of what a saved state holds."""

BEGINNING: Group = {"version": VERSION, "calls": 0, "reach": None, "fault": ""}
"""What is saved with a group besides its settings, as it begins: steps since the last exchange; the
sum of their rates, None before the first; the error that waits for the exchange."""

_DEMO_ALONE: Group = {"momentum_decay": 0.999}
"""Defaults of settings that count for nothing with local steps."""

DEMO_DEFAULTS: Group = {"lr": 1e-3, "top_k": 32, "value_bits": 1, **_DEMO_ALONE}
"""Defaults where each step is exchanged."""

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Dtypes that can be trained."""


def label(groups: Sequence[Group], number: int, index: int) -> str:
    """A person's name for a parameter: that of the model if named parameters were given."""
    names = groups[number].get("param_names")
    if names:
        return str(names[index])
    return f"parameter {index}" + (f" of group {number}" if len(groups) > 1 else "")


def is_trained(parameter: Tensor) -> bool:
    """Whether a step may have to move this parameter: it has entries and is not frozen."""
    if isinstance(parameter, UninitializedParameter):
        return False
    return bool((parameter.requires_grad or parameter.grad is not None) and parameter.numel())


# ---- judging


def default_settings(
    local_steps: int,
    lr: float | None,
    top_k: int | None,
    weight_decay: float,
    given: Mapping[str, Any],
) -> Group:
    """The settings of groups that name none; None in `given`, those that DeMo alone has, stands for
    the default. `SettingsError` for one of these with local steps.
    """
    named = {"lr": lr, "top_k": top_k, **given}
    chosen = {name: value for name, value in named.items() if value is not None}
    if not local_steps:
        return {**DEMO_DEFAULTS, **chosen, "weight_decay": weight_decay}
    if names := sorted(chosen.keys() - DEFAULTS.keys()):
        raise SettingsError(
            f"expected no {names[0]} with local_steps={local_steps}, where it counts for nothing, "
            f"got {chosen[names[0]]!r}: leave it out, or set local_steps=0"
        )
    settings = {**_DEMO_ALONE, **DEFAULTS, **chosen}
    return {**settings, "weight_decay": weight_decay, **LOCAL}


def check_settings(group: Group, where: str = "") -> None:
    """`SettingsError` for settings outside their bounds; `where` ends the sentence."""
    expected = (*SETTINGS, *LOCAL) if "inner" in group else SETTINGS
    if missing := [name for name in expected if name not in group]:
        raise SettingsError(f"expected the settings of DeMo, got a group without {missing}{where}")
    try:
        DemoSettings.among(group)
        if not 0 <= float(group.get("momentum", 0)) < 1:
            raise SettingsError(f"expected a momentum of 0 to below 1, got {group['momentum']}")
        for name in RATES:
            if not 0 <= float(group[name]) <= torch.finfo(torch.float32).max:
                raise SettingsError(f"expected a finite {name} of at least 0, got {group[name]}")
    except SettingsError as error:
        raise SettingsError(f"{error}{where}") from None
    except (TypeError, ValueError, RuntimeError) as error:
        got = {name: group[name] for name in (*SETTINGS, *LOCAL) if name in group}
        raise SettingsError(f"expected numbers as settings, got {got}{where}: {error}") from None
    if "inner" in group and group["value_bits"] not in SCALED_VALUE_BITS:
        raise SettingsError(
            f"expected value_bits of {SCALED_VALUE_BITS} with local steps, got "
            f"{group['value_bits']}{where}"
        )
    if (inner := group.get("inner", INNERS[0])) not in INNERS:
        raise SettingsError(f"expected inner of {' or '.join(INNERS)}, got {inner!r}{where}")


def check_ordered(parameters: Any) -> None:
    """`TypeError`, that of torch, for parameters in an order that another process does not have."""
    if isinstance(parameters, set | frozenset):
        raise TypeError(
            "expected parameters in an order that all ranks and every later start have, got a "
            f"{type(parameters).__name__}: give a list, or model.named_parameters()"
        )


def check_parameters(parameters: Sequence[Tensor], names: Sequence[str]) -> None:
    """`SettingsError` for parameters that DeMo cannot train; those that are frozen may be of any
    dtype and on any device.
    """
    for parameter, name in zip(parameters, names, strict=True):
        if hasattr(type(parameter), "__tensor_flatten__"):
            raise SettingsError(
                f"expected plain tensors, got {type(parameter).__name__} of {name}: DeMo trains "
                "whole parameters on every rank; leave out fully_shard and tensor parallelism"
            )
    trained = [
        (parameter, name)
        for parameter, name in zip(parameters, names, strict=True)
        if parameter.requires_grad or not isinstance(parameter, torch.nn.Parameter)
    ]
    for parameter, name in trained:
        if parameter.dtype not in DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise SettingsError(
                f"expected parameters of float dtypes, got {parameter.dtype} of {name}: freeze it "
                f"(requires_grad = False), or make it one of {known}"
            )
        if parameter.device.type == "mps":
            raise SettingsError(
                f"expected parameters on a CPU or a GPU of CUDA or ROCm, got mps of {name}: "
                f"{MPS_REFUSAL}"
            )
    devices = sorted({str(parameter.device) for parameter, _ in trained})
    if len(devices) > 1:
        raise SettingsError(f"expected the parameters of a group on one device, got {devices}")


def check_precision(parameters: Sequence[Tensor], names: Sequence[str]) -> None:
    """`SettingsError` for parameters that cannot make local steps."""
    for parameter, name in zip(parameters, names, strict=True):
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise SettingsError(
                f"expected float32 parameters with local_steps, got {parameter.dtype} of {name}: "
                "train in float32 with autocast"
            )


def parameter_groups(model: nn.Module) -> list[Group]:
    """A model's parameters for `DeMo`, with their names: embeddings, and what makes logits of
    hidden states, which AdamW moves in local steps; and all others.
    """
    tables = tables_of(model)
    groups: list[Group] = [{"params": [], "inner": "adamw"}, {"params": []}]
    for name, parameter in model.named_parameters():
        groups[id(parameter) not in tables]["params"].append((name, parameter))
    return [group for group in groups if group["params"]]


# ---- what ranks compare


def settings_lines(groups: Sequence[Group]) -> dict[str, str]:
    """The settings of all groups, by names for a person."""
    return {
        f"{name} of group {number}": _text(name, group[name])
        for number, group in enumerate(groups)
        for name in (*SETTINGS, *LOCAL)
        if name in group
    }


def structure_lines(number: int, group: Group, trained: Sequence[int]) -> Iterator[tuple[str, str]]:
    """The parameters of a group; `trained` are the indices of those that take part in steps."""
    parameters, moving = group["params"], frozenset(trained)
    yield f"group {number}", f"a group of {len(parameters)}"
    for index, parameter in enumerate(parameters):
        shape = "" if isinstance(parameter, UninitializedParameter) else tuple(parameter.shape)
        frozen = "" if index in moving else ", frozen"
        yield f"parameter {index} of group {number}", f"{parameter.dtype} {shape}{frozen}"


def _text(name: str, value: Any) -> str:
    return str(value) if name == "inner" else repr(float(value))

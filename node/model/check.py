"""The check of a run file's network before anybody trains it.

transformers builds far more configurations than can be trained as a causal language model: sizes
that only a forward pass compares, types whose positions read the tokens after them, models that no
machine here can hold. `check_model` finds out with one sample: parameters are counted before memory
is taken, one forward and backward pass is made, and two passes that differ in their later tokens
must agree on the earlier ones. It costs less than one micro-batch of a round, and the model that it
builds is thrown away.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from node.model.build import asks_for_balance, build_model, named_parameters_once, require_positions
from node.model.configuration import config_fields, config_notes
from node.model.training import TrainingModel
from node.system.device import gpu_memory_bytes
from protocol.errors import LockstepError, SettingsError
from protocol.planner.needs import needs_of
from protocol.planner.parameters import size_of
from protocol.runfile import RunSpec

CAUSAL_TOLERANCE = 1e-5
"""Largest difference of a logit that counts as rounding, as a part of the largest logit: chunked
scans differ by 1e-7, a position that is read changes logits by 1e-3 and more."""

CAUSAL_TOLERANCE_CUDA = 1e-4
"""The same on a GPU, whose atomic additions come in no fixed order."""

_DISTURBANCE = 0.02
"""Standard deviation of what is added to every parameter before causality is tried: a gate that
begins at zero would hide what lies behind it."""

_CURES: tuple[tuple[str, Any], ...] = (
    ("is_decoder", True),
    ("causal", True),
    ("is_causal", True),
    ("use_bidirectional_attention", False),
    ("attn_type", "uni"),
)
"""Fields with which types say that they are causal, in the order in which they are tried."""

_PAIRS = (
    ("num_attention_heads", "num_key_value_heads"),
    ("hidden_size", "num_attention_heads"),
    ("n_embd", "n_head"),
    ("d_model", "num_heads"),
    ("num_experts", "num_experts_per_tok"),
    ("num_local_experts", "num_experts_per_tok"),
    ("mamba_num_heads", "n_groups"),
    ("num_heads", "n_groups"),
)
"""Fields of which the first must be a multiple, or at least as large, in most types that have
both."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The findings of `check_model`."""

    parameters: int
    """Trainable entries; of tied weights one copy."""

    notes: tuple[str, ...]
    """Remarks for a person, about what nothing refuses, in sentences."""


def check_model(
    spec: RunSpec, device: torch.device | str = "cpu", *, memory_bytes: int | None = None
) -> ModelFacts:
    """Builds the run's network once, tries it on one sample, and throws it away.

    memory_bytes: memory of `device`, if not the machine's own. Raises `SettingsError` that names
    the fields when a configuration cannot be trained: unknown fields, more parameters than memory,
    sizes that do not fit each other or the data, later tokens that change earlier logits, a balance
    loss that is asked for and not given.
    """
    torch_device = torch.device(device)
    parameters = count_parameters(spec)
    require_memory(
        spec, parameters, memory_bytes or device_memory_bytes(torch_device), torch_device.type
    )
    model = build_model(spec.model.type, spec.model.config)
    require_positions(model, spec.data.sequence_length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        notes = _try_training(spec, model, torch_device)
        if leak := _leak(spec, model, torch_device):
            raise SettingsError(_not_causal(spec, leak, torch_device))
    return ModelFacts(parameters, (*config_notes(spec.model.config), *notes))


def check_shared_model(spec: RunSpec, device: torch.device, *, ranks: int, here: int) -> ModelFacts:
    """As `check_model`, of a network of which each of some ranks has a part, `here` of them on this
    machine, before they have it. One that the device could not hold whole is only counted, and the
    notes say so: no other pass than one of all ranks is possible then.
    """
    parameters, is_cpu = count_parameters(spec), device.type == "cpu"
    memory_bytes = device_memory_bytes(device)
    each_bytes = memory_bytes // (here if is_cpu else 1)
    require_memory(spec, parameters, each_bytes, device.type, ranks)
    try:
        require_memory(spec, parameters, memory_bytes, device.type)
    except SettingsError as error:
        model = build_model(spec.model.type, spec.model.config, "meta")
        require_positions(model, spec.data.sequence_length)
        untried = f"not tried on a sample before its ranks share it: {error}"
        return ModelFacts(parameters, (*config_notes(spec.model.config), untried))
    return check_model(spec, device, memory_bytes=memory_bytes)


def count_parameters(spec: RunSpec) -> int:
    """Trainable entries of the network, counted without memory for them."""
    model = build_model(spec.model.type, spec.model.config, "meta")
    return sum(parameter.numel() for parameter in named_parameters_once(model).values())


def require_memory(
    spec: RunSpec, parameters: int, memory_bytes: int, device: str = "cpu", ranks: int = 1
) -> None:
    """Raises `SettingsError` when not even what a replica always holds, in the fewest bits, fits;
    on a CPU beside Python and torch, on a GPU without what the host can keep. `device`: its type;
    `ranks`: those that share the replica, of which each has this memory.
    """
    needs = needs_of(spec, size_of(spec.model, parameters), light=True)
    kept, fixed = (0, needs.fixed_bytes) if device == "cpu" else (needs.kept_bytes, 0)
    needed = (needs.held_bytes - kept) // ranks + fixed
    if needed > memory_bytes:
        each, has = (f" on each of {ranks} ranks", "each") if ranks > 1 else ("", "this machine")
        raise SettingsError(
            f"model.config: the model has {parameters:,} parameters and needs at least "
            f"{_gigabytes(needed)} of memory to train{each}, {has} has "
            f"{_gigabytes(memory_bytes)}; expected a smaller model or a larger machine"
        )


def device_memory_bytes(device: torch.device) -> int:
    """Memory of a device in bytes: a GPU's share that this process may take; of a CPU the
    machine's, or the container's.
    """
    if device.type == "cuda":
        return gpu_memory_bytes(device)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return machine
    return min(machine, int(limit)) if limit.isdecimal() else machine


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB"


def _try_training(spec: RunSpec, model: nn.Module, device: torch.device) -> list[str]:
    """One forward and backward pass in training mode, on `device`; notes."""
    try:
        trainee = TrainingModel(model, device, 1)
        work = trainee.passes([_sample(spec, model)])
        work.next()
        loss = work.finish().loss_nats_per_token
    except LockstepError:
        raise
    except MemoryError as error:
        raise SettingsError(f"model.config: {_first_line(error)}") from error
    except Exception as error:  # torch and transformers raise whatever does not fit
        raise SettingsError(_does_not_fit(spec, model, error)) from error
    if not torch.isfinite(torch.tensor(loss)):
        raise SettingsError(
            f"model.config for type {spec.model.type!r}: expected a finite loss on the first "
            f"sample, got {loss}"
        )
    untouched = [
        name
        for name, value in trainee.parameters.items()
        if not bool(value.grad.any())  # type: ignore[union-attr]
    ]
    if len(untouched) == len(trainee.parameters):
        raise SettingsError(
            f"model.config for type {spec.model.type!r}: expected gradients, a pass gave none"
        )
    return _balance_notes(spec, trainee)


def _balance_notes(spec: RunSpec, trainee: TrainingModel) -> list[str]:
    """Remarks on the balance of a mixture's experts."""
    stated = [
        name
        for name in ("router_aux_loss_coef", "aux_loss_coef")
        if spec.model.config.get(name) and not asks_for_balance(trainee.model)
    ]
    return [
        f"model.config.{name} has no effect without output_router_logits = true: the experts are "
        "not balanced"
        for name in stated
    ]


def _leak(spec: RunSpec, model: nn.Module, device: torch.device) -> float:
    """How much later tokens change earlier logits, as a part of the largest logit; 0 for
    rounding.

    Changes the parameters of `model`.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = None
            parameter.add_(torch.randn(parameter.shape).to(device), alpha=_DISTURBANCE)
    model.eval()
    tokens = _sample(spec, model)[:, :-1].to(device)
    # Odd, so that the cut falls inside the blocks in which types cut their sequences.
    cut = (3 * tokens.shape[1] // 5) | 1
    changed = tokens.clone()
    changed[:, cut:] = (changed[:, cut:] + 1) % _vocabulary(model)
    with torch.no_grad():
        before, after = (
            model(input_ids=ids, use_cache=False).logits[:, :cut].float()
            for ids in (tokens, changed)
        )
    largest = float(before.abs().max())
    difference = float((before - after).abs().max()) / (largest or 1.0)
    tolerance = CAUSAL_TOLERANCE_CUDA if device.type == "cuda" else CAUSAL_TOLERANCE
    return 0.0 if difference <= tolerance else difference


def _not_causal(spec: RunSpec, leak: float, device: torch.device) -> str:
    """The refusal of a type that reads ahead, with a cure that was tried."""
    start = (
        f'model.type "{spec.model.type}" sees later tokens: they change earlier logits by '
        f"{100 * leak:.2g} %"
    )
    known = config_fields(spec.model.type)
    for field, value in _CURES:
        if field in known and spec.model.config.get(field) != value:
            config = {**spec.model.config, field: value}
            cured = spec.model_copy(
                update={"model": spec.model.model_copy(update={"config": config})}
            )
            try:
                model = build_model(spec.model.type, config).to(device)
                if not _leak(cured, model, device):
                    return f"{start}; model.config.{field} = {_toml(value)} makes it causal"
            except Exception:  # a cure that breaks the model is none
                continue
    return f"{start}; expected a causal type, such as llama or gpt2"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'


def _sample(spec: RunSpec, model: nn.Module) -> Tensor:
    """One sample of random tokens: int64 [1, sequence_length + 1]."""
    generator = torch.Generator().manual_seed(0)
    size = (1, spec.data.sequence_length + 1)
    return torch.randint(0, _vocabulary(model), size, generator=generator)


def _vocabulary(model: nn.Module) -> int:
    return int(model.config.get_text_config().vocab_size)  # type: ignore[operator,union-attr]


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _does_not_fit(spec: RunSpec, model: nn.Module, error: Exception) -> str:
    """The refusal of a configuration that a pass does not survive, with the fields behind it."""
    config: Any = model.config
    sizes = {
        name: value
        for name, value in config.to_dict().items()
        if isinstance(value, int) and not isinstance(value, bool) and value > 1
    }
    problem = _first_line(error)
    pairs = _unfit_pairs(sizes) or _named_sizes(sizes, problem, spec.model.config)
    fields = "".join(f" {pair};" for pair in pairs)
    return f"model.config for type {spec.model.type!r} cannot be trained:{fields} {problem}"


def _unfit_pairs(sizes: Mapping[str, int]) -> list[str]:
    """Pairs of fields that fit each other in most types and do not here."""
    found = [
        f"{first} {sizes[first]} does not fit {second} {sizes[second]}"
        for first, second in _PAIRS
        if first in sizes and second in sizes and sizes[first] % sizes[second]
    ]
    width = sizes.get("hidden_size") or sizes.get("n_embd")
    heads = sizes.get("num_attention_heads") or sizes.get("n_head")
    rotary = sizes.get("rotary_dim")
    if width and heads and rotary and rotary > width // heads:
        found.append(f"rotary_dim {rotary} does not fit heads of {width} / {heads} entries")
    return found


def _named_sizes(sizes: Mapping[str, int], problem: str, given: Mapping[str, Any]) -> list[str]:
    """Fields that hold the sizes which a message of torch compares; a product of two fields where
    no single one does. Of equal ones those that the run file states come first.
    """
    numbers = list(dict.fromkeys(int(number) for number in re.findall(r"\d+", problem)))
    ordered = sorted(sizes, key=lambda name: (name not in given, name))
    found = []
    for number in numbers:
        if number < 2:
            continue
        names = [f"{name} {number}" for name in ordered if sizes[name] == number][:2]
        names = (
            names
            or [
                f"{first} {sizes[first]} times {second} {sizes[second]}"
                for first, second in combinations(ordered, 2)
                if sizes[first] * sizes[second] == number
            ][:1]
        )
        found += [" or ".join(names)] if names else []
    return [" does not fit ".join(found[:2])] if len(found) > 1 else found

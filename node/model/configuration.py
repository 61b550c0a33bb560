"""A model's configuration: the run file's words, checked against what transformers knows.

transformers accepts any field name in silence, reads fields that its configuration classes do not
declare, and writes fields into published files that say nothing about the network. So every name is
looked up here: known fields and those that the model's own code reads are passed on, what only
describes a published file is left out with a note, the rest is refused.
"""

import contextlib
import difflib
import importlib
import inspect
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import SettingsError
from protocol.limits import RUN_FILE_BYTES_MAX
from protocol.planner.parameters import require_buildable

NULL = "null"
"""A value that stands for none at all: TOML has no null."""

_REFUSED_FIELDS = frozenset(
    {"attn_implementation", "auto_map", "dtype", "quantization_config", "torch_dtype"}
)
"""Fields that could load code from elsewhere or leave float32: no run file may set them."""

_DESCRIPTIVE_FIELDS = frozenset(
    {"_name_or_path", "architectures", "model_type", "tokenizer_class", "transformers_version"}
)
"""Fields of a published file that do not change the network."""

_PRECISION_FIELDS = ("dtype", "torch_dtype")

_PRECISIONS = ("bfloat16", "float16", "float32")
"""Precisions that a published file may name: every node trains in float32 all the same."""

_ROTARY_FIELDS = frozenset({"partial_rotary_factor", "rope_scaling", "rope_theta"})
"""Fields of older files that transformers turns into `rope_parameters`."""

_TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """The network that a published `config.json` describes."""

    type: str
    """Model type, for `model.type` of a run file."""

    config: dict[str, Any]
    """Its fields as a run file can hold them."""

    init_std: float | None
    """Standard deviation of the initial weights, where the file names one."""

    notes: tuple[str, ...]
    """Fields that were left out or rewritten, in sentences."""


def model_config(model_type: str, config: Mapping[str, Any]) -> Any:
    """The transformers configuration of this type with these fields.

    Raises `SettingsError` that names the field that is unknown or out of bounds.
    """
    transformers = quiet_transformers()
    values = _checked_fields(model_type, config)
    with no_noise(), configuration_errors(model_type):
        full = transformers.AutoConfig.for_model(model_type, **values)
        _drop_foreign_tokens(full, values)
    return full


@contextlib.contextmanager
def configuration_errors(model_type: str) -> Iterator[None]:
    """Transformers raises whatever a configuration happens to break."""
    try:
        yield
    except Exception as error:
        problem = " ".join(str(error).split())[:300] or type(error).__name__
        raise SettingsError(f"model.config for type {model_type!r}: {problem}") from error


def config_notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for every field of a run file's `model.config` that is left out."""
    notes = [
        f"model.config.{name} is left out: it describes a published file"
        for name in sorted(_DESCRIPTIVE_FIELDS & config.keys())
    ]
    notes += [
        f"model.config.{name} = {config[name]!r} is left out: every node trains in float32"
        for name in _PRECISION_FIELDS
        if config.get(name) in _PRECISIONS
    ]
    return tuple(notes)


def read_published(path: Path) -> PublishedModel:
    """The model of a published `config.json`; `SettingsError` for a file that holds none.

    Fields that describe the file or that nothing reads are left out with a note, null becomes the
    string "null" where the type's own default is another value; code from elsewhere and quantized
    weights are refused, as in a run file.
    """
    try:
        with path.open("rb") as file:
            blob = file.read(RUN_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror or error}") from None
    if len(blob) > RUN_FILE_BYTES_MAX:
        raise SettingsError(f"{path}: expected at most {RUN_FILE_BYTES_MAX:,} bytes, got more")
    try:
        values = json.loads(blob.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: expected the JSON of a config.json: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise SettingsError(
            f"{path}: expected a published config.json, an object with the field model_type"
        )
    model_type: str = values["model_type"]
    notes = list(config_notes({**values}))
    kept = {
        name: value
        for name, value in values.items()
        if name not in _DESCRIPTIVE_FIELDS
        and not (name in _PRECISION_FIELDS and value in (*_PRECISIONS, None))
    }
    config = _without_nulls(model_type, kept, notes)
    _checked_fields(model_type, config)
    spread = config.get("initializer_range")
    init_std = float(spread) if isinstance(spread, int | float) and 0 < spread <= 1 else None
    return PublishedModel(model_type, config, init_std, tuple(notes))


def quiet_transformers() -> Any:
    """The transformers package, imported now if it was not, with its hints for interactive use
    turned off.

    Its kernels from the hub are code from the network, for which some types would ask: never here.
    """
    os.environ["USE_HUB_KERNELS"] = "NO"
    with no_noise():
        import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


@contextlib.contextmanager
def no_noise() -> Iterator[None]:
    """Without foreign Python warnings: about deprecations inside transformers, which no user can
    act on.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def config_fields(model_type: str) -> dict[str, Any]:
    """Fields that the type's configuration class declares, with their defaults; `SettingsError` for
    a type that transformers does not have.
    """
    config_class = _config_class(model_type)
    with no_noise(), configuration_errors(model_type):
        defaults: dict[str, Any] = config_class().to_dict()
    aliases = {alias: defaults.get(name) for alias, name in config_class.attribute_map.items()}
    return {name: value for name, value in (aliases | defaults).items() if name[:1] != "_"}


def _config_class(model_type: str) -> Any:
    quiet_transformers()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known_types = sorted(CONFIG_MAPPING.keys())
    if model_type not in known_types:
        raise SettingsError(
            "model.type: expected a model type of "
            f"transformers{_closest(model_type, known_types)}, got {model_type!r}"
        )
    with no_noise():
        return CONFIG_MAPPING[model_type]


def _checked_fields(model_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as keyword arguments; transformers itself would accept any name in silence."""
    require_buildable(config)
    known = config_fields(model_type).keys() - _REFUSED_FIELDS
    stated_type = config.get("model_type", model_type)
    if stated_type != model_type:
        raise SettingsError(
            f"model.config.model_type: expected model.type {model_type!r}, got {stated_type!r}"
        )
    checked: dict[str, Any] = {}
    for name, value in config.items():
        if name in _DESCRIPTIVE_FIELDS or (name in _PRECISION_FIELDS and value in _PRECISIONS):
            continue
        if name in _REFUSED_FIELDS or not (name in known or _is_read(model_type, name)):
            raise SettingsError(
                f"model.config.{name}: expected a field of "
                f"{_config_class(model_type).__name__}{_closest(name, sorted(known))}"
            )
        checked[name] = None if value == NULL else _checked_inside(f"model.config.{name}", value)
    return checked


def _checked_inside(path: str, value: Any) -> Any:
    """A field's value, without the precisions in nested configurations. They are judged as the top
    one is: `SettingsError` for a refused field at any depth.
    """
    if isinstance(value, list | tuple):
        return [_checked_inside(path, each) for each in value]
    if not isinstance(value, Mapping):
        return value
    kept: dict[str, Any] = {}
    for name, inner in value.items():
        if name in _PRECISION_FIELDS and inner in _PRECISIONS:
            continue
        if name in _REFUSED_FIELDS or str(name).startswith("_"):
            raise SettingsError(
                f"{path}.{name}: expected no {name}: it could load code or leave float32"
            )
        kept[name] = _checked_inside(f"{path}.{name}", inner)
    return kept


def _is_read(model_type: str, name: str) -> bool:
    """Whether the model's code reads a field that its configuration class does not declare: some
    published files set such a field (`head_dim` above all), and the code then uses it.
    """
    config_class = _config_class(model_type)
    if name in _ROTARY_FIELDS and "rope_parameters" in config_fields(model_type):
        return True
    if not name.isidentifier() or name.startswith("_"):
        return False
    folder = config_class.__module__.rpartition(".")[0]
    try:
        module = importlib.import_module(f"{folder}.modeling_{folder.rpartition('.')[2]}")
        source = inspect.getsource(module)
    except (ImportError, OSError):
        return False
    quoted = re.escape(name)
    return bool(re.search(rf"config\.{quoted}\b|config, [\"']{quoted}[\"']", source))


def _without_nulls(model_type: str, values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The fields as TOML can hold them, without those that nothing reads."""
    defaults = config_fields(model_type)
    config: dict[str, Any] = {}
    for name, value in values.items():
        known = name in defaults or name in _REFUSED_FIELDS or _is_read(model_type, name)
        if not known:
            notes.append(f"model.config.{name} is left out: type {model_type!r} does not read it")
        elif value is not None:
            config[name] = _pruned(value)
            if config[name] != value:
                notes.append(f"model.config.{name}: null inside it is left out")
        elif defaults.get(name) is not None:
            config[name] = NULL
            notes.append(f'model.config.{name}: null is written "{NULL}"')
    return config


def _pruned(value: Any) -> Any:
    """The value without nulls inside."""
    if isinstance(value, dict):
        return {name: _pruned(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_pruned(inner) for inner in value if inner is not None]
    return value


def _closest(name: str, known: list[str]) -> str:
    likely = difflib.get_close_matches(name, known, n=3)
    return f" (close: {', '.join(likely)})" if likely else ""


def _drop_foreign_tokens(config: Any, given: Mapping[str, Any]) -> None:
    """A type's default special tokens belong to its published vocabulary; outside ours they name
    nothing.
    """
    for field in _TOKEN_FIELDS:
        token = getattr(config, field, None)
        if field not in given and isinstance(token, int) and token >= config.vocab_size:
            with contextlib.suppress(Exception):  # some types insist on a number
                setattr(config, field, None)

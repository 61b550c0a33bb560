"""Shapes of a network's parameters by arithmetic, and the chunks that they fill: no torch.

The types below are those whose layout is written down here; any other model needs its number of
parameters told. Defaults of missing fields are those of transformers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from protocol.errors import SettingsError
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE
from protocol.runfile import ModelSpec

Shape = tuple[int, ...]

PADDING_FACTOR_MAX: Final = 2
"""A matrix that padding makes more than this many times larger shares its chunks with others."""


MODULES_MAX: Final = 65_536
"""Layers of a network, each times its experts: to build more takes memory and minutes before any
parameter has a value."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a network is."""

    parameters: int
    chunks: int
    """Chunks of 64 x 64 of the whole network, padding included."""


def size_of(model: ModelSpec, parameters: int | None = None) -> Size:
    """The size of a run's network. `parameters`, if given, stands in for it: its chunks are then
    counted without padding. `SettingsError` if neither tells.
    """
    if parameters is not None:
        return Size(parameters, -(-parameters // CHUNK_ENTRIES))
    require_buildable(model.config)
    shapes = _LAYOUTS.get(model.type)
    if shapes is None:
        raise SettingsError(
            f"model.type: expected one of {known_layouts()} or the option --parameters, "
            f"got {model.type!r}"
        )
    return _size(shapes(Fields(model.config)))


def has_layout(model: ModelSpec) -> bool:
    """Whether the sizes of this type of model are written down here."""
    return model.type in _LAYOUTS


def known_layouts() -> str:
    """The types of models whose sizes are written down here, for people."""
    return ", ".join(_LAYOUTS)


def fields_of(model: ModelSpec) -> set[str]:
    """The fields of the configuration that the size depends on, of a type that `has_layout`."""
    asked = Fields(model.config)
    _LAYOUTS[model.type](asked)
    return asked.names


def require_buildable(config: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for a configuration with more layers and experts than a network has."""
    whole = {name: value for name, value in config.items() if isinstance(value, int)}
    layers = {name: count for name, count in whole.items() if "layer" in name}
    experts = {name: count for name, count in whole.items() if name.endswith("experts")}
    if max([1, *layers.values()]) * max([1, *experts.values()]) > MODULES_MAX:
        found = ", ".join(f"{name} = {count}" for name, count in sorted((layers | experts).items()))
        raise SettingsError(
            f"model.config: expected at most {MODULES_MAX} layers, each times its experts, got "
            f"{found}"
        )
    for value in config.values():
        if isinstance(value, Mapping):
            require_buildable(value)


def _size(shapes: list[Shape]) -> Size:
    """Chunks as node.exact.chunks cuts them."""
    matrices, small = 0, 0
    for shape in shapes:
        entries = prod(shape)
        grid = _chunks(shape[0]) * _chunks(prod(shape[1:])) if len(shape) > 1 else 0
        if grid and grid * CHUNK_ENTRIES <= PADDING_FACTOR_MAX * entries:
            matrices += grid
        else:
            small += entries
    return Size(sum(map(prod, shapes)), matrices + -(-small // CHUNK_ENTRIES))


def _chunks(length: int) -> int:
    return -(-length // CHUNK_SIDE)


class Fields:
    """Fields of a model's configuration, each a number within reason; `SettingsError` names one
    that is not.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self.names: set[str] = set()
        """Fields that were asked for."""

    def count(self, name: str, default: int) -> int:
        self.names.add(name)
        value = self._fields.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**32:
            raise SettingsError(
                f"model.config.{name}: expected a whole number from 1 to {2**32}, got {value!r}"
            )
        return value

    def is_positive(self, name: str, *, default: bool) -> bool:
        """Whether a field is a number above 0."""
        value = self._fields.get(name, default)
        return isinstance(value, int | float) and value > 0

    def flag(self, name: str, default: bool) -> bool:
        self.names.add(name)
        value = self._fields.get(name, default)
        if not isinstance(value, bool):
            raise SettingsError(f"model.config.{name}: expected true or false, got {value!r}")
        return value


def _llama(
    config: Fields, *, qkv_bias: bool | None = None, kv_heads: int | None = None
) -> list[Shape]:
    """RMS norms, gated feed-forward network, grouped keys and values."""
    vocabulary, width = config.count("vocab_size", 32000), config.count("hidden_size", 4096)
    inner = config.count("intermediate_size", 11008)
    heads = config.count("num_attention_heads", 32)
    head = config.count("head_dim", max(1, width // heads))
    keys = config.count("num_key_value_heads", kv_heads or heads) * head
    bias = config.flag("attention_bias", False)
    shapes: list[Shape] = [(vocabulary, width), (width,)]
    for _ in range(config.count("num_hidden_layers", 32)):
        shapes += [(heads * head, width), (keys, width), (keys, width), (width, heads * head)]
        shapes += [(inner, width), (inner, width), (width, inner), (width,), (width,)]
        if bias if qkv_bias is None else qkv_bias:
            shapes += [(heads * head,), (keys,), (keys,)]
        if bias and qkv_bias is None:
            shapes += [(width,)]
        if config.flag("mlp_bias", False):
            shapes += [(inner,), (inner,), (width,)]
    return shapes if config.flag("tie_word_embeddings", False) else [*shapes, (vocabulary, width)]


def _mistral(config: Fields) -> list[Shape]:
    """Llama's layout with eight heads of keys and values by default."""
    return _llama(config, qkv_bias=False, kv_heads=8)


def _qwen2(config: Fields) -> list[Shape]:
    """Llama's layout with biases on queries, keys and values."""
    return _llama(config, qkv_bias=True, kv_heads=32)


def _gpt2(config: Fields) -> list[Shape]:
    """Learned positions, layer norms with biases, one matrix for queries, keys and values."""
    width = config.count("n_embd", 768)
    inner = config.count("n_inner", 4 * width)
    vocabulary = config.count("vocab_size", 50257)
    shapes: list[Shape] = [(vocabulary, width), (config.count("n_positions", 1024), width)]
    for _ in range(config.count("n_layer", 12)):
        shapes += [(width,)] * 4 + [(width, 3 * width), (3 * width,), (width, width), (width,)]
        shapes += [(width, inner), (inner,), (inner, width), (width,)]
    shapes += [(width,), (width,)]
    return shapes if config.flag("tie_word_embeddings", True) else [*shapes, (vocabulary, width)]


def _gpt_neox(config: Fields) -> list[Shape]:
    """GPT-2's blocks with rotary positions; input and output embeddings apart by default."""
    width, inner = config.count("hidden_size", 6144), config.count("intermediate_size", 24576)
    vocabulary = config.count("vocab_size", 50432)
    bias = config.flag("attention_bias", True)
    shapes: list[Shape] = [(vocabulary, width)]
    for _ in range(config.count("num_hidden_layers", 44)):
        shapes += [(width,)] * 4 + [(3 * width, width), (width, width)]
        shapes += [(3 * width,), (width,)] if bias else []
        shapes += [(inner, width), (inner,), (width, inner), (width,)]
    shapes += [(width,), (width,)]
    return shapes if config.flag("tie_word_embeddings", False) else [*shapes, (vocabulary, width)]


_LAYOUTS: Final[dict[str, Callable[[Fields], list[Shape]]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}

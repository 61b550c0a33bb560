"""Exact initial weights: every node computes the same bits from the seed, nothing is downloaded.

A parameter that transformers initialises to one value everywhere (norm weights, biases) keeps it.
Every other entry is an integer times ONE float32 constant, which is a single correctly rounded
multiplication:

    w = f32(init_std / sqrt(variance) * depth) * (b0 + b1 + b2 + b3 - 510)
    variance = 4 * (256^2 - 1) / 12

with b0..b3 four bytes of a Philox stream: a sum of four uniform values, close to normal and bounded
by 3.45 standard deviations. Two entries share a 64-bit word, low half first, cut by shifts, so byte
order plays no part. Each parameter has its own stream, keyed by SHA-256 of seed and name: order and
threads play none either. NumPy guarantees the raw streams of its bit generators (NEP 19); Philox:
Salmon et al., SC 2011.

`depth` is 1/sqrt(2 * layers) for the matrices that write into the residual stream (Radford et al.
2019), else 1. Structured values (Mamba's A_log and dt bias) are made exactly too:
`node.replica.structured_values`.
"""

import hashlib
import math
from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor, nn

from node.model.build import named_parameters_once
from node.replica.structured_values import structured_values
from protocol.errors import SettingsError

RESIDUAL_OUTPUTS = (
    "c_proj",  # GPT-2, GPT-BigCode
    "o_proj",  # Llama, Qwen, Mistral, Gemma: attention
    "down_proj",  # Llama, Qwen, Mistral, Gemma, experts: feed-forward
    "out_proj",  # OPT, GPT-Neo, GPT-J, Mamba
    "fc2",  # OPT, Phi
    "fc_out",  # GPT-J
    "dense_4h_to_h",  # GPT-NeoX, Bloom, Falcon
    "attention.dense",  # GPT-NeoX, Bloom, Falcon
    "self_attn.dense",  # Phi
)
"""Ends of module names whose output is added to the residual stream."""

_CENTRE = 510
"""Mean of the sum of four bytes."""

_BYTE_SUM_VARIANCE = 4 * (256**2 - 1) / 12

_STRIP_WORDS = 1 << 20
"""64-bit words drawn at once, two entries each: bounds the extra memory to about 32 MiB."""


def fill(
    model: nn.Module,
    seed: int,
    init_std: float,
    names: Collection[str] | None = None,
    *,
    noise: Collection[str] = (),
) -> None:
    """Gives every trainable parameter of a freshly built transformers model, or those of these
    `names`, its initial value of the run.

    seed: any integer of the run file; init_std: standard deviation, > 0; noise: names of those that
    are known to begin with noise, and have no values yet. Buffers and frozen parameters stay.
    Raises `SettingsError` for a deviation that is not positive, a model that does not say its depth
    or one with a structure that cannot be made exactly.
    """
    if not (init_std > 0 and math.isfinite(init_std)):
        raise SettingsError(f"model.init_std: expected a positive number, got {init_std!r}")
    config = model.config.get_text_config()  # type: ignore[operator,union-attr]
    for name, parameter in named_parameters_once(model).items():
        if names is not None and name not in names:
            continue
        built, is_noise = parameter.detach(), name in noise
        if not is_noise and _is_constant(built):
            continue
        stream = _stream(seed, name)
        values = structured_values(name, built, config, stream.random_raw, is_noise=is_noise)
        if values is not None:
            _write(parameter, values)
            continue
        depth = 1 / math.sqrt(2 * _layers(model)) if _writes_residual(name) else 1.0
        _fill_one(parameter, stream, np.float32(init_std / math.sqrt(_BYTE_SUM_VARIANCE) * depth))


def _is_constant(values: Tensor) -> bool:
    """True if all entries are equal. A single entry could be a random draw, so only 0 and 1 are
    believed.
    """
    flat = values.reshape(-1)
    if flat.numel() == 0:
        return True
    first = float(flat[0])
    return first in (0.0, 1.0) if flat.numel() == 1 else bool((flat == first).all())


def _writes_residual(name: str) -> bool:
    return ("." + name.removesuffix(".weight")).endswith(
        tuple("." + end for end in RESIDUAL_OUTPUTS)
    )


def _layers(model: nn.Module) -> int:
    config = model.config.get_text_config()  # type: ignore[operator,union-attr]
    layers = getattr(config, "num_hidden_layers", None)
    if not isinstance(layers, int) or layers < 1:
        raise SettingsError(
            f"model.config: expected num_hidden_layers of at least 1, got {layers!r}"
        )
    return layers


def _stream(seed: int, name: str) -> np.random.Philox:
    """The Philox stream of one parameter; its 128-bit key is the head of SHA-256 of seed and
    name.
    """
    key = hashlib.sha256(f"lockstep.genesis.v1 {seed} {name}".encode()).digest()
    return np.random.Philox(key=int.from_bytes(key[:16], "little"))


def _fill_one(parameter: Tensor, stream: np.random.Philox, scale: np.float32) -> None:
    """Writes all entries of `parameter` in row-major order from `stream`."""
    values = np.empty(parameter.numel(), dtype=np.float32)
    for first in range(0, len(values), 2 * _STRIP_WORDS):
        strip = values[first : first + 2 * _STRIP_WORDS]
        words = stream.random_raw(
            -(-len(strip) // 2)
        )  # uint64; Philox serves them one after another
        np.multiply(_byte_sums(words)[: len(strip)], scale, out=strip)
    _write(parameter, values)


def _write(parameter: Tensor, values: np.ndarray) -> None:
    """values: float32 [entries], row-major."""
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values).view(parameter.shape))


def _byte_sums(words: np.ndarray) -> np.ndarray:
    """Sum of the four bytes of each 32-bit half, low half first, less 510: float32 [2 * words],
    exact.

    words: uint64 [words]. Bytes are added in pairs inside the word: a pair's sum fits 16 bits.
    """
    pairs = (words & np.uint64(0x00FF00FF00FF00FF)) + (
        (words >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    )
    low = (pairs & np.uint64(0xFFFF)) + ((pairs >> np.uint64(16)) & np.uint64(0xFFFF))
    high = ((pairs >> np.uint64(32)) & np.uint64(0xFFFF)) + (pairs >> np.uint64(48))
    return np.stack([low, high], axis=1).reshape(-1).astype(np.float32) - np.float32(_CENTRE)

"""Initial values with a structure, the same bits on every machine.

State-space and other recurrent types do not begin with noise: the decay of each state follows a
formula, on which they learn far better. Their own code computes it with float32 logarithms, whose
last bit differs between machines, or draws it with torch's generator. Here a formula is evaluated
with the standard library's decimal arithmetic, whose exp and ln are correctly rounded by its
specification, and only then rounded to float32; a draw is an entry of a table of `LEVELS` such
values, chosen by a Philox stream.

    A_log            ln 1, ln 2, .. ln n along the last dimension (Gu and Dao, Mamba, 2023)
    A_log, drawn     ln a, a uniform in a range (gated delta nets)
    dt_bias          ln(e^dt - 1), the inverse of softplus, of a log-uniform dt
    recurrent_param  ln(u^-1/2 - 1), u uniform in [0.81, 0.998] (De et al., Griffin, 2024)
    fgate bias       3 .. 6 in equal steps over the heads (Beck et al., xLSTM, 2024)
    time_decay, ...  powers of the channel's place (Peng et al., RWKV, 2023)

A parameter that looks structured and is not in this list is refused: noise in its place would train
badly and say nothing.
"""

import re
from collections.abc import Callable
from decimal import Context, Decimal
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from protocol.errors import SettingsError

LEVELS = 1024
"""Entries of a table of drawn values: neighbours of dt differ by 0.5 %."""

_EXACT = Context(prec=40)

_STEP_FIELDS = (
    ("time_step_min", "time_step_max", "time_step_floor"),
    ("linear_dt_min", "linear_dt_max", "linear_dt_init_floor"),
)
"""Fields in which types state the range of dt."""

_STEP_RANGE = (0.001, 0.1, 0.0001)
"""Smallest and largest dt, and its floor, of types that state none."""

_DRAWN_DECAYS = {
    "bailing_hybrid": (1.0, 16.0),
    "kimi_linear": (1.0, 16.0),
    "olmo_hybrid": (0.0, 16.0),
    "qwen3_5_moe_text": (0.0, 16.0),
    "qwen3_5_text": (0.0, 16.0),
    "qwen3_next": (0.0, 16.0),
    "qwen4_exp_text": (0.0, 16.0),
}
"""Types that draw e^A_log uniformly, and the range."""

_TOLERANCE = 1e-3
"""Largest difference of a formula's value from the type's own: more is another formula."""

_LOOKED_AT = 4096
"""Entries of a parameter that are looked at, evenly spread."""

_SAMPLE = 256
"""Entries from which on a mean tells noise from structure: noise around zero has a mean of a
sixteenth of its deviation."""

Draw = Callable[[int], np.ndarray]
"""Gives uint64 words of a parameter's own stream."""


def structured_values(
    name: str, built: Tensor, config: Any, draw: Draw, *, is_noise: bool = False
) -> np.ndarray | None:
    """float32 values of the parameter `name`, in row-major order; None if it begins with noise.

    built: its values as the type's own code made them, not all equal, or any where it is known to
    begin with noise; config: the model's text configuration. Raises `SettingsError` for a structure
    that is not known here.
    """
    leaf = name.rpartition(".")[2]
    size, model_type = built.numel(), str(getattr(config, "model_type", ""))
    if leaf == "A_log" and model_type in _DRAWN_DECAYS:
        return _drawn(_decay_table(*_DRAWN_DECAYS[model_type]), size, draw)
    if leaf == "A_log":
        return _as_built(
            name, built, np.tile(_logarithms(built.shape[-1]), size // built.shape[-1])
        )
    if leaf in ("dt_bias", "dt_proj_bias") or name.endswith("dt_proj.bias"):
        return _drawn(_step_table(*_step_range(config)), size, draw)
    if leaf == "recurrent_param":
        return _drawn(_recurrence_table(), size, draw)
    if name.endswith("fgate_preact.bias"):
        return _as_built(name, built, _equal_steps(size))
    if model_type == "rwkv" and leaf.startswith("time_"):
        return _as_built(name, built, _rwkv(name, size, config.num_hidden_layers))
    if not is_noise:
        _require_noise(name, built, model_type)
    return None


def _as_built(name: str, built: Tensor, values: np.ndarray) -> np.ndarray:
    """`values`, if they are the type's own except for rounding."""
    own = built.reshape(-1).double().numpy()
    if float(np.abs(own - values).max()) > _TOLERANCE:
        raise SettingsError(_unknown(name, "values by a formula that this release does not have"))
    return values


def _require_noise(name: str, built: Tensor, model_type: str) -> None:
    """Raises `SettingsError` for values that repeat, rise or fall throughout, or lie on one side of
    zero.
    """
    flat = built.reshape(-1)
    flat = flat[:: max(1, flat.numel() // _LOOKED_AT)].double()
    size = flat.numel()
    rises = flat.diff()
    one_way = size >= 16 and bool((rises > 0).all() or (rises < 0).all())
    repeats = size >= 4 and 2 * len(np.unique(flat.numpy())) <= size
    one_sided = size >= _SAMPLE and float(flat.mean().abs()) > 0.5 * float(flat.std())
    if one_way or repeats or one_sided:
        raise SettingsError(
            _unknown(name, f"values with a structure, which type {model_type!r} needs")
        )


def _unknown(name: str, what: str) -> str:
    return (
        f"model.type: parameter {name} begins with {what}; Lockstep cannot make them with equal "
        "bits on every machine; expected a type whose parameters begin with constants or noise"
    )


def _drawn(table: np.ndarray, size: int, draw: Draw) -> np.ndarray:
    """Entries of a table, chosen by 16 bits each: four to a word, lowest first."""
    words = draw(-(-size // 4))
    places = np.stack(
        [(words >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    )
    chosen: np.ndarray = table[places.T.reshape(-1)[:size] % np.uint64(LEVELS)]
    return chosen


def _step_range(config: Any) -> tuple[float, float, float]:
    for fields in _STEP_FIELDS:
        low, high, floor = (getattr(config, field, None) for field in fields)
        if isinstance(low, float) and isinstance(high, float):
            floor = float(floor) if isinstance(floor, int | float) else _STEP_RANGE[2]
            if not 0 < low <= high < 100 or not 0 < floor < 100:
                raise SettingsError(
                    f"model.config: expected 0 < {fields[0]} <= {fields[1]} < 100 and "
                    f"{fields[2]} > 0, got {low}, {high} and {floor}"
                )
            return low, high, floor
    return _STEP_RANGE


def _rounded(values: list[Decimal]) -> np.ndarray:
    return np.array([float(value) for value in values], dtype=np.float32)


def _middle(level: int) -> Decimal:
    """The middle of one of `LEVELS` equal parts of [0, 1]: exact."""
    return _EXACT.divide(Decimal(2 * level + 1), Decimal(2 * LEVELS))


def _between(low: float, high: float, level: int) -> Decimal:
    span = _EXACT.subtract(Decimal(high), Decimal(low))
    return _EXACT.add(Decimal(low), _EXACT.multiply(span, _middle(level)))


@cache
def _logarithms(count: int) -> np.ndarray:
    return _rounded([_EXACT.ln(Decimal(number)) for number in range(1, count + 1)])


@cache
def _decay_table(low: float, high: float) -> np.ndarray:
    return _rounded([_EXACT.ln(_between(low, high, level)) for level in range(LEVELS)])


@cache
def _step_table(low: float, high: float, floor: float) -> np.ndarray:
    first = _EXACT.ln(Decimal(low))
    span = _EXACT.subtract(_EXACT.ln(Decimal(high)), first)
    steps = (
        _EXACT.exp(_EXACT.add(first, _EXACT.multiply(span, _middle(level))))
        for level in range(LEVELS)
    )
    return _rounded(
        [
            _EXACT.ln(_EXACT.subtract(_EXACT.exp(max(step, Decimal(floor))), Decimal(1)))
            for step in steps
        ]
    )


@cache
def _recurrence_table() -> np.ndarray:
    half = Decimal("-0.5")
    powers = (
        _EXACT.exp(_EXACT.multiply(half, _EXACT.ln(_between(0.9**2, 0.999**2, level))))
        for level in range(LEVELS)
    )
    return _rounded([_EXACT.ln(_EXACT.subtract(power, Decimal(1))) for power in powers])


def _equal_steps(heads: int) -> np.ndarray:
    """3 to 6 in equal steps; one head has 3."""
    steps = Decimal(max(1, heads - 1))
    return _rounded(
        [_EXACT.add(Decimal(3), _EXACT.divide(Decimal(3 * head), steps)) for head in range(heads)]
    )


def _rwkv(name: str, size: int, layers: int) -> np.ndarray:
    """RWKV's decay and mixing of each channel, by the depth of its layer."""
    found = re.search(r"\.blocks\.(\d+)\.(\w+)\.(time_\w+)$", name)
    if not found:
        raise SettingsError(_unknown(name, "values by a formula that this release does not have"))
    layer, part, leaf = int(found[1]), found[2], found[3]
    depth = _EXACT.divide(Decimal(layer), Decimal(max(1, layers - 1)))
    left = _EXACT.subtract(Decimal(1), _EXACT.divide(Decimal(layer), Decimal(layers)))
    if leaf == "time_decay":
        exponent = _EXACT.add(Decimal("0.7"), _EXACT.multiply(Decimal("1.3"), depth))
        return _rounded(
            [
                _EXACT.add(Decimal(-5), _EXACT.multiply(Decimal(8), power))
                for power in _powers(size, size - 1, exponent)
            ]
        )
    if leaf == "time_mix_receptance" and part == "attention":
        left = _EXACT.multiply(Decimal("0.5"), left)
    offset = _EXACT.multiply(Decimal("0.3"), depth) if leaf == "time_mix_value" else Decimal(0)
    return _rounded([_EXACT.add(power, offset) for power in _powers(size, size, left)])


def _powers(count: int, whole: int, exponent: Decimal) -> list[Decimal]:
    """(i / whole) ** exponent for i below `count`: exp(exponent * ln(i / whole)), and 0 for 0."""
    return [
        _EXACT.exp(
            _EXACT.multiply(exponent, _EXACT.ln(_EXACT.divide(Decimal(place), Decimal(whole))))
        )
        if place
        else Decimal(0)
        for place in range(count)
    ]

"""Values with which a run of an algorithm begins, where the run file's defaults are another's, and
the learning rate for the width of its network.

The defaults of a run file are those of local steps.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from protocol.runfile import RunSpec, parse_run_json

ORIGIN: Final = "run file"
"""The place that an error about a value names."""

PRESETS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "demo": {
        "algorithm": {"top_k": 32},
        "schedule": {"learning_rate": 0.001},
        "rounds": {"batch_samples_max": 64},
    },
    "local_steps": {},
    "gossip-adam": {
        "schedule": {"learning_rate": 0.001},
        "rounds": {"overlap": 1, "batch_samples_max": 64},
    },
}
"""By algorithm, section and field. Rates are at `RATE_WIDTH`; that of gossip Adam is Adam's where
nothing else is known."""

RATE_WIDTH: Final = 128
"""Width of the network of the defaults. Over widths of 64 to 256 the best rate times the width was
the same (docs/results/local-steps.md); how Adam's depends on it was not measured."""

WIDTH_FIELDS: Final = ("hidden_size", "n_embd", "d_model")
"""Names of the width in configurations of transformers."""


def run_of(algorithm: str, **sections: Mapping[str, Any]) -> RunSpec:
    """The run file of an algorithm: these values, those with which it begins, and defaults for the
    rest. `SettingsError` for a name of no algorithm.
    """
    values: dict[str, dict[str, Any]] = {"algorithm": {"name": algorithm}}
    for given in (PRESETS.get(algorithm, {}), sections):
        for name, fields in given.items():
            values[name] = {**values.get(name, {}), **fields}
    return parse_run_json(json.dumps(values).encode(), ORIGIN)


def at_its_width(spec: RunSpec) -> RunSpec:
    """The run file with the learning rate of its network's width, of two digits; as it is where the
    configuration does not name the width, and for gossip Adam.
    """
    named = (spec.model.config.get(field) for field in WIDTH_FIELDS)
    width = next((width for width in named if isinstance(width, int) and width > 0), RATE_WIDTH)
    if not spec.algorithm.facts.rate_by_width:
        return spec
    rate = float(f"{spec.schedule.learning_rate * RATE_WIDTH / width:.2g}")
    schedule = spec.schedule.model_copy(update={"learning_rate": rate})
    return spec.model_copy(update={"schedule": schedule})

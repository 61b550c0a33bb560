"""Learning rates to begin a run with, by its algorithm and the width of its network."""

from typing import Final

from protocol.runfile import RunSpec

LOCAL_STEPS: Final = 0.012
"""That of local steps at `RATE_WIDTH`, the best one found (docs/results/local-steps.md)."""

RATES: Final = {"local_steps": LOCAL_STEPS, "gossip-adam": 0.001}
"""Rates at `RATE_WIDTH`, where they are not the run file's default; that of gossip Adam is Adam's
where nothing else is known."""

RATE_WIDTH: Final = 128
"""Width of the network of the defaults. Over widths of 64 to 256 the best rate times the width was
the same (docs/results/local-steps.md); how Adam's depends on it was not measured."""

WIDTH_FIELDS: Final = ("hidden_size", "n_embd", "d_model")
"""Names of the width in configurations of transformers."""


def at_its_width(spec: RunSpec) -> RunSpec:
    """The run file with the learning rate of its network's width, of two digits; as it is where the
    configuration does not name the width, and for gossip Adam.
    """
    named = (spec.model.config.get(field) for field in WIDTH_FIELDS)
    width = next((width for width in named if isinstance(width, int) and width > 0), RATE_WIDTH)
    if spec.algorithm.mixes:
        return spec
    rate = float(f"{spec.schedule.learning_rate * RATE_WIDTH / width:.2g}")
    schedule = spec.schedule.model_copy(update={"learning_rate": rate})
    return spec.model_copy(update={"schedule": schedule})

"""Rounds of gossip Adam beside those of DeMo on the same lines: the planner's, and those that
`tests.benchmarks.gossip.beside_demo` measured while DeMo's rounds could still overlap.
"""

import json
from collections.abc import Callable
from pathlib import Path

from node.gossip_adam.wire import message_bytes
from protocol.codec.payload import PayloadShape
from protocol.planner.compute import pass_of
from protocol.planner.links import MEASURED, Network
from protocol.planner.methods import MethodTraffic, Prediction, Setting, predicted
from protocol.planner.parameters import size_of
from protocol.planner.payload_bytes import votes_bytes
from protocol.runfile import ModelSpec
from tests.benchmarks.pages.blocks import table
from tests.benchmarks.planner import line
from tests.benchmarks.wan.model import CONFIGS

MEASURED_FILE = Path("docs/results/data/gossip-beside-demo.json")

PROFILES = ("cable", "fibre")
HOMES = (4, 8, 16, 64)
HOMES_MAX = 1024
"""Where the search for a crossover ends."""

PASS_S = 2.0
"""A pass, as in the cells of the home links."""

SIZE = size_of(ModelSpec(type="llama", config=CONFIGS["20m"]))
"""The network of the home links."""

TRAFFIC = MethodTraffic(
    gradient=2.0 * SIZE.parameters,
    payload=votes_bytes(PayloadShape(SIZE.chunks, 32, 1)),
    parameters=message_bytes("int8", SIZE.parameters),
)


def rounds(profile: str, homes: int) -> tuple[Prediction, Prediction]:
    """DeMo, which waits for every commit, and gossip Adam with one-peer exponential, int8."""
    network = Network([line(profile)] * homes)
    setting = Setting(pass_of(PASS_S), network, TRAFFIC, MEASURED)
    return predicted(setting, "demo"), predicted(setting, "gossip-adam")


def crossover(profile: str) -> int | None:
    """The least power of two of homes at which a round of gossip Adam is shorter."""
    return first_shorter(lambda homes: rounds(profile, homes))


def first_shorter(rounds_of: Callable[[int], tuple[Prediction, Prediction]]) -> int | None:
    """The least power of two of homes at which the second of two rounds is shorter; None up to
    `HOMES_MAX`.
    """
    homes = 2
    while homes <= HOMES_MAX:
        demo, gossip = rounds_of(homes)
        if gossip.seconds < demo.seconds:
            return homes
        homes *= 2
    return None


def rounds_table() -> str:
    """Seconds and bytes of both, and where they cross."""
    rows = []
    for profile in PROFILES:
        cross = crossover(profile)
        for homes in HOMES:
            demo, gossip = rounds(profile, homes)
            rows.append(
                [
                    f"{homes} {profile}",
                    f"{demo.seconds:.1f}",
                    f"{gossip.seconds:.1f}",
                    f"{demo.up_bytes / 1e6:.1f}",
                    f"{gossip.up_bytes / 1e6:.1f}",
                    f"{cross} homes" if cross else f"above {HOMES_MAX}",
                ]
            )
    head = (
        "homes",
        "DeMo, s",
        "gossip Adam, s",
        "DeMo, MB up",
        "gossip Adam, MB up",
        "gossip is shorter from",
    )
    return table(head, rows)


def measured_table() -> str:
    """Seconds of a round of both over shaped lines, beside the planner's, told the arithmetic."""
    rows = []
    for cell in json.loads(MEASURED_FILE.read_text())["cells"]:
        found = cell["measurement"]
        least, most = min(found["step_s"]), max(found["step_s"])
        rows.append(
            [
                f"{cell['homes']} {cell['profile']}",
                "gossip Adam" if cell["method"] == "gossip-adam" else "DeMo, overlap 1",
                f"{found['arithmetic_s']:.1f}",
                f"{cell['measured_s']:.1f} ({least:.1f} to {most:.1f})",
                f"{cell['predicted_s']:.1f}",
                f"{cell['error']:+.0%}",
                f"{cell['measured_up_bytes'] / 1e6:.1f}",
            ]
        )
    head = ("homes", "method", "arithmetic, s", "measured, s", "predicted, s", "error", "MB up")
    return table(head, rows, 2)

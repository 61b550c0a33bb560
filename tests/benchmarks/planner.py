"""The planner against measurements: `python -m tests.benchmarks.planner [--json PATH]`.

Reads what `lockstep wan` laboratories measured (docs/results/data), fits two numbers on two cells,
predicts all others, prints JSON, and writes the tables of docs/results/planner.md.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from lockstep.wan.profiles import read_profiles
from protocol.codec.payload import PayloadShape
from protocol.planner.compute import pass_of
from protocol.planner.links import MEASURED, Calibration, HomeLine, Network, exchange_s
from protocol.planner.methods import MethodName, MethodTraffic, Setting, predicted
from protocol.planner.parameters import size_of
from protocol.planner.payload_bytes import votes_bytes
from protocol.runfile import ModelSpec
from tests.benchmarks.pages.blocks import rendered, table
from tests.benchmarks.records import read_records
from tests.benchmarks.wan.methods import METHODS
from tests.benchmarks.wan.model import CONFIGS
from tests.benchmarks.wan.results import Measurement

RESULTS = Path("docs/results")
PAGE = RESULTS / "planner.md"
CELLS = RESULTS / "data/wan.jsonl"
EXCHANGES = ("gossip-shaped-idle.json", "gossip-shaped-idle-8.json", "gossip-shaped.json")

FITTED = {"line_share": "cable-ddp", "exchange_stretch": "cable-lockstep-0-grpc-slowed4"}
"""The cell on which each number was fitted."""

NOT_PLANNED = "hivemind"
"""A method that the planner does not know."""

GRADIENT_BITS = 32
"""The baselines of these cells sent float32."""

LOCAL_STEPS = 50
"""H of the DiLoCo cell."""

AIM = 0.10
"""Mean absolute error that was aimed at, as a part of what was measured."""

SLOW_MBIT_S = 2.0
"""Uplink of the one slow home in measurements of exchanges."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured cell and its prediction."""

    name: str
    method: str
    profile: str
    nodes: int
    pass_s: float
    arithmetic_s: float
    fitted: bool
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Prediction over measurement, less one."""
        return self.predicted_s / self.measured_s - 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Fits, predicts, prints and writes."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.planner", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--json", type=Path, help="write the figures there too")
    path = parser.parse_args(arguments).json
    text = json.dumps(document(), indent=1) + "\n"
    print(text, end="")
    if path:
        path.write_text(text)
    PAGE.write_text(page(PAGE.read_text()))


def document() -> dict[str, Any]:
    """All figures."""
    found, exchanges = cells(), list(exchange_cells())
    return {
        "fitted": asdict(fit()),
        "fitted_on": FITTED,
        "aim": AIM,
        "mean_absolute_error": mean_error(found),
        "cells": [asdict(cell) | {"error": cell.error} for cell in found],
        "exchange_mean_absolute_error": mean_error(exchanges),
        "exchanges": [asdict(cell) | {"error": cell.error} for cell in exchanges],
    }


def page(text: str) -> str:
    """The page with its tables computed anew."""
    return rendered(text, {"cells": lambda: _table(cells()), "exchanges": _exchange_table})


def mean_error(found: Iterable[Cell]) -> float:
    """Mean absolute error of the cells that were not fitted."""
    return fmean(abs(cell.error) for cell in found if not cell.fitted)


def measurements() -> dict[str, Measurement]:
    """The measured cells by name, without the method that is not planned."""
    return {
        record["name"]: Measurement(**record["document"])
        for record in read_records(CELLS)
        if "step_s" in record["document"] and record["document"]["method"] != NOT_PLANNED
    }


def fit() -> Calibration:
    """Both numbers, each so that its cell is predicted exactly: first the share of a line, which
    alone decides its cell, then the stretch of an exchange.
    """
    known = measurements()

    def beyond(number: str, calibration: Calibration) -> float:
        one = known[FITTED[number]]
        return _step_s(one, calibration) - one.seconds

    share = _root(
        lambda value: beyond("line_share", replace(MEASURED, line_share=value)), (0.05, 1)
    )
    found = replace(MEASURED, line_share=round(share, 3))
    stretch = _root(
        lambda value: -beyond("exchange_stretch", replace(found, exchange_stretch=value)), (0.1, 10)
    )
    return replace(found, exchange_stretch=round(stretch, 2))


def cells(calibration: Calibration = MEASURED) -> list[Cell]:
    """Every measured cell with its prediction."""
    return [
        Cell(
            name,
            one.method,
            one.profile,
            one.nodes,
            one.compute_s,
            one.arithmetic_s,
            name in FITTED.values(),
            one.seconds,
            _step_s(one, calibration),
        )
        for name, one in measurements().items()
    ]


def exchange_cells(calibration: Calibration = MEASURED) -> Iterable[Cell]:
    """Exchanges alone: all homes publish one payload, until all have all."""
    for name in EXCHANGES:
        for row in json.loads((RESULTS / "data" / name).read_text())["results"]:
            number, rest = row["homes"].split(" ", 1)
            profile, _, slow = rest.partition(", ")
            lines = [line(profile)] * int(number)
            if slow:
                lines[-1] = replace(lines[-1], up_bit_s=SLOW_MBIT_S * 1e6)
            seconds = exchange_s(Network(lines), row["payload_bytes"], calibration)
            yield Cell(
                f"{row['homes']} ({'idle' if 'idle' in name else 'busy'} machine)",
                row["links"],
                profile,
                int(number),
                0.0,
                0.0,
                False,
                row["median_s"],
                seconds,
            )


def setting(one: Measurement, calibration: Calibration) -> Setting:
    """What the planner is told of a cell: its lines, its pass, and the measured arithmetic."""
    how = METHODS[one.method]
    size = size_of(ModelSpec(type="llama", config=CONFIGS["20m"]))
    compute = pass_of(how.round_steps * one.compute_s)
    if how.kind == "lockstep":
        compute = replace(compute, apply_s=how.round_steps * one.arithmetic_s)
    else:
        compute = replace(compute, optimizer_s=one.arithmetic_s)
    traffic = MethodTraffic(
        size.parameters * GRADIENT_BITS / 8,
        votes_bytes(PayloadShape(size.chunks, how.top_k, 1, scaled=how.local_steps > 0)),
        0.0,
        local_steps=LOCAL_STEPS,
    )
    return Setting(compute, Network([line(one.profile)] * one.nodes), traffic, calibration)


def _step_s(one: Measurement, calibration: Calibration) -> float:
    """Seconds of a step by the planner, which predicts rounds."""
    round_s = predicted(setting(one, calibration), _method(one)).seconds
    return round_s / METHODS[one.method].round_steps


def _method(one: Measurement) -> MethodName:
    how = METHODS[one.method]
    if how.kind == "lockstep":
        return "demo-overlap" if how.overlap else "demo"
    return "diloco" if how.kind == "diloco" else "all-reduce"


def line(profile: str) -> HomeLine:
    """The line of a profile of home links."""
    found = read_profiles().profile(profile)
    return HomeLine(profile, found.up_mbit_s * 1e6, found.down_mbit_s * 1e6, found.rtt_ms / 1000)


def _root(over: Callable[[float], float], bounds: tuple[float, float]) -> float:
    """Where a falling function of one number passes zero."""
    low, high = bounds
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) > 0 else (low, middle)
    return (low + high) / 2


def _table(found: Sequence[Cell]) -> str:
    rows = [
        [
            cell.name,
            f"{cell.pass_s:g}",
            f"{cell.arithmetic_s:.2f}",
            f"{cell.measured_s:.2f}",
            f"{cell.predicted_s:.2f}",
            "fitted" if cell.fitted else f"{cell.error:+.0%}",
        ]
        for cell in found
    ]
    head = ("cell", "a pass, s", "arithmetic, s", "measured, s", "predicted, s", "error")
    return table(head, rows)


def _exchange_table() -> str:
    rows = [
        [
            cell.name,
            cell.method,
            f"{cell.measured_s:.2f}",
            f"{cell.predicted_s:.2f}",
            f"{cell.error:+.0%}",
        ]
        for cell in exchange_cells()
    ]
    return table(("homes", "links", "measured, s", "predicted, s", "error"), rows, left=2)


if __name__ == "__main__":
    main()

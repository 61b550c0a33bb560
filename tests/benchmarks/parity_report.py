"""What the results of the parity study say: tables, a CSV with every point, a PNG for each length of training.

There is a table for each length of training. A line of it and a curve is one setting: cells that differ in nothing but
the seed, averaged. A picture shows, of settings that differ in nothing but the learning rate, the best one, and of
every other method than DeMo the best setting alone.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from matplotlib import cycler, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from node.system.files import replacing_file
from tests.benchmarks.parity_cells import Cell
from tests.benchmarks.parity_train import Point, Result

CSV_NAME = "points.csv"
TABLE_NAME = "table.md"

_AXES = {
    "tokens": "tokens trained",
    "up_bytes": "bytes sent per author",
    "down_bytes": "bytes received per author",
}
_HEAD = ("setting", "seeds", "bits per byte", "worst - best seed", "at a quarter", "up per step", "x dense", "down")
_DENSE_BYTES = 2
"""Of a bfloat16 gradient, per parameter: what `x dense` compares uploads with."""

_HOUR_S = 3600

_HEADROOM = 1.1
"""How far above the median of first points a picture reaches."""

_LINES = cycler(linestyle=("-", "--", ":", "-.")) * rcParams["axes.prop_cycle"]
"""Each colour once with every kind of line: curves that share one can be told apart."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Cells that differ only in their seed."""

    cell: Cell
    """With seed 0."""

    results: tuple[Result, ...]

    @property
    def failed(self) -> bool:
        """Whether any of them did not reach its last step."""
        return any(result.failure for result in self.results)

    @property
    def bits_per_byte(self) -> float:
        """Mean over seeds at the last step; infinite if one failed."""
        return float("inf") if self.failed else mean(result.last.bits_per_byte for result in self.results)

    @property
    def spread(self) -> float:
        """Largest minus smallest bits per byte."""
        last = [result.last.bits_per_byte for result in self.results]
        return max(last) - min(last)

    def at(self, step: float) -> float:
        """Mean bits per byte at a step, interpolated between points."""
        return mean(
            float(np.interp(step, [p.step for p in result.points], [p.bits_per_byte for p in result.points]))
            for result in self.results
        )


def settings_of(results: Iterable[Result]) -> list[Setting]:
    """Settings by length, the best of each length first."""
    seeds: dict[Cell, list[Result]] = defaultdict(list)
    for result in results:
        seeds[replace(result.cell, seed=0)].append(result)
    settings = [Setting(cell, tuple(found)) for cell, found in seeds.items()]
    return sorted(settings, key=lambda setting: (setting.cell.steps, setting.bits_per_byte, setting.cell.name))


def pictured(settings: Iterable[Setting]) -> list[Setting]:
    """Of settings, best first, that differ only in the learning rate, the first, and of all of another method than DeMo
    the first; those that failed left out."""
    best: dict[Cell, Setting] = {}
    for setting in settings:
        cell = setting.cell
        alike = replace(cell, learning_rate=1.0) if cell.method == "demo" else Cell(cell.method, 1.0, cell.steps)
        if not setting.failed:
            best.setdefault(alike, setting)
    return list(best.values())


def write_report(directory: Path, results: Sequence[Result]) -> str:
    """Write all parts of the report and return its tables."""
    _write(directory / CSV_NAME, points_csv(results).encode())
    parts: list[str] = []
    for steps, settings in groupby(settings_of(results), lambda setting: setting.cell.steps):
        of_length = list(settings)
        parts += [f"## {steps} steps", table(of_length)]
        if shown := pictured(of_length):
            _write(directory / f"curves-{steps}.png", picture(shown))
    hours = sum(result.seconds for result in results) / _HOUR_S
    report = "\n\n".join([*parts, f"{len(results)} cells, {hours:.1f} hours of one core."])
    _write(directory / TABLE_NAME, report.encode() + b"\n")
    return report


def table(settings: Sequence[Setting]) -> str:
    """Markdown, a line for each setting; all of one length."""
    rows = [_HEAD, ("---", *["---:"] * (len(_HEAD) - 1)), *map(_row, settings)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def points_csv(results: Iterable[Result]) -> str:
    """Every point of every cell: the cell's name and fields, then the point's."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    cell_fields = [field.name for field in fields(Cell)]
    writer.writerow(["cell", *cell_fields, *(field.name for field in fields(Point))])
    for result in results:
        cell = [_csv_value(value) for value in astuple(result.cell)]
        writer.writerows([result.cell.name, *cell, *astuple(point)] for point in result.points)
    return text.getvalue()


def picture(settings: Sequence[Setting]) -> bytes:
    """PNG: bits per byte against tokens, bytes sent and bytes received; without the genesis and what is far above most
    curves' first point, which hide the rest."""
    figure = Figure(figsize=(15.0, 7.0), layout="constrained")
    FigureCanvasAgg(figure)  # the canvas registers itself: no pyplot, no global state, no display
    panels = figure.subplots(1, len(_AXES), sharey=True)
    for panel in panels:
        panel.set_prop_cycle(_LINES)
    first = median(result.points[1].bits_per_byte for setting in settings for result in setting.results)
    for setting in settings:
        curves = [result.points[1:] for result in setting.results]
        heights = [mean(point.bits_per_byte for point in points) for points in zip(*curves, strict=True)]
        for panel, axis in zip(panels, _AXES, strict=True):
            reached = [mean(getattr(point, axis) for point in points) for points in zip(*curves, strict=True)]
            panel.plot(reached, heights, marker=".", label=f"{heights[-1]:.3f} {setting.cell.title}")
    for panel, label in zip(panels, _AXES.values(), strict=True):
        panel.set(xlabel=label)
        panel.grid(alpha=0.3)
        if "bytes" in label:
            panel.set_xscale("symlog", linthresh=1.0)
    panels[0].set(ylabel="validation, bits per byte", ylim=(None, first * _HEADROOM))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    text = io.BytesIO()
    figure.savefig(text, format="png", dpi=110, bbox_inches="tight")
    return text.getvalue()


def _row(setting: Setting) -> tuple[str, ...]:
    last = setting.results[0].last
    steps, seeds = max(last.step, 1), len(setting.results)
    up, down = last.up_bytes / steps, last.down_bytes / steps
    dense = _DENSE_BYTES * setting.results[0].parameters
    return (
        setting.cell.title,
        str(seeds),
        "blew up" if setting.failed else f"{setting.bits_per_byte:.3f}",
        f"{setting.spread:.3f}" if seeds > 1 else "",
        "" if setting.failed else f"{setting.at(setting.cell.steps / 4):.3f}",
        f"{up:,.0f}",
        f"{dense / up:.0f}" if up else "",
        f"{down:,.0f}",
    )


def _csv_value(value: Any) -> Any:
    return "+".join(map(str, value)) if isinstance(value, tuple) else value


def _write(path: Path, blob: bytes) -> None:
    with replacing_file(path, len(blob)) as temporary:
        temporary.write_bytes(blob)

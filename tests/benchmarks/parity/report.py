"""Tables, a CSV with every point and SVG figures of the parity study.

A line of a table and a curve is one setting: cells that differ in nothing but the seed, averaged. A
figure shows, of settings that differ in nothing but the learning rate, the best one, and of every
other method than DeMo the best setting alone.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from cycler import cycler
from matplotlib import rcParams

from node.system.files import replacing_file
from tests.benchmarks.figures import canvas, svg
from tests.benchmarks.parity.cells import Cell
from tests.benchmarks.parity.comparison import volume
from tests.benchmarks.parity.results import Point, Result

CSV_NAME = "points.csv"
TABLE_NAME = "table.md"

_HEAD = (
    "setting",
    "seeds",
    "bits per byte",
    "worst - best seed",
    "at a quarter",
    "payload bytes",
    "exchange bytes",
)
"""`payload bytes`: serialised per author and step. `exchange bytes`: sent by the mean node per
step, see `volume`."""

_HOUR_S = 3600

_HEADROOM = 1.1
"""How far above the median of first points a figure reaches."""

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
        return (
            float("inf")
            if self.failed
            else mean(result.last.bits_per_byte for result in self.results)
        )

    @property
    def spread(self) -> float:
        """Largest minus smallest bits per byte."""
        last = [result.last.bits_per_byte for result in self.results]
        return max(last) - min(last)

    @property
    def payload_bytes(self) -> float:
        """Bytes that one author serialises per step; the first seed's."""
        return self.results[0].payload_bytes

    @property
    def exchange_bytes(self) -> float:
        """Bytes that the mean node sends per step when all authors exchange; AdamW's gradients go
        around a ring.
        """
        authors, parameters = self.cell.authors, self.results[0].parameters
        if authors == 1:
            return 0.0
        found = volume(authors, parameters, self.payload_bytes)
        return found.ring_bytes if self.cell.method == "adamw" else found.exchange_bytes

    def at(self, step: float) -> float:
        """Mean bits per byte at a step, interpolated between points."""
        return mean(
            float(
                np.interp(
                    step, [p.step for p in result.points], [p.bits_per_byte for p in result.points]
                )
            )
            for result in self.results
        )


def settings_of(results: Iterable[Result]) -> list[Setting]:
    """Settings by length, the best of each length first; seeds in order."""
    seeds: dict[Cell, list[Result]] = defaultdict(list)
    for result in sorted(results, key=lambda result: result.cell.seed):
        seeds[replace(result.cell, seed=0)].append(result)
    settings = [Setting(cell, tuple(found)) for cell, found in seeds.items()]
    return sorted(
        settings, key=lambda setting: (setting.cell.steps, setting.bits_per_byte, setting.cell.name)
    )


def pictured(settings: Iterable[Setting]) -> list[Setting]:
    """The settings of a figure, from settings with the best first; failed ones are left out.

    Of DeMo's settings that differ only in the learning rate it has the best; of every other method
    the best one.
    """
    best: dict[Cell, Setting] = {}
    for setting in settings:
        cell = setting.cell
        alike = (
            replace(cell, learning_rate=1.0)
            if cell.method == "demo"
            else Cell(cell.method, 1.0, cell.steps)
        )
        if not setting.failed:
            best.setdefault(alike, setting)
    return list(best.values())


def write_report(directory: Path, results: Sequence[Result]) -> str:
    """Write all parts of the report into a directory and return its tables."""
    _write(directory / CSV_NAME, points_csv(results).encode())
    parts: list[str] = []
    for steps, settings in groupby(settings_of(results), lambda setting: setting.cell.steps):
        of_length = list(settings)
        parts += [f"## {steps} steps", table(of_length)]
        if shown := pictured(of_length):
            _write(directory / f"curves-{steps}.svg", curves_figure(shown))
    report = "\n\n".join([*parts, cost(results)])
    _write(directory / TABLE_NAME, report.encode() + b"\n")
    return report


def cost(results: Sequence[Result]) -> str:
    """How many cells there are and how long they took by their own clocks."""
    hours = sum(result.seconds for result in results) / _HOUR_S
    return f"{len(results)} cells, {hours:.1f} hours of one core."


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


def curves_figure(settings: Sequence[Setting], labels: Mapping[Cell, str] | None = None) -> bytes:
    """SVG: bits per byte against tokens trained and against bytes that the mean node has sent.

    A setting without a label has its title.

    The genesis, and all that is far above most curves' first point, is left out: it would hide the
    rest.
    """
    figure = canvas(12.0, 6.5)
    panels = figure.subplots(1, 2, sharey=True)
    for panel in panels:
        panel.set_prop_cycle(_LINES)
    first = median(
        result.points[1].bits_per_byte for setting in settings for result in setting.results
    )
    for setting in settings:
        curves = [result.points[1:] for result in setting.results]
        heights = [
            mean(point.bits_per_byte for point in points) for points in zip(*curves, strict=True)
        ]
        tokens = [point.tokens / 1e6 for point in curves[0]]
        share = setting.exchange_bytes / setting.payload_bytes / 1e6
        sent = [
            share * mean(point.up_bytes for point in points) for points in zip(*curves, strict=True)
        ]
        label = f"{heights[-1]:.3f} {(labels or {}).get(setting.cell, setting.cell.title)}"
        panels[0].plot(tokens, heights, marker=".", label=label)
        if sent[-1]:
            panels[1].plot(sent, heights, marker=".")
        else:
            panels[1].plot([], [])  # keeps the colours of both panels equal
    panels[0].set(xlabel="million bytes of text trained", ylabel="validation, bits per byte")
    panels[0].set_ylim(None, first * _HEADROOM)
    panels[1].set(xlabel="MB sent by the mean node, exchange among all", xscale="log")
    for panel in panels:
        panel.grid(alpha=0.3)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize="small",
    )
    return svg(figure)


def changes_figure(settings: Sequence[Setting], usual: Cell) -> bytes:
    """SVG: a line per setting of one length with its bits per byte at the end, the usual one and
    others marked.
    """
    shown = pictured(settings)
    figure = canvas(9.0, 0.24 * len(shown) + 1.2)
    axes = figure.add_subplot()
    for place, setting in enumerate(reversed(shown)):
        cell = setting.cell
        colour = "tab:red" if cell == usual else "tab:blue" if cell.method == "demo" else "tab:gray"
        axes.plot(setting.bits_per_byte, place, "o", color=colour)
        end = setting.bits_per_byte
        axes.annotate(
            f"{end:.3f}", (end, place), (6, -3), textcoords="offset points", fontsize="small"
        )
    axes.set_yticks(
        range(len(shown)), [setting.cell.title for setting in reversed(shown)], fontsize="small"
    )
    axes.set_xlabel(f"validation, bits per byte after {usual.steps} steps (lower is better)")
    axes.set_xlim(None, max(setting.bits_per_byte for setting in shown) + 0.1)
    axes.grid(alpha=0.3)
    return svg(figure)


def _row(setting: Setting) -> tuple[str, ...]:
    seeds = len(setting.results)
    return (
        setting.cell.title,
        str(seeds),
        "blew up" if setting.failed else f"{setting.bits_per_byte:.3f}",
        f"{setting.spread:.3f}" if seeds > 1 else "",
        "" if setting.failed else f"{setting.at(setting.cell.steps / 4):.3f}",
        f"{setting.payload_bytes:,.0f}",
        f"{setting.exchange_bytes:,.0f}",
    )


def _csv_value(value: Any) -> Any:
    return "+".join(map(str, value)) if isinstance(value, tuple) else value


def _write(path: Path, blob: bytes) -> None:
    with replacing_file(path, len(blob)) as temporary:
        temporary.write_bytes(blob)

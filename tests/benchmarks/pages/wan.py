"""The computed parts of docs/results/wan.md."""

from functools import cache
from pathlib import Path

from tests.benchmarks.pages.blocks import table
from tests.benchmarks.wan.archive import Archive
from tests.benchmarks.wan.curves import Points, load_curves, muon_more_s
from tests.benchmarks.wan.report import Row, comparable, csv_of, duration, figure_of, named, rows
from tests.benchmarks.wan.results import load_all

_NOWHERE = Path("/nonexistent")
"""The pages say what is committed: no working directory is looked at."""

ARCHIVE = Archive(Path("docs/results/data/wan.jsonl"), _NOWHERE)

FIGURES = ("cable-compute0.5", "cable-compute1.5", "cable")


@cache
def found() -> list[Row]:
    """All rows."""
    return rows(load_all(ARCHIVE), curves(), muon_more_s=muon_more_s(ARCHIVE))


@cache
def curves() -> dict[str, Points]:
    """All finished curves."""
    return load_curves(ARCHIVE)


def results() -> str:
    """Bytes, seconds and times to the loss of every trial."""
    against_muon = any(row.times_less_muon is not None for row in found())
    lines = [
        (
            *(
                row.profile,
                f"{row.compute_s:g}",
                named(row),
                f"{row.up_bytes / 1e6:.3g}",
                f"{row.step_s:.2f}",
            ),
            "" if row.computing is None else f"{row.computing:.2f}",
            "" if row.steps is None else str(row.steps),
            "" if row.loss_s is None else duration(row.loss_s),
            _times(row.times_less),
            *((_times(row.times_less_muon),) if against_muon else ()),
        )
        for row in found()
    ]
    head = (
        *(
            "profile",
            "a pass, s",
            "method",
            "up, MB per step",
            "s per step",
            "computing",
            "steps to the loss",
        ),
        *("time to the loss", "times less than DDP"),
        *(("with Muon",) if against_muon else ()),
    )
    return table(head, lines, left=3)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def figure(name: str) -> bytes:
    """SVG of one setting."""
    return figure_of(comparable(found())[name], curves())


def measurements() -> bytes:
    """CSV of every figure of every row."""
    return csv_of(found()).encode()

"""The computed parts of docs/results/headline.md and of its notes."""

import json
from collections.abc import Iterable
from functools import cache
from statistics import fmean
from typing import Any

from tests.benchmarks.headline.look import (
    DATA,
    LOOKS,
    ROWS,
    Judged,
    by_method,
    difference,
    half_width,
    read_cells,
)
from tests.benchmarks.headline.study import (
    EXPECTED,
    GROUNDS,
    HEADLINE,
    LOCAL_STEPS,
    RATES,
    SEEDS,
    STEPS,
    Ground,
    Method,
)
from tests.benchmarks.pages.blocks import table
from tests.benchmarks.parity.comparison import Difference
from tests.benchmarks.records import read_records

_DENSE = ("adamw", "muon")

FORMER = "DeMo, orthogonalised (the former default)"
"""What the records call the default."""

LABELS: dict[Method, str] = {
    "adamw": "AdamW, dense",
    "muon": "Muon, dense",
    "default": f"{FORMER}, k = 32",
    "local_steps": f"local steps, H = {LOCAL_STEPS}, k = 192",
    "default_large_batch": f"{FORMER}, batch x {LOCAL_STEPS}, k = 192",
}


@cache
def cells() -> list[Judged]:
    """The kept cells."""
    return read_cells()


def results(grounds: Iterable[Ground]) -> str:
    """The rows of headline.json of these grounds."""
    rows: list[dict[str, Any]] = json.loads((DATA / ROWS).read_bytes())["rows"]
    ring = {
        (row["text"], row["authors"]): row["bytes_up"] / row["steps"]
        for row in rows
        if row["method"] in _DENSE
    }
    lines = []
    kept = [row for row in rows if _ground(row) in grounds]
    for row in sorted(kept, key=lambda row: (_ground(row)[1:], row["text"], row["bits_per_byte"])):
        interval = "one seed" if row["ci95"] is None else f"± {row['ci95']:.3f}"
        dense = ring.get((row["text"], row["authors"]), 0) * _ground(row).steps
        lines.append(
            (
                *(row["text"], LABELS[row["method"]], f"{row['steps']}", f"{len(row['seeds'])}"),
                *(f"{row['bits_per_byte']:.3f}", interval, f"{row['bytes_up'] / 1e6:.2f}"),
                "" if row["method"] in _DENSE else f"{dense / row['bytes_up']:.0f}",
            )
        )
    head = (
        *("text", "method", "steps", "seeds", "bits per byte"),
        *("95 %", "MB sent", "less than the ring, times"),
    )
    return table(head, lines, left=2)


def _ground(row: dict[str, Any]) -> Ground:
    """Where a row is compared: a larger batch counts as the steps of 16 samples that it is."""
    large = row["method"] == "default_large_batch"
    return Ground(row["text"], row["steps"] * (LOCAL_STEPS if large else 1), row["authors"])


def differences(grounds: Iterable[Ground]) -> str:
    """Each pair on each ground: what was expected, what was found, and what that shows."""
    of_method = by_method(cells())
    lines = []
    for ground in grounds:
        for (ours, theirs), predicted in EXPECTED[ground].items():
            sides = of_method.get((ground, ours)), of_method.get((ground, theirs))
            if not all(sides):
                continue
            found = difference(sides[0] or {}, sides[1] or {})
            lines.append(
                (
                    *(named(ground), f"{LABELS[ours]}, beside {LABELS[theirs]}", predicted),
                    *(signed(found), shown(found)),
                )
            )
    head = ("text", "pair", "predicted: the first is", "found (95 %)", "shown: the first is")
    return table(head, lines, left=3)


def named(ground: Ground) -> str:
    """The text, and the length where it is not the usual one."""
    return ground.text if ground.steps == STEPS else f"{ground.text}, {ground.steps} steps"


def curves() -> str:
    """Bits per byte on the validation split along the headline's training, each method at its best
    rate, the mean over its seeds; and how far local steps are behind DeMo, orthogonalised, with
    half its 95 % interval.
    """
    of_method = by_method(cells())
    lines: list[tuple[str, ...]] = []
    head: tuple[str, ...] = ()
    for ground in HEADLINE:
        found = {method: _curves(of_method.get((ground, method), {})) for method in RATES}
        for method, curves in found.items():
            if curves:
                means = {step: fmean(ends) for step, ends in _by_step(curves.values()).items()}
                head = ("text", "method", *map(str, means))
                lines.append((ground.text, LABELS[method], *(f"{m:.3f}" for m in means.values())))
        ours, theirs = found["local_steps"], found["default"]
        shared = sorted(ours.keys() & theirs.keys())
        behind = [{s: ours[seed][s] - theirs[seed][s] for s in ours[seed]} for seed in shared]
        if behind:
            told = (_with_half(ends) for ends in _by_step(behind).values())
            lines.append((ground.text, "local steps less the former default", *told))
    return table(head, lines, left=2)


def _curves(of_seed: dict[int, Judged]) -> dict[int, dict[int, float]]:
    """Validation bits per byte by seed, then by step; genesis is left out."""
    return {
        seed: {point.step: point.bits_per_byte for point in each.finished.result.points[1:]}
        for seed, each in of_seed.items()
    }


def _by_step(curves: Iterable[dict[int, float]]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for curve in curves:
        for step, end in curve.items():
            found.setdefault(step, []).append(end)
    return found


def _with_half(values: list[float]) -> str:
    half = half_width(values)
    return f"{fmean(values):+.3f}" + ("" if half is None else f" ± {half:.3f}")


def shown(found: Difference) -> str:
    """What an interval carries, and nothing else."""
    match found.interval:
        case (low, high) if high < 0:
            return "ahead"
        case (low, high) if low > 0:
            return "behind"
    return "nothing"


def signed(found: Difference) -> str:
    """The mean of a difference with its interval."""
    if found.interval is None:
        return f"{found.mean:+.3f} (one seed)"
    return f"{found.mean:+.3f} ({found.interval[0]:+.3f} to {found.interval[1]:+.3f})"


def rates() -> str:
    """Bits per byte on the validation split at every rate that was tried, ascending."""
    lines = []
    for ground in GROUNDS:
        for method in RATES:
            found = {
                each.finished.job.cell.learning_rate: each.finished.choosing
                for each in cells()
                if each.finished.job.cell.seed == SEEDS[0]
                and (each.finished.job.ground, each.finished.job.method) == (ground, method)
            }
            if found:
                best = min(found, key=found.__getitem__)
                told = [_tried(rate, found[rate], bold=rate == best) for rate in sorted(found)]
                lines.append((named(ground), LABELS[method], ", ".join(told)))
    return table(("text", "method", "rate: bits per byte"), lines, left=3)


def _tried(rate: float, end: float, *, bold: bool) -> str:
    told = f"{rate:g}: {end:.3f}" if end < float("inf") else f"{rate:g}: blew up"
    return f"**{told}**" if bold else told


def looks() -> str:
    """Every look at a test split."""
    lines = [
        (each["text"], each["when"], f"{len(each['cells'])}", each["why"] or "it was the first")
        for each in read_records(DATA / LOOKS)
    ]
    return table(("text", "when", "cells", "why"), lines, left=2)

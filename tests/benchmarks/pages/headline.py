"""The computed parts of docs/results/headline.md."""

import json
from functools import cache
from typing import Any

from tests.benchmarks.headline.look import (
    DATA,
    LOOKS,
    ROWS,
    Judged,
    by_method,
    difference,
    read_cells,
)
from tests.benchmarks.headline.study import (
    GROUNDS,
    LOCAL_STEPS,
    LONG,
    LONG_PAIRS,
    PAIRS,
    RATES,
    SEEDS,
    STEPS,
    Ground,
    Method,
)
from tests.benchmarks.pages.blocks import table
from tests.benchmarks.parity.comparison import Difference
from tests.benchmarks.records import read_records

LABELS: dict[Method, str] = {
    "adamw": "AdamW, dense",
    "muon": "Muon, dense",
    "default": "the default, k = 32",
    "local_steps": f"local steps, H = {LOCAL_STEPS}, k = 192",
    "default_large_batch": f"the default, batch x {LOCAL_STEPS}, k = 192",
}


@cache
def cells() -> list[Judged]:
    """The kept cells."""
    return read_cells()


def results() -> str:
    """The rows of headline.json."""
    rows: list[dict[str, Any]] = json.loads((DATA / ROWS).read_bytes())["rows"]
    dense = {
        row["text"]: row["bytes_up"] / row["steps"] for row in rows if row["method"] == "adamw"
    }
    lines = []
    for row in sorted(rows, key=lambda row: (_length(row), row["text"], row["bits_per_byte"])):
        interval = "one seed" if row["ci95"] is None else f"± {row['ci95']:.3f}"
        times = dense.get(row["text"], 0) * _length(row) / row["bytes_up"]
        lines.append(
            (
                *(row["text"], LABELS[row["method"]], f"{row['steps']}", f"{len(row['seeds'])}"),
                *(f"{row['bits_per_byte']:.3f}", interval, f"{row['bytes_up'] / 1e6:.2f}"),
                "" if row["method"] in ("adamw", "muon") else f"{times:.0f}",
            )
        )
    head = (
        *("text", "method", "steps", "seeds", "bits per byte"),
        *("95 %", "MB sent", "less than the ring, times"),
    )
    return table(head, lines, left=2)


def _length(row: dict[str, Any]) -> int:
    """Steps of 16 samples that a row's tokens are."""
    large = row["method"] == "default_large_batch"
    return int(row["steps"]) * (LOCAL_STEPS if large else 1)


def differences() -> str:
    """Each pair on each ground: what was expected, what was found, and what that shows."""
    of_method = by_method(cells())
    lines = []
    for ground in GROUNDS:
        for (ours, theirs), predicted in (LONG_PAIRS if ground == LONG else PAIRS).items():
            sides = of_method.get((ground, ours)), of_method.get((ground, theirs))
            if not all(sides):
                continue
            found = difference(sides[0] or {}, sides[1] or {})
            lines.append(
                (
                    *(named(ground), f"{LABELS[ours]}, beside {LABELS[theirs]}", predicted),
                    *(_signed(found), shown(found)),
                )
            )
    head = ("text", "pair", "predicted: the first is", "found (95 %)", "shown: the first is")
    return table(head, lines, left=3)


def named(ground: Ground) -> str:
    """The text, and the length where it is not the usual one."""
    return ground.text if ground.steps == STEPS else f"{ground.text}, {ground.steps} steps"


def shown(found: Difference) -> str:
    """What an interval carries, and nothing else."""
    match found.interval:
        case (low, high) if high < 0:
            return "ahead"
        case (low, high) if low > 0:
            return "behind"
    return "nothing"


def _signed(found: Difference) -> str:
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
    records = read_records(DATA / LOOKS)
    return "\n".join(
        f"- {each['text']}: {each['when']}, {len(each['cells'])} cells"
        + (f"; again, because {each['why']}" if each["why"] else "")
        for each in records
    )

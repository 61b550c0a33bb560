"""Data, tables and figure of docs/results/gossip-adam.md."""

import json
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from protocol.ids import PeerId
from protocol.mixing.topologies import TOPOLOGY_NAMES, Topology
from protocol.mixing.weights import validated
from tests.benchmarks.figures import canvas, svg
from tests.benchmarks.gossip_adam.cells import COMPARISONS, RATE_CELLS, ROWS, SEEDS, SHORT
from tests.benchmarks.gossip_adam.rounds import measured_table, rounds_table
from tests.benchmarks.gossip_adam.train import Cell, Result
from tests.benchmarks.pages.blocks import Blocks, rendered, table
from tests.benchmarks.parity.comparison import Difference

RESULTS = Path("docs/results")
DATA = RESULTS / "data/gossip-adam.json"
PAGE = RESULTS / "gossip-adam.md"
NOTES = RESULTS / "notes/gossip-adam-tries.md"
BESIDE = RESULTS / "gossip-beside-demo.md"
PAGES = (PAGE, NOTES, BESIDE)
FIGURE = RESULTS / "figures/gossip-adam.svg"

Entry = dict[str, Any]
"""A trained cell as it is in the data: `Result.document` and its name."""


def document() -> dict[str, Any]:
    """All trained cells."""
    return json.loads(DATA.read_text()) if DATA.exists() else {"cells": []}  # type: ignore[no-any-return]


def add(result: Result) -> None:
    """Add a trained cell to the data, in the order of names and seeds."""
    found = [*document()["cells"], {"name": result.cell.name, **result.document()}]
    found.sort(key=lambda entry: (entry["name"], entry["cell"]["seed"]))
    DATA.write_text(json.dumps({"cells": found}, indent=1) + "\n")


def write_page() -> None:
    """Write tables and figure from the data."""
    for path in PAGES:
        path.write_text(page(path))
    FIGURE.write_bytes(figure())


def page(path: Path) -> str:
    """A page with its tables computed anew."""
    blocks: Blocks = {
        PAGE: {"cells": _cells, "comparisons": _comparisons},
        BESIDE: {"beside": measured_table},
        NOTES: {
            "distances": _distances,
            "topologies": _topologies,
            "rates": _rates,
            "rounds": rounds_table,
        },
    }[path]
    return rendered(path.read_text(), blocks)


def entries(cell: Cell) -> dict[int, Entry]:
    """The trained cells of this name by seed; `ValueError` unless all seeds of the study are
    there.
    """
    found = {
        entry["cell"]["seed"]: entry
        for entry in document()["cells"]
        if entry["name"] == cell.name and entry["cell"]["seed"] in SEEDS
    }
    if sorted(found) != list(SEEDS):
        raise ValueError(f"expected seeds {SEEDS} of {cell.name}, got {sorted(found)}")
    return found


def difference(ours: Cell, theirs: Cell) -> Difference:
    """Bits per byte at the end, ours minus theirs, by seed."""
    first, second = entries(ours), entries(theirs)
    return Difference(
        tuple(first[seed]["bits_per_byte"] - second[seed]["bits_per_byte"] for seed in SEEDS)
    )


def figure() -> bytes:
    """The ends of the cells of 200 steps: a dot for each seed, a line at their mean."""
    shown = [(title, cell) for title, cell in ROWS.items() if cell.steps == SHORT]
    drawing = canvas(7, 0.4 * len(shown) + 0.8)
    axes = drawing.subplots()
    for place, (_, cell) in enumerate(shown):
        ends = [entry["bits_per_byte"] for entry in entries(cell).values()]
        axes.plot(ends, [place] * len(ends), "o", color="tab:blue", alpha=0.7)
        axes.plot([fmean(ends)], [place], "|", color="black", markersize=16)
    axes.set_yticks(range(len(shown)), [title for title, _ in shown])
    axes.invert_yaxis()
    axes.set_xlabel("bits per byte after 200 steps, at the mean of all nodes")
    axes.grid(axis="x", alpha=0.3)
    return svg(drawing)


def _cells() -> str:
    rows = []
    for title, cell in ROWS.items():
        found = list(entries(cell).values())
        ends = [entry["bits_per_byte"] for entry in found]
        rows.append(
            [
                title,
                str(cell.steps),
                f"{cell.learning_rate:g}",
                ", ".join(f"{end:.3f}" for end in ends),
                f"{fmean(ends):.3f}",
                f"{fmean(entry['node_bits_per_byte'] for entry in found):.3f}",
                f"{found[0]['bytes_up'] / cell.steps:,.0f}",
            ]
        )
    head = ("cell", "steps", "rate", "seeds 0, 1, 2", "mean", "one node's own", "bytes up a step")
    return table(head, rows)


def _comparisons() -> str:
    rows = []
    for title, (ours, theirs) in COMPARISONS.items():
        found = difference(ROWS[ours], ROWS[theirs])
        low, high = found.interval or (math.nan, math.nan)
        rows.append([title, f"{found.mean:+.3f}", f"{low:+.3f} to {high:+.3f}"])
    return table(("first minus second", "bits per byte", "95 % interval"), rows)


def _distances() -> str:
    rows = []
    for title, cell in ROWS.items():
        if cell.method == "adamw" or cell.steps < SHORT or cell.mean_every:
            continue  # right behind a mean nobody is apart
        found = [each for entry in entries(cell).values() for each in entry["distances"]]
        errors = [estimate / true - 1 for _, true, estimate, _ in found]
        multiples = [true / update for _, true, _, update in found]
        mixed = [entry["only_mixed"] for entry in entries(cell).values()]
        rows.append(
            [
                title,
                f"{min(multiples):.1f} to {max(multiples):.1f}",
                f"{fmean(errors):+.1%} ± {stdev(errors):.1%}",
                f"{fmean(mixed):.0f}",
            ]
        )
    head = ("cell", "distance / update", "error of the estimate", "mixing-only rounds")
    return table(head, rows)


def _topologies() -> str:
    rows = []
    for name in TOPOLOGY_NAMES:
        row = [name]
        for count in (4, 5, 8, 16):
            mixing = validated(Topology(name), [PeerId(f"{n:032x}") for n in range(count)])
            row.append(f"{mixing.contraction:.3f} in {mixing.period}")
        rows.append(row)
    return table(("topology", "4 nodes", "5", "8", "16"), rows)


def _rates() -> str:
    rows: dict[str, list[str]] = {}
    for cell in RATE_CELLS:
        title = "synchronous Adam" if cell.method == "adamw" else "plain"
        if cell.accumulate > 1:
            betas = " and ".join(f"{beta:g}" for beta in cell.betas)
            title = f"accumulate {cell.accumulate}, betas {betas}"
        title += f", {cell.steps} steps"
        rows.setdefault(title, []).append(f"{cell.learning_rate:g}: {_end(cell):.3f}")
    return table(("method", "rate: bits per byte"), [[t, ", ".join(r)] for t, r in rows.items()], 2)


def _end(cell: Cell) -> float:
    return next(
        float(entry["bits_per_byte"])
        for entry in document()["cells"]
        if (entry["name"], entry["cell"]["seed"]) == (cell.name, cell.seed)
    )

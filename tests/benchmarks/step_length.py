"""How long a step is, and whether networks learn better when it is as long as the rate.

    python -m tests.benchmarks.step_length --rates 0.008 0.016 --authors 1 4 16 --out PATH

Each cell trains the headline study's small network on the parity study's text from genesis on, by
the default algorithm, with R authors who share a batch. A row says the bits per byte on the
validation split at the end, and the length of the steps as the update makes them: the root mean
square of what moves in a matrix over the rate, the mean over matrices, the median over steps. A
step has one of three scales:

    now      as it is: the length depends on the votes
    matrix   every matrix's step is made as long as the rate, or `--length` times that
    model    all matrices' steps together are made so long, by one factor

The last two are made in floats, after the step: to learn from, not to run. Small parameters move by
the rate in any case. Cells that PATH has already are left out.
"""

import argparse
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from tests.benchmarks.headline.study import STEPS, TASKS, cell
from tests.benchmarks.parity.cells import Cell
from tests.benchmarks.parity.demo import DemoAuthors
from tests.benchmarks.parity.task import Fixture, open_corpus
from tests.benchmarks.records import add_record, read_records

Matrices = Mapping[str, torch.Tensor]
Scale = Literal["now", "matrix", "model"]

KEYS = ("scale", "wanted", "rate", "authors", "top_k", "seed")
"""Fields of a row that name its cell."""


def trained(scale: Scale, wanted: float, chosen: Cell, data: Path) -> dict[str, Any]:
    """The row of a cell."""
    fixture = Fixture(replace(TASKS["library"], point_steps=STEPS), chosen, open_corpus(data))
    authors, lengths = DemoAuthors(fixture), []
    matrices = {name: each for name, each in fixture.parameters.items() if each.ndim > 1}
    for number in range(chosen.steps):
        before = {name: matrix.clone() for name, matrix in matrices.items()}
        authors.step()
        lengths.append(scaled(scale, before, matrices, fixture.rates(number)[0], wanted))
    return {
        "scale": scale,
        "wanted": wanted,
        "rate": chosen.learning_rate,
        "authors": chosen.authors,
        "top_k": chosen.top_k,
        "seed": chosen.seed,
        "steps": chosen.steps,
        "step_length": round(statistics.median(lengths), 4),
        "bits_per_byte": round(fixture.validation_bits_per_byte(), 5),
    }


def scaled(
    scale: Scale, before: Matrices, matrices: Matrices, rate: float, wanted: float = 1.0
) -> float:
    """Make a step that has just moved matrices as long as `wanted` times the rate, if `scale` says
    so; the mean of its lengths over the rate before.
    """
    found = {name: length(matrices[name] - before[name]) / rate for name in matrices}
    mean = statistics.mean(found.values())
    if scale == "model":
        moved = torch.cat([(matrices[name] - before[name]).flatten() for name in matrices])
        found = dict.fromkeys(found, length(moved) / rate)
    if scale != "now":
        for name, matrix in matrices.items():
            if found[name]:
                matrix.copy_(before[name] + (matrix - before[name]) * (wanted / found[name]))
    return mean


def length(moved: torch.Tensor) -> float:
    """Root mean square of the entries that moved; 0 if none did."""
    there = moved[moved != 0]
    return float(there.square().mean().sqrt()) if len(there) else 0.0


def main() -> None:
    """Train what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.step_length",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines; rows are added")
    parser.add_argument("--scale", choices=get_args(Scale), default="now")
    parser.add_argument("--length", type=float, default=1.0, help="of steps, over the rate")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.016])
    parser.add_argument("--authors", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--top-k", type=int, nargs="+", default=[32])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data", type=Path, default=Path("out/step-length-data"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.data.parent.mkdir(parents=True, exist_ok=True)
    there = {tuple(row[key] for key in KEYS) for row in read_records(arguments.out)}
    for seed in arguments.seeds:
        for rate in arguments.rates:
            for top_k in arguments.top_k:
                for authors in arguments.authors:
                    if (arguments.scale, arguments.length, rate, authors, top_k, seed) in there:
                        continue
                    chosen = replace(cell("default", rate, seed), authors=authors, top_k=top_k)
                    row = trained(arguments.scale, arguments.length, chosen, arguments.data)
                    add_record(arguments.out, row)
                    print(row, flush=True)


if __name__ == "__main__":
    main()

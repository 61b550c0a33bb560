"""What bfloat16 in a node's own memory does to learning: `python -m tests.benchmarks.bfloat16`.

Each cell trains the headline study's small network on the parity study's text from genesis on, by
the default algorithm with four authors, who keep one thing in fewer bits. It is rounded after every
change, in float32, so that it is what 16 bits would hold: to learn from, not to run.

    float32            all as a node keeps it
    momentum           each author's momentum, rounded at random, so that it stays in the mean
    momentum-nearest   the same, rounded to the nearest
    nudged             the momentum rounded at random to 20 bits in place of 24: too little to count
                       by itself, so that it shows how far two like runs come apart
    working            with overlap: the parameters at which gradients are taken, and these, both
                       rounded to the nearest
    float32-overlap    what `working` is compared with

Random rounding draws from a generator of the author's own, seeded by cell and author. Rows say the
bits per byte on the validation split at the end. Cells that PATH has already are left out.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from node.demo.engine import Engine
from tests.benchmarks.headline.study import STEPS, TASKS, cell
from tests.benchmarks.parity.cells import Cell
from tests.benchmarks.parity.demo import DemoAuthors
from tests.benchmarks.parity.task import Fixture, open_corpus
from tests.benchmarks.records import add_record, read_records

Kept = Literal["float32", "momentum", "momentum-nearest", "nudged", "float32-overlap", "working"]

KEYS = ("kept", "recency", "seed", "steps")
"""Fields of a row that name its cell."""

LOW_BITS = 16
"""Bits of a float32 that bfloat16 has not."""

NUDGED_BITS = 4


class RoundedEngine(Engine):
    """An engine whose momentum has the values of bfloat16. Between accumulations it needs no
    rounding: `extract` only sets entries to zero.
    """

    random: torch.Generator | None = None
    """Rounds at random; None: to the nearest."""
    low_bits = LOW_BITS

    def accumulate(
        self, gradients: Mapping[str, Tensor | None], active: Tensor | None = None
    ) -> None:
        super().accumulate(gradients, active)
        round_(self.momentum, self.random, self.low_bits)


class Authors(DemoAuthors):
    """The authors of a cell, with something in bfloat16."""

    def __init__(self, fixture: Fixture, kept: Kept) -> None:
        super().__init__(fixture)
        self._rounds_working = kept == "working"
        if kept == "nudged" or kept.startswith("momentum"):
            self.engines = [
                RoundedEngine(fixture.layout, fixture.cell.demo, "cpu") for _ in self.engines
            ]
            if kept != "momentum-nearest":
                for author, engine in enumerate(self.engines):
                    engine.low_bits = NUDGED_BITS if kept == "nudged" else LOW_BITS
                    engine.random = torch.Generator().manual_seed(1000 * fixture.cell.seed + author)

    def _stand_for(self, author: int) -> None:
        super()._stand_for(author)
        if self._rounds_working:
            for tensor in self._fixture.parameters.values():
                round_(tensor, None)

    def _gradients(self) -> list[Tensor]:
        gradients = super()._gradients()
        if self._rounds_working:
            for gradient in gradients:
                round_(gradient, None)
        return gradients


def round_(tensor: Tensor, random: torch.Generator | None, low_bits: int = LOW_BITS) -> None:
    """Round float32 in place to values without these low bits: at random, so that the mean stays,
    or without a generator to the nearest of bfloat16.
    """
    if random is None:
        tensor.copy_(tensor.bfloat16())
        return
    bits = tensor.view(torch.int32)
    bits += torch.randint(0, 1 << low_bits, bits.shape, dtype=torch.int32, generator=random)
    bits &= -(1 << low_bits)


def trained(kept: Kept, chosen: Cell, data: Path) -> dict[str, Any]:
    """The row of a cell."""
    fixture = Fixture(TASKS["library"], chosen, open_corpus(data))
    authors = Authors(fixture, kept)
    for _ in range(chosen.steps):
        authors.step()
    authors.stand_at_committed()
    return {
        "kept": kept,
        "recency": chosen.recency,
        "seed": chosen.seed,
        "steps": chosen.steps,
        "rate": chosen.learning_rate,
        "authors": chosen.authors,
        "parameters": fixture.layout.parameters,
        "bits_per_byte": round(fixture.validation_bits_per_byte(), 5),
    }


def main() -> None:
    """Train what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.bfloat16",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines; rows are added")
    parser.add_argument("--kept", choices=get_args(Kept), nargs="+", default=list(get_args(Kept)))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rate", type=float, default=0.016)
    parser.add_argument("--recency", type=float, default=1.5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data", type=Path, default=Path("out/step-length-data"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.data.parent.mkdir(parents=True, exist_ok=True)
    there = {tuple(row[key] for key in KEYS) for row in read_records(arguments.out)}
    for seed in arguments.seeds:
        for kept in arguments.kept:
            if (kept, arguments.recency, seed, arguments.steps) in there:
                continue
            chosen = replace(
                cell("default", arguments.rate, seed),
                steps=arguments.steps,
                recency=arguments.recency,
                **({"overlap": 1, "guess": "own"} if kept in OVERLAPPING else {}),
            )
            row = trained(kept, chosen, arguments.data)
            add_record(arguments.out, row)
            print(row, flush=True)


OVERLAPPING = ("float32-overlap", "working")

if __name__ == "__main__":
    main()

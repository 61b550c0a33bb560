"""float32 and what a node keeps in bfloat16, side by side on the ground of this study.

    python -m tests.benchmarks.short_memory.light --authors 2 --steps 2000 --seeds 0 1 2

Trains each seed twice and prints bits per byte after the last step and at every point of the curve:
once with weights, gradients, optimizer's state and residual of float32, once with all of these in
bfloat16, as on a device. The network is too small for a processor to choose bfloat16 by itself. The
committed parameters, which are judged, are float32 in both.
"""

import argparse
import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from node.exact.local_steps.light_optimizer import LightOptimizer
from node.exact.local_steps.residual import Residual
from node.exact.rounding import Rounding
from node.model.local_steps import LocalSteps, MovedFrom
from node.model.training import TrainingModel
from tests.benchmarks.headline.study import Job
from tests.benchmarks.headline.texts import open_text
from tests.benchmarks.headline.train import TextFixture
from tests.benchmarks.parity.local_steps import LocalStepsAuthors
from tests.benchmarks.parity.results import Result
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.parity.train import train_in
from tests.benchmarks.short_memory.study import TEXTS, THREE_QUARTERS, TODAY, Rule, job


class LightAuthors(LocalStepsAuthors):
    """Authors that keep what a node keeps on a device with bfloat16."""

    def __init__(self, fixture: Fixture) -> None:
        super().__init__(fixture)
        network = copy.deepcopy(fixture.trainee.model)
        most, cell = fixture.trainee.micro_batch_max, fixture.cell
        self._trainee = TrainingModel(network, "cpu", most, torch.bfloat16, torch.bfloat16)
        self._light = [
            LightOptimizer(network, self._trainee.parameters, Rounding("cpu", 2 * author))
            for author in range(cell.authors)
        ]
        self._residuals = [
            Residual(
                fixture.layout,
                cell.top_k,
                "cpu",
                fade=each.fade,
                rounding=Rounding("cpu", 2 * author + 1),
            )
            for author, each in enumerate(self._residuals)
        ]

    def _movement(
        self, author: int, batches: Sequence[npt.NDArray[np.int64]], rate: float
    ) -> Mapping[str, Tensor | None]:
        for name, parameter in self._trainee.parameters.items():
            parameter.data.copy_(self.committed[name])
        passes = LocalSteps(self._trainee, batches, self._light[author], rate)
        while passes.next():
            pass
        passes.finish()
        return MovedFrom(self.committed, self._trainee.parameters)


def shortened(found: Job, steps: int) -> Job:
    """The same cell with fewer steps, and a schedule of that length."""
    return Job(found.text, found.method, replace(found.cell, steps=steps))


def trained(found: Job, directory: Path, *, light: bool) -> Result:
    """The result of a cell in one of the two ways."""
    fixture = TextFixture(found, open_text(found.text, directory / "texts"))
    return train_in(fixture, make=LightAuthors if light else LocalStepsAuthors)


def main() -> None:
    """Prints a line for each training, and the differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.short_memory.light")
    parser.add_argument("--directory", type=Path, default=Path("out/short-memory"))
    parser.add_argument("--text", choices=TEXTS, default="library")
    parser.add_argument("--authors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--short", action="store_true", help="fade 3/4 and gain 2, in place of 1")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rule: Rule = THREE_QUARTERS if asked.short else TODAY
    for seed in asked.seeds:
        cell = shortened(job(asked.text, rule, seed, authors=asked.authors), asked.steps)
        ends = []
        for light in (False, True):
            result = trained(cell, asked.directory, light=light)
            ends.append(result.last.bits_per_byte)
            curve = [(each.step, each.bits_per_byte) for each in result.points]
            way = "bfloat16" if light else "float32"
            found = {"seed": seed, "way": way, "curve": curve, "seconds": result.seconds}
            print(json.dumps(found), flush=True)
        print(f"seed {seed}: bfloat16 - float32 = {ends[1] - ends[0]:+.4f}", flush=True)


if __name__ == "__main__":
    main()

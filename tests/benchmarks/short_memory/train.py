"""Trains the cells of the study one after the other in this process, and measures what they leave.

A finished cell is a result, its parameters, and the mean of its commits, under `DIRECTORY/TEXT/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from node.data.corpus import Corpus
from node.system.files import replacing_file
from tests.benchmarks.headline.study import TEST_SAMPLES, Finished, Job
from tests.benchmarks.headline.texts import TextName, open_test, open_text
from tests.benchmarks.headline.train import TextFixture, parameters_path
from tests.benchmarks.parity.local_steps import LocalStepsAuthors
from tests.benchmarks.parity.results import load, result_path, save
from tests.benchmarks.parity.train import Trainer, train_in
from tests.benchmarks.short_memory.study import MEAN_KEEPS, jobs

MEAN = "mean/"


class CommitMean:
    """The mean of a training's commits, the newest ones most: A <- keeps * A + (1 - keeps) * P."""

    def __init__(self, parameters: Mapping[str, Tensor], steps: int) -> None:
        """`steps`: those of a round."""
        self.tensors = {name: tensor.clone() for name, tensor in parameters.items()}
        self._steps, self._seen = steps, 0

    def watch(self, trainer: Trainer) -> None:
        """Take a commit in, after the last step of each round."""
        assert isinstance(trainer, LocalStepsAuthors), "only local steps are trained here"
        self._seen += 1
        if self._seen % self._steps == 0:
            for name, tensor in self.tensors.items():
                tensor.lerp_(trainer.committed[name], 1 - MEAN_KEEPS)


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the test split, in bits per byte."""

    last: float
    """Of the last commit."""

    mean: float | None
    """Of the mean of the commits; None for a cell of the headline, which kept none."""

    when: str


@dataclass(frozen=True, slots=True)
class Bench:
    """The texts of this machine, and what was trained on them in a directory."""

    directory: Path

    def corpus(self, job: Job) -> str:
        """Digest of the text of a cell, as this machine has it."""
        return _text(job.text, self.directory).manifest.digest.hex()

    def trained(self) -> list[Finished]:
        """The cells that were trained here, in order."""
        paths = {job: result_path(self.directory / job.text, job.cell) for job in jobs()}
        return [Finished(job, load(path)) for job, path in paths.items() if path.exists()]

    def train(self, job: Job) -> Finished:
        """Train one cell and leave its parameters and their mean, then its result."""
        fixture = TextFixture(job, _text(job.text, self.directory))
        mean = CommitMean(fixture.parameters, job.cell.local_steps)
        result = train_in(fixture, mean.watch)
        path = parameters_path(self.directory, job)
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.clone() for name, tensor in fixture.parameters.items()}
        tensors |= {MEAN + name: tensor for name, tensor in mean.tensors.items()}
        with replacing_file(path, 8 * fixture.layout.parameters) as temporary:
            save_file(tensors, temporary)
        save(self.directory / job.text, result)
        return Finished(job, result)

    def validation_of_mean(self, job: Job) -> float:
        """Validation bits per byte of the mean of a trained cell's commits."""
        return round(self._fixture(job, MEAN).validation_bits_per_byte(), 5)

    def look(self, job: Job, when: str) -> Look:
        """Judge a trained cell on the test split. Only `keep` calls this."""
        test = open_test(job.text, self.directory / "texts")
        windows = test.validation(TEST_SAMPLES, job.task.sequence_length)
        last, mean = (
            round(self._fixture(job, prefix).bits_per_byte(windows), 5) for prefix in ("", MEAN)
        )
        return Look(last, mean, when)

    def _fixture(self, job: Job, prefix: str) -> TextFixture:
        """The network of a cell at what it left."""
        fixture = TextFixture(job, _text(job.text, self.directory))
        tensors = load_file(parameters_path(self.directory, job))
        with torch.no_grad():
            for name, tensor in fixture.parameters.items():
                tensor.copy_(tensors[prefix + name])
        return fixture


@cache
def _text(name: TextName, directory: Path) -> Corpus:
    return open_text(name, directory / "texts")

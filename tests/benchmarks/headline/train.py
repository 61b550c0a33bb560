"""Trains the cells of the headline, one after the other in this process, and keeps what they leave.

A finished cell is a result and its parameters, under `out/headline/TEXT/`. A stopped study loses
the cell that it was at. Bits per byte are of the text: the cost of predicting a document's end
counts, and its token stands for no byte.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file, save_file

from node.data.corpus import Corpus
from node.system.files import replacing_file
from protocol.errors import DataError
from tests.benchmarks.headline.study import TEST_SAMPLES, Finished, Job, possible, waiting
from tests.benchmarks.headline.texts import TextName, open_test, open_text, token_bytes
from tests.benchmarks.parity.results import load, result_path, save
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.parity.train import train_in


class TextFixture(Fixture):
    """The fixture of a job, which counts bits by the bytes of the text."""

    passes_max = 2
    """The longest training goes through the first text 1.2 times, in an order that no pass
    repeats."""

    def __init__(self, job: Job, corpus: Corpus) -> None:
        super().__init__(job.task, job.cell, corpus)
        self._token_bytes = token_bytes(corpus.tokenizer)

    def validation_bits_per_byte(self) -> float:
        return self.bits_per_byte(self.validation)

    def bits_per_byte(self, windows: npt.NDArray[np.int64]) -> float:
        """Cross-entropy of windows, int64 [n, length + 1], at the network's parameters."""
        targets = windows[:, 1:]
        nats = self.trainee.evaluate(windows) * targets.size
        return nats / math.log(2) / int(self._token_bytes[targets].sum())


def train_waiting(
    directory: Path, kept: Sequence[Finished] = (), text: TextName | None = None
) -> Iterator[Finished]:
    """Train what waits, of one text or of both, beside the cells that the repository keeps, until
    nothing does. Two processes with a text each share nothing that one of them writes.
    """
    while left := waiting(finished(directory, kept), text):
        job = left[0]
        yield train_job(job, open_text(job.text, directory / "texts"), directory)


def train_job(job: Job, corpus: Corpus, directory: Path) -> Finished:
    """Train one cell and leave its parameters, then its result."""
    fixture = TextFixture(job, corpus)
    result = train_in(fixture)
    path = parameters_path(directory, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 4 * fixture.layout.parameters
    with replacing_file(path, size) as temporary:
        save_file({name: tensor.clone() for name, tensor in fixture.parameters.items()}, temporary)
    save(directory / job.text, result)
    return Finished(job, result)


def finished(directory: Path, kept: Sequence[Finished] = ()) -> list[Finished]:
    """The cells that the repository keeps and those of the directory, which replace kept ones.
    `DataError` for one of another task, or of another text than the rest of its ground: pages of
    a manual change, and the cells of one ground are compared with each other alone.
    """
    found = {each.job: each for each in kept}
    corpora = {each.job.ground: each.result.corpus for each in kept}
    for job in possible():
        path = result_path(directory / job.text, job.cell)
        if path.exists():
            result = load(path)
            corpus = corpora.setdefault(job.ground, result.corpus)
            if (result.task, result.corpus) != (job.task, corpus):
                raise DataError(
                    f"{path}: expected a result of {job.task} on {corpus[:8]}, "
                    f"got one of {result.task} on {result.corpus[:8]}"
                )
            found[job] = Finished(job, result)
    return list(found.values())


def parameters_path(directory: Path, job: Job) -> Path:
    """The parameters with which a cell ended."""
    return directory / job.text / f"{job.cell.name}.safetensors"


def judged(job: Job, directory: Path) -> float:
    """Bits per byte of a finished cell on the test split. Only `look` calls this."""
    texts = directory / "texts"
    fixture = TextFixture(job, open_text(job.text, texts))
    for name, tensor in load_file(parameters_path(directory, job)).items():
        fixture.parameters[name].copy_(tensor)
    test = open_test(job.text, texts)
    return fixture.bits_per_byte(test.validation(TEST_SAMPLES, job.task.sequence_length))

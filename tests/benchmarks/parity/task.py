"""Network, text, data order, schedule and measure, the same for every method of the parity study.

The network starts from the run's own exact genesis. The samples of a round are the next ones of the
run's own data order, cut evenly among the authors, and validation windows are always the same. So
two cells of one seed see the same weights and the same samples in the same order, whatever their
method and number of authors.
"""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from node.data.corpus import Corpus
from node.data.prepare import prepare_library
from node.exact.chunks import ChunkLayout
from node.exact.engine import require_finite
from node.model.build import build_model
from node.model.training import TrainingModel
from node.replica.genesis import fill
from protocol.errors import SettingsError
from protocol.runfile import ModelSpec
from protocol.schedule import float32_value, learning_rate, scalars
from tests.benchmarks.parity.cells import Cell, Task
from tests.support.passes import do_work


def open_corpus(directory: Path) -> Corpus:
    """The whole built-in corpus, prepared there if it is not yet."""
    prepare_library(directory)
    return Corpus.open(directory)


class Fixture:
    """One network at its genesis, with the samples, rates and measure of one cell."""

    passes_max = 1
    """Passes over the training text at most: with one, no sample repeats."""

    def __init__(self, task: Task, cell: Cell, corpus: Corpus) -> None:
        """`SettingsError` for a text too short to train without repetition, or a batch that cannot
        be cut evenly.
        """
        self.task, self.cell = task, cell
        needed, there = cell.steps * task.batch_samples, corpus.samples(task.sequence_length)
        if needed > there * self.passes_max:
            raise SettingsError(
                f"expected at most {there * self.passes_max} samples, each of the text "
                f"{self.passes_max} times at most, got {needed}"
            )
        if task.batch_samples % cell.authors:
            raise SettingsError(
                f"expected authors that divide {task.batch_samples} samples, got {cell.authors}"
            )
        model = build_model("llama", task.config)
        fill(model, cell.seed, ModelSpec().init_std)
        self.trainee = TrainingModel(model, micro_batch_max=task.batch_samples)
        self.parameters: dict[str, Tensor] = {
            name: p.data for name, p in self.trainee.parameters.items()
        }
        """The tensors in which gradients are taken."""
        self.layout = ChunkLayout.from_shapes(
            {name: tuple(p.shape) for name, p in self.parameters.items()}
        )
        self.corpus = corpus
        self.validation = corpus.validation(task.validation_samples, task.sequence_length)

    def samples(self, round_: int) -> npt.NDArray[np.int64]:
        """All samples of a round, [batch_samples, sequence_length + 1]: author i has the i-th part
        of them.
        """
        batch = self.task.batch_samples
        return self.corpus.batch(round_ * batch, batch, self.task.sequence_length, self.cell.seed)

    def gradients(self, samples: npt.NDArray[np.int64]) -> dict[str, Tensor | None]:
        """Mean gradient over samples at the network's parameters, valid until the next call.
        `GradientError` for numbers that are not finite.
        """
        do_work(self.trainee, [samples])
        return self.finite_gradients()

    def finite_gradients(self) -> dict[str, Tensor | None]:
        """Gradients that the passes left, valid until the next pass. `GradientError` for numbers
        that are not finite.
        """
        gradients = {name: parameter.grad for name, parameter in self.trainee.parameters.items()}
        require_finite(gradients)
        return gradients

    def learning_rate(self, step: int) -> float:
        """The schedule's rate as a double, for methods that exchange no commits."""
        return learning_rate(self.cell.schedule, step)

    def rates(self, step: int) -> tuple[float, float]:
        """(learning rate, decay) of a step: the float32 values that its commit would carry."""
        rate_bits, decay_bits = scalars(self.cell.schedule, step)
        return float32_value(rate_bits), float32_value(decay_bits)

    def validation_bits_per_byte(self) -> float:
        """Cross-entropy at the network's parameters; a token is a byte, or the end of a
        document.
        """
        return self.trainee.evaluate(self.validation) / math.log(2)

"""Local steps and dense Muon, through the code of a node.

The authors of local steps share one network, which takes every author's steps in turn, from the
committed parameters. A round trains `local_steps` batches of the task, cut among the authors as for
every other method: author i makes its h-th local step on its part of the h-th batch, so a round is
that many steps of the study. Each author has an optimizer and a residual of its own. The schedule
gives a round the rate of its first step.

Dense Muon steps on the mean gradient of every batch, by the same two optimizers of torch.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from node.exact.local_steps.aggregate import apply
from node.exact.local_steps.optimizer import LocalOptimizer
from node.exact.local_steps.residual import Residual
from node.model.local_steps import LocalSteps
from protocol.codec.payload import Header, PayloadShape, decode, encode
from protocol.ids import PeerId, RunId
from protocol.sums.movements import Movement, code_max
from tests.benchmarks.parity.demo import Traffic
from tests.benchmarks.parity.task import Fixture

_RUN = RunId("0" * 32)

_BFLOAT16_BYTES = 2


class LocalStepsAuthors:
    """The authors of one cell and the parameters that they share."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture, cell = fixture, fixture.cell
        trainee = fixture.trainee
        self._optimizers = [
            LocalOptimizer(trainee.model, trainee.parameters) for _ in range(cell.authors)
        ]
        fade = cell.fade if cell.authors > 1 else 1.0
        self._residuals = [
            Residual(fixture.layout, cell.top_k, "cpu", fade=fade) for _ in range(cell.authors)
        ]
        self.committed = {name: tensor.clone() for name, tensor in fixture.parameters.items()}
        self._chance = np.random.default_rng(cell.seed)
        self._step = 0

    def step(self) -> Traffic:
        """One batch of the study; with the last one of a round, the whole round."""
        cell = self._fixture.cell
        self._step += 1
        if self._step % cell.local_steps and self._step < cell.steps:
            return Traffic(0, 0)
        first = (self._step - 1) // cell.local_steps * cell.local_steps
        steps = range(first, self._step)
        shares = author_batches(self._fixture, steps)
        containers = [self._author(author, steps, share) for author, share in enumerate(shares)]
        self._apply(first, containers)
        size = sum(map(len, containers))
        return Traffic(size / cell.authors, size * (cell.authors - 1) / cell.authors)

    def stand_at_committed(self) -> None:
        """Set the network to the committed parameters, to measure them."""
        for name, tensor in self._fixture.parameters.items():
            tensor.copy_(self.committed[name])

    def _author(self, author: int, steps: range, batches: Sequence[npt.NDArray[np.int64]]) -> bytes:
        """The payload of one author's steps of a round."""
        fixture, cell = self._fixture, self._fixture.cell
        rate = fixture.rates(steps[0])[0]
        moved = self._movement(author, batches, rate)
        residual = self._residuals[author]
        if self._chance.random() < cell.lost:
            residual.entries.zero_()
        residual.accumulate(moved)
        cap = code_max(rate, len(steps), cell.top_k)
        header = Header(_RUN, steps[0], PeerId(f"{author:032x}"))
        return encode(header, residual.extract(code_max=cap).coefficients, self._shape)

    def _movement(
        self, author: int, batches: Sequence[npt.NDArray[np.int64]], rate: float
    ) -> Mapping[str, Tensor | None]:
        """What the steps of one author move the network by."""
        return movement(self._fixture, self.committed, batches, self._optimizers[author], rate)

    def _apply(self, first: int, containers: list[bytes]) -> None:
        rate, decay = self._fixture.rates(first)
        cap = code_max(rate, self._step - first, self._fixture.cell.top_k)
        movements = [Movement(1, cap, decode(each, self._shape)[1]) for each in containers]
        with torch.no_grad():
            gain = self._fixture.cell.gain
            apply(self._fixture.layout, self.committed, movements, decay, gain=gain)

    @property
    def _shape(self) -> PayloadShape:
        return PayloadShape(self._fixture.layout.chunks, self._fixture.cell.top_k, 1, scaled=True)


def author_batches(fixture: Fixture, steps: Iterable[int]) -> list[list[npt.NDArray[np.int64]]]:
    """The batches of each author, one for each of these steps: int64 [samples, sequence_length +
    1].
    """
    authors, length = fixture.cell.authors, fixture.task.sequence_length + 1
    cut = [fixture.samples(step).reshape(authors, -1, length) for step in steps]
    return [[step[author] for step in cut] for author in range(authors)]


def movement(
    fixture: Fixture,
    committed: Mapping[str, Tensor],
    batches: Sequence[npt.NDArray[np.int64]],
    optimizer: LocalOptimizer,
    rate: float,
) -> dict[str, Tensor | None]:
    """What the steps of a round move the network by, from the committed parameters."""
    for name, tensor in fixture.parameters.items():
        tensor.copy_(committed[name])
    passes = LocalSteps(fixture.trainee, batches, optimizer, rate)
    while passes.next():
        pass
    passes.finish()
    return {name: committed[name] - tensor for name, tensor in fixture.parameters.items()}


class DenseMuon:
    """Muon for matrices, AdamW for the rest, on the gradient of the whole batch."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture = fixture
        self._optimizer = LocalOptimizer(fixture.trainee.model, fixture.trainee.parameters)
        self._step = 0

    def step(self) -> Traffic:
        """One step on the whole batch."""
        self._fixture.gradients(self._fixture.samples(self._step))
        self._optimizer.step(self._fixture.learning_rate(self._step))
        self._step += 1
        dense = _BFLOAT16_BYTES * self._fixture.layout.parameters
        return Traffic(dense, dense)

    def stand_at_committed(self) -> None:
        """The network always stands at the parameters to measure."""

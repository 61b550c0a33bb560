"""Authors of local steps with unlike speeds, and commits that come late, through a node's own code.

The authors share one network, which is set to each one's own parameters in turn. A round deals its
batches out in pieces of one local step: turn by turn, each author that has steps left takes the
next piece. So with equal speeds author i has the i-th part of every batch, as in the parity study.

With a late commit an author goes on from where its own steps led, and is put to the new committed
parameters and what it moved since the round began, as `node.replica.local_steps` does:

    a round late   steps r | sent | steps r+1, from there | sent | r applied | steps r+2 ...
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
from tests.benchmarks.local_steps.study import Trial
from tests.benchmarks.parity.task import Fixture

_RUN = RunId("0" * 32)

Parameters = dict[str, Tensor]


@dataclass(slots=True)
class Author:
    """What is one author's own."""

    optimizer: LocalOptimizer
    residual: Residual
    working: Parameters
    """Where its steps have led."""

    start: Parameters
    """Where its newest round began."""


@dataclass(slots=True)
class Sent:
    """The payloads of a round that is not applied."""

    rates: tuple[float, float]
    speeds: tuple[int, ...]
    payloads: list[bytes] = field(default_factory=list)


class Authors:
    """The authors of one trial and the parameters that they commit."""

    def __init__(self, trial: Trial, fixture: Fixture) -> None:
        self._trial, self._fixture = trial, fixture
        self.committed = _copied(fixture.parameters)
        self.authors = [
            Author(
                LocalOptimizer(fixture.trainee.model, fixture.trainee.parameters),
                Residual(fixture.layout, trial.top_k, "cpu"),
                _copied(self.committed),
                _copied(self.committed),
            )
            for _ in range(trial.authors)
        ]
        self._shape = PayloadShape(fixture.layout.chunks, trial.top_k, 1, scaled=True)
        self._undecided: Sent | None = None

    def round(self, first: int, steps: int) -> float:
        """The round that begins with step `first` and has this many on the mean. Returns the bytes
        of a payload, the mean over authors.
        """
        trial = self._trial
        speeds, rates = trial.speeds_of(steps), self._fixture.rates(first)
        sent = Sent(rates, speeds)
        pieces = dealt(self._batches(first, steps), speeds)
        before, decided = self._undecided, dict(self.committed)
        if before and trial.arrival == "half a round late":
            decided = self._applied(before)
        for number, author in enumerate(self.authors):
            goes_on = before is not None
            self._train(author, pieces[number], rates[0], goes_on=goes_on, decided=decided)
            sent.payloads.append(self._payload(number, author, first, speeds[number], rates[0]))
        self.committed = self._applied(before) if before else self.committed
        late = trial.arrival != "at once" and first >= trial.overlap_from
        self._undecided = sent if late else None
        if not late:
            self.committed = self._applied(sent)
        elif before and trial.arrival != "not taken in":
            for author in self.authors:
                _put_to(author.working, author.start, self.committed)
        return sum(map(len, sent.payloads)) / trial.authors

    def stand_at_committed(self) -> None:
        """Set the network to what is committed once every payload is applied."""
        last = self._applied(self._undecided) if self._undecided else self.committed
        _set(self._fixture.parameters, last)

    def _train(
        self,
        author: Author,
        batches: list[npt.NDArray[np.int64]],
        rate: float,
        *,
        goes_on: bool,
        decided: Parameters,
    ) -> None:
        """Make an author's steps of a round; with half a round before the commit comes, `decided`
        are the parameters that it makes.
        """
        fixture = self._fixture
        _set(author.start, author.working if goes_on else self.committed)
        _set(fixture.parameters, author.start)
        passes = LocalSteps(fixture.trainee, batches, author.optimizer, rate)
        half = len(batches) // 2 if goes_on and self._trial.arrival == "half a round late" else -1
        while passes.steps != half and passes.next():
            pass
        if passes.steps == half:
            _put_to(fixture.parameters, author.start, decided)
            while passes.next():
                pass
        passes.finish()
        _set(author.working, fixture.parameters)

    def _payload(self, number: int, author: Author, first: int, steps: int, rate: float) -> bytes:
        moved: dict[str, Tensor | None] = {
            name: author.start[name] - tensor for name, tensor in author.working.items()
        }
        author.residual.accumulate(moved)
        extraction = author.residual.extract(code_max=code_max(rate, steps, self._trial.top_k))
        header = Header(_RUN, first, PeerId(f"{number:032x}"))
        return encode(header, extraction.coefficients, self._shape)

    def _applied(self, sent: Sent) -> Parameters:
        """The committed parameters after a round's commit, in new tensors."""
        trial, (rate, decay) = self._trial, sent.rates
        samples = self._fixture.task.batch_samples // trial.authors
        movements = [
            Movement(
                steps * samples if trial.weights == "samples" else 1,
                code_max(rate, steps, trial.top_k),
                decode(payload, self._shape)[1],
            )
            for payload, steps in zip(sent.payloads, sent.speeds, strict=True)
        ]
        found = _copied(self.committed)
        with torch.no_grad():
            apply(self._fixture.layout, found, movements, decay)
        return found

    def _batches(self, first: int, steps: int) -> npt.NDArray[np.int64]:
        """int64 [steps * authors, samples of a local step, sequence_length + 1]."""
        batches = [self._fixture.samples(step) for step in range(first, first + steps)]
        length = self._fixture.task.sequence_length + 1
        return np.concatenate(batches).reshape(steps * self._trial.authors, -1, length)


def dealt(
    pieces: npt.NDArray[np.int64], speeds: tuple[int, ...]
) -> list[list[npt.NDArray[np.int64]]]:
    """The pieces of each author, one for every local step."""
    found: list[list[npt.NDArray[np.int64]]] = [[] for _ in speeds]
    turns = (
        author for turn in range(max(speeds)) for author, speed in enumerate(speeds) if turn < speed
    )
    for piece, author in zip(pieces, turns, strict=True):
        found[author].append(piece)
    return found


def _put_to(working: Mapping[str, Tensor], start: Parameters, committed: Parameters) -> None:
    """Go on from other committed parameters with what was moved since the round began."""
    for name, tensor in working.items():
        tensor.sub_(start[name]).add_(committed[name])
        start[name].copy_(committed[name])


def _set(parameters: Mapping[str, Tensor], to: Mapping[str, Tensor]) -> None:
    for name, tensor in parameters.items():
        tensor.copy_(to[name])


def _copied(parameters: Mapping[str, Tensor]) -> Parameters:
    return {name: tensor.clone() for name, tensor in parameters.items()}

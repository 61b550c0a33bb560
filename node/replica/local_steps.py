"""The replica of a run with local steps: a round moves the model, and the movement is sent.

    begin        the model stands at the committed parameters
    passes       each batch moves it by one step of the node's own optimizer
    accumulate   its movement goes into the residual, of which the rest fades
    extract      signs and scales of the residual are sent
    apply        the mean of everybody's movements, times the run's gain, moves the committed
                 parameters, exactly

With overlap a round begins while the one in front of it is undecided. The model then goes on from
where this node's own steps left it; when the commit comes, it is put to the new committed
parameters and what it was moved since the round began. What was moved is counted from there. A
commit that comes after the last pass of a round is taken in when the next one begins.

Residual and the optimizer's state are soft: a node that is started again begins without both.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from node.demo.engine import Extraction
from node.demo.local_steps.aggregate import Movement, apply, code_max_of
from node.demo.local_steps.optimizer import LocalOptimizer
from node.demo.local_steps.residual import Residual
from node.demo.vote_sum import Contribution
from node.model.local_steps import LocalSteps, moved_from
from node.model.training import Tokens
from node.replica.replica import Replica
from protocol import wire_pb2 as wire
from protocol.schedule import float32_value


class LocalStepsReplica(Replica):
    """State of one node for one run with local steps, on one device."""

    engine: Residual
    _optimizer: LocalOptimizer
    _passes: LocalSteps | None
    """The steps of the newest round."""
    _rate: float
    """Learning rate of the newest round."""
    _start: Mapping[str, Tensor]
    """Where the newest round began: the committed parameters or, with overlap, a copy."""
    _is_ahead: bool
    """Whether the model stands where this node's own steps of an undecided round left it."""

    # ---- upstream of the payload: local

    def begin(
        self, batches: Iterable[Tokens], pending: wire.Announced | None, rate_bits: tuple[int, int]
    ) -> LocalSteps:
        goes_on = self._is_ahead and pending is not None and bool(pending.digest)
        if goes_on:
            self.stand_at()
        else:
            self._stand_at(self.committed)
        if self._spec.rounds.overlap:
            self._start_at(self._working_tensors() if goes_on else self.committed)
        self._is_ahead = False
        self._rate = float32_value(rate_bits[0])
        self._passes = LocalSteps(self.trainee, batches, self._optimizer, self._rate)
        return self._passes

    def stand_at(self) -> None:
        """When the round in front was settled, between two passes or after the last: go on from the
        new committed parameters with what was moved since the newest round began.
        """
        self.trainee.moved()
        if self._start is self.committed:
            return  # nothing is settled within a round
        with torch.no_grad():
            for name, working in self._working_tensors().items():
                start, committed = self._start[name], self.committed[name]
                if not torch.equal(start, committed):  # else rounding alone would move it
                    working.sub_(start).add_(committed)
                    start.copy_(committed)

    def accumulate(self) -> None:
        """Add what the steps just made have moved to the residual. The gradients' memory takes it.

        `GradientError` leaves the residual as it was.
        """
        self.engine.accumulate(moved_from(self._start, self.trainee.parameters))
        self._is_ahead = self._spec.rounds.overlap > 0

    def extract(self, round: int, *, mean: bool = False) -> Extraction:
        samples = self._passes.samples if self._passes else 0
        return self.engine.extract(code_max=self._code_max(samples, self._rate))

    def _begin_anew(self) -> None:
        algorithm = self._spec.algorithm
        self.engine = Residual(
            self.layout, algorithm.top_k, self.trainee.device, fade=algorithm.fade
        )
        self._optimizer = LocalOptimizer(self.trainee.model, self.trainee.parameters)
        self._passes = None
        self._rate = 0.0
        self._start = self.committed
        self._is_ahead = False

    # ---- downstream of the commit: the same bits everywhere

    def _step(self, contributions: Sequence[Contribution], rates: tuple[float, float]) -> None:
        learning_rate, decay = rates
        algorithm = self._spec.algorithm
        movements = self.movements(contributions, learning_rate)
        apply(self.layout, self.committed, movements, decay, gain=algorithm.gain)
        self.engine.fade = 1.0 if len(contributions) == 1 else algorithm.fade

    def movements(
        self, contributions: Sequence[Contribution], learning_rate: float
    ) -> list[Movement]:
        """The contributions to a commit, with the bounds of their scales."""
        return [
            Movement(each.weight, self._code_max(each.weight, learning_rate), each.coefficients)
            for each in contributions
        ]

    def _code_max(self, samples: int, learning_rate: float) -> int:
        """Code of the largest scale that an author of this many samples may have."""
        return code_max_of(samples, learning_rate, self._spec.algorithm)

    # ---- the model

    def _works_apart(self) -> bool:
        return True

    def _stand_at(self, parameters: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, working in self._working_tensors().items():
                working.copy_(parameters[name])

    def _start_at(self, parameters: Mapping[str, Tensor]) -> None:
        """Keep a copy of where the round begins, in the memory of the last one if there is one."""
        if self._start is self.committed:
            self._start = {name: tensor.clone() for name, tensor in parameters.items()}
            return
        with torch.no_grad():
            for name, tensor in self._start.items():
                tensor.copy_(parameters[name])

    def _working_tensors(self) -> dict[str, Tensor]:
        return {name: self._working(name) for name in self.committed}

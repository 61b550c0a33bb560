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

    committed parameters   float32, exact            with the residual where there is room: on the
    residual               bfloat16                  device, or in the host's memory
    working weights        bfloat16 where products   on the device
                           of it are quick, else
                           float32
    gradients              bfloat16                  on the device, given back as steps take them
    optimizer's state      bfloat16                  on the device
    start of the round     rounded from the committed parameters each time, and not kept; with
                           overlap a copy like the working weights, where the residual is
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from border.memory import give_back_freed_memory
from node.exact.backend import is_accelerator
from node.exact.engine import Extraction
from node.exact.local_steps.aggregate import Movement, apply, code_max_of
from node.exact.local_steps.light_optimizer import LightOptimizer
from node.exact.local_steps.residual import Residual
from node.exact.rounding import Rounding, strips_of
from node.exact.vote_sum import Contribution
from node.model.local_steps import LocalSteps, MovedFrom
from node.model.passes import Tokens
from node.model.precision import weights_dtype
from node.model.training import TrainingModel
from node.replica.replica import Replica
from node.system.device import free_memory_bytes
from protocol import wire_pb2 as wire
from protocol.ids import RunId
from protocol.planner.needs import has_room, needs_of
from protocol.planner.parameters import Size
from protocol.runfile import RunSpec
from protocol.schedule import float32_value


class LocalStepsReplica(Replica):
    """State of one node for one run with local steps, on one device."""

    engine: Residual
    _optimizer: LightOptimizer
    _passes: LocalSteps | None
    """The steps of the newest round."""
    _rate: float
    """Learning rate of the newest round."""
    _start: Mapping[str, Tensor]
    """Where the newest round began: the committed parameters or, with overlap, a copy that is
    rounded as the working weights are."""
    _is_ahead: bool
    """Whether the model stands where this node's own steps of an undecided round left it."""

    def __init__(
        self,
        spec: RunSpec,
        run_id: RunId,
        device: torch.device,
        micro_batch_max: int,
        genesis: Path | None = None,
        *,
        seed: int = 0,
    ) -> None:
        """`seed`: of the random bits by which this node rounds; best another one on each."""
        self._seed = seed
        super().__init__(spec, run_id, device, micro_batch_max, genesis)

    @property
    def applies_beside(self) -> bool:
        return self.trainee.queue.is_behind  # else passes and step would share a processor

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
        for name, working in self._working_tensors().items():
            tensors = working, self._start[name], self.committed[name]
            for now, begun, exact in strips_of(*tensors):
                self._carry_over(now, begun, exact.to(begun.dtype))

    def _carry_over(self, working: Tensor, start: Tensor, new_start: Tensor) -> None:
        """Move a strip of the model by how far the start is moved, which becomes the new one."""
        if torch.equal(start, new_start):
            return  # rounding alone would move it
        device = working.device
        exact = working.float().sub(start.to(device)).add_(new_start.to(device))
        self._rounding.into(working, exact)
        start.copy_(new_start)

    def accumulate(self) -> None:
        """Add what the steps just made have moved to the residual.

        `GradientError` leaves the residual as it was.
        """
        self.trainee.give_back_gradients()
        if not is_accelerator(self.trainee.device):
            give_back_freed_memory()  # the gradients', in pieces: strips would come beside it
        self.engine.accumulate(MovedFrom(self._start, self.trainee.parameters))
        self._is_ahead = self._spec.rounds.overlap > 0

    def extract(self, round: int, *, mean: bool = False) -> Extraction:
        samples = self._passes.samples if self._passes else 0
        return self.engine.extract(code_max=self._code_max(samples, self._rate))

    def _begin_anew(self) -> None:
        algorithm, store = self._spec.algorithm, next(iter(self.committed.values())).device
        self.engine = Residual(
            self.layout,
            algorithm.top_k,
            store,
            fade=algorithm.fade,
            rounding=Rounding(store, self._seed),
        )
        self._rounding = Rounding(self.trainee.device, self._seed + 1)
        trainee = self.trainee
        self._optimizer = LightOptimizer(trainee.model, trainee.parameters, self._rounding)
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

    def _trainee(self, model: nn.Module, device: torch.device, samples: int) -> TrainingModel:
        weights = weights_dtype(device, self.layout.chunks)
        return TrainingModel(model, device, samples, weights, torch.bfloat16)

    def _at_genesis(self, genesis: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        device, size = self.trainee.device, Size(self.layout.parameters, self.layout.chunks)
        needs = needs_of(self._spec, size, light=self.trainee.dtype == torch.bfloat16)
        if is_accelerator(device) and not has_room(needs, free_memory_bytes(device)):
            device = torch.device("cpu")
        return {name: parameter.data.to(device) for name, parameter in genesis.items()}

    def _stand_at(self, parameters: Mapping[str, Tensor]) -> None:
        for name, working in self._working_tensors().items():
            working.copy_(parameters[name])

    def _start_at(self, parameters: Mapping[str, Tensor]) -> None:
        """Keep a copy of where the round begins, in the memory of the last one if there is one."""
        if self._start is self.committed:
            self._start = {
                name: torch.empty_like(tensor, dtype=self.trainee.dtype)
                for name, tensor in self.committed.items()
            }
        for name, tensor in self._start.items():
            tensor.copy_(parameters[name])

    def _working_tensors(self) -> dict[str, Tensor]:
        return {name: parameter.data for name, parameter in self.trainee.parameters.items()}

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

Of a node of many ranks each rank has such a replica for the parameters that it owns
(`node.replica.share`); all share the network that makes passes (`node.ranks.sharded`), and rank 0
gives the orders (`node.ranks.replica`). What is random depends on a seed, a parameter and a place,
so it is the same whatever the number of ranks.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from border.memory import give_back_freed_memory
from node.exact.backend import is_accelerator
from node.exact.contributions import Contribution
from node.exact.engine import Extraction
from node.exact.local_steps.aggregate import apply
from node.exact.local_steps.light_optimizer import LightOptimizer
from node.exact.local_steps.residual import Residual
from node.exact.local_steps.results import apply_results
from node.exact.rounding import Rounding, strips_of
from node.model.local_steps import LocalSteps, MovedFrom, moved_in_place
from node.model.passes import Tokens
from node.model.precision import weights_dtype
from node.model.training import TrainingModel
from node.replica.replica import Replica
from node.replica.share import RankShare
from node.system.device import free_memory_bytes
from protocol import wire_pb2 as wire
from protocol.codec.commit_sums import AuthorSet, Sums
from protocol.codec.commits import Commit
from protocol.codec.sums import Levels
from protocol.errors import RemoteProtocolError
from protocol.ids import RunId
from protocol.planner.needs import Needs, has_room, needs_of
from protocol.planner.parameters import Size
from protocol.runfile import RunSpec
from protocol.schedule import float32_value
from protocol.sums.movements import Movement, code_max_of
from protocol.sums.ranges import ranges_of
from protocol.sums.results import read_results

log = logging.getLogger("lockstep.node")


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
    _store: torch.device
    """The device that keeps what is touched once a round."""
    _carried: int
    """How often the model was put to new committed parameters while it was ahead."""
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
        rank: int = 0,
        ranks: int = 1,
        weights: torch.dtype | None = None,
    ) -> None:
        """`seed`: of the random bits by which this node rounds; best another one on each. The
        replica is the part of a `rank` where the node has several. `weights` is the type of the
        working ones, None for the best on this device.
        """
        self._seed, self._place, self._weights = seed, (rank, ranks), weights
        super().__init__(spec, run_id, device, micro_batch_max, genesis)

    @property
    def store(self) -> torch.device:
        return self._store

    @property
    def applies_beside(self) -> bool:
        return self.trainee.queue.is_behind  # else passes and step would share a processor

    # ---- upstream of the payload: local

    def begin(
        self, batches: Iterable[Tokens], pending: wire.Announced | None, rate_bits: tuple[int, int]
    ) -> LocalSteps:
        self.begin_at(goes_on=self._is_ahead and pending is not None and bool(pending.digest))
        self._is_ahead = False
        self._rate = float32_value(rate_bits[0])
        self._passes = LocalSteps(self.trainee, batches, self, self._rate)
        return self._passes

    def begin_at(self, *, goes_on: bool) -> None:
        """Put the model where a round begins: at the committed parameters, or where it `goes_on`
        from this node's own steps of the undecided round in front.
        """
        if goes_on:
            self.stand_at()
        else:
            for name, working in self._working(reads=False):
                working.copy_(self.committed[name])
        if self._spec.rounds.overlap:
            self._start_at(self._working(writes=False) if goes_on else self.committed.items())

    def step(self, learning_rate: float) -> None:
        """A step of the optimizer by the gradients, which it takes."""
        self._optimizer.step(learning_rate)

    def stand_at(self) -> None:
        """When the round in front was settled, between two passes or after the last: go on from the
        new committed parameters with what was moved since the newest round began.
        """
        self.trainee.moved()
        if self._start is self.committed:
            return  # nothing is settled within a round
        self._carried += 1
        for name, working in self._working():
            tensors = working, self._start[name], self.committed[name]
            for number, (now, begun, exact) in enumerate(strips_of(*tensors)):
                self._carry_over(now, begun, exact.to(begun.dtype), (name, number))

    def _carry_over(
        self, working: Tensor, start: Tensor, new_start: Tensor, what: tuple[str, int]
    ) -> None:
        """Move a strip of the model by how far the start is moved, which becomes the new one."""
        if torch.equal(start, new_start):
            return  # rounding alone would move it
        device = working.device
        exact = working.float().sub(start.to(device)).add_(new_start.to(device))
        self._rounding.into(working, exact, "carry", self._carried, *what)
        start.copy_(new_start)

    def accumulate(self) -> None:
        """Add what the steps just made have moved to the residual. Without overlap that is in the
        place of the working weights, which the next round sets anew.

        `GradientError` leaves the residual as it was.
        """
        self.trainee.give_back_gradients()
        if not is_accelerator(self.trainee.device):
            give_back_freed_memory()  # the gradients', in pieces: strips would come beside it
        is_over = self._start is self.committed and self._store == self.trainee.device
        moved = moved_in_place if is_over else MovedFrom
        self.engine.accumulate(moved(self._start, self._own_parameters))
        self._is_ahead = self._spec.rounds.overlap > 0

    def extract(self, round: int, *, mean: bool = False) -> Extraction:
        samples = self._passes.samples if self._passes else 0
        return self.take(self._code_max(samples, self._rate))

    def take(self, code_max: int) -> Extraction:
        """Take what is sent out of the residual; no scale has a larger code."""
        return self.engine.extract(code_max=code_max)

    def _begin_empty(self) -> None:
        algorithm, store = self._spec.algorithm, self._store
        self.engine = Residual(
            self.share.layout,
            algorithm.top_k,
            store,
            value_bits=algorithm.value_bits,
            fade=algorithm.fade,
            rounding=Rounding(store, self._seed),
        )
        self.engine.numbers = self.share.chunks.nonzero()[:, 0].to(store)
        self._rounding = Rounding(self.trainee.device, self._seed + 1)
        trainee = self.trainee
        self._optimizer = LightOptimizer(trainee.model, self._own_parameters, self._rounding)
        self._carried = 0
        self._passes = None
        self._rate = 0.0
        self._start = self.committed
        self._is_ahead = False

    # ---- downstream of the commit: the same bits everywhere

    def _step(self, contributions: Sequence[Contribution], rates: tuple[float, float]) -> None:
        self.move(
            [
                replace(each, coefficients=self.share.cut(each.coefficients))
                for each in contributions
            ],
            rates,
        )

    def move(self, contributions: Sequence[Contribution], rates: tuple[float, float]) -> None:
        """Make a commit's step in the parameters that are kept here; `contributions` are to their
        chunks, `rates` learning rate and decay.
        """
        learning_rate, decay = rates
        if self.committed:
            movements = self.movements(contributions, learning_rate)
            gain = self._spec.algorithm.gain
            apply(self.share.layout, self.committed, movements, decay, gain=gain)
        self._fade(len(contributions))

    def _apply_sums(self, commit: Commit, sums: Sums, blobs: Sequence[bytes]) -> None:
        levels = self._levels(commit, sums, blobs)
        with torch.no_grad():
            self._step_by_sums(levels, sums.authors, float32_value(commit.decay_bits))

    def _levels(self, commit: Commit, sums: Sums, blobs: Sequence[bytes]) -> Levels:
        """What the results of a commit say of all chunks; nothing of a range without one."""
        if sums.ranges > self.layout.chunks:
            raise RemoteProtocolError(
                f"commit of round {commit.round}: expected at most {self.layout.chunks} ranges, as "
                f"many as there are chunks, got {sums.ranges}"
            )
        given = dict(zip((result.number for result in sums.results), blobs, strict=True))
        ranges = ranges_of(self.layout.chunks, sums.ranges)
        levels, refused = read_results(
            [given.get(each, b"") for each in range(len(ranges))], ranges
        )
        for number, error in refused.items():
            self.payloads_ignored += 1
            reason = str(error) if given.get(number) else "void" if number in given else "not added"
            log.warning("sum ignored round=%s range=%s reason=%s", commit.round, number, reason)
        return levels

    def _step_by_sums(self, levels: Levels, authors: AuthorSet, decay: float) -> None:
        """Change the committed parameters by the sums of all chunks."""
        self.move_by_sums(self.share.cut_levels(levels), authors, decay)

    def move_by_sums(self, levels: Levels, authors: AuthorSet, decay: float) -> None:
        """Make a commit's step in the parameters that are kept here; `levels` are those of their
        chunks.
        """
        algorithm = self._spec.algorithm
        if self.committed:
            apply_results(
                self.share.layout,
                self.committed,
                levels,
                authors,
                decay,
                top_k=algorithm.top_k,
                gain=algorithm.gain,
            )
        self._fade(authors.count)

    def _fade(self, authors: int) -> None:
        """Let the residual fade, unless the round had one author."""
        self.engine.fade = 1.0 if authors == 1 else self._spec.algorithm.fade

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
        weights = self._weights or weights_dtype(device, self.layout.chunks)
        return TrainingModel(model, device, samples, weights, torch.bfloat16)

    def _at_genesis(self, genesis: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        device = self.trainee.device
        if is_accelerator(device) and not has_room(self._needs, free_memory_bytes(device)):
            device = torch.device("cpu")
        self._store = device
        return {name: parameter.data.to(device) for name, parameter in genesis.items()}

    @property
    def _needs(self) -> Needs:
        """The needs of what is kept here: of all parameters, or of a rank's."""
        size = Size(self.share.layout.parameters, self.share.layout.chunks)
        return needs_of(self._spec, size, light=self.trainee.dtype == torch.bfloat16)

    def _start_at(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Keep a copy of where the round begins, in the memory of the last one if there is one."""
        if self._start is self.committed:
            self._start = {
                name: torch.empty_like(tensor, dtype=self.trainee.dtype)
                for name, tensor in self.committed.items()
            }
        for name, tensor in parameters:
            self._start[name].copy_(tensor)

    def _working(self, *, reads: bool = True, writes: bool = True) -> Iterator[tuple[str, Tensor]]:
        """The working weights that are kept here, one parameter after the other, for a caller that
        `reads` what they are, and `writes` others.
        """
        for name, parameter in self._own_parameters.items():
            yield name, parameter.data

    @property
    def _own_parameters(self) -> dict[str, nn.Parameter]:
        """Those of the network that are kept here."""
        return {name: self.trainee.parameters[name] for name in self.share.names}

    @property
    def _own_names(self) -> Collection[str]:
        return self.share.names

    def _build(self, device: torch.device, micro_batch_max: int) -> None:
        super()._build(device, micro_batch_max)
        self.share = RankShare(self.layout, *self._place)

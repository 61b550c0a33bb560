"""The replica of a node of many ranks, on rank 0: each rank has the part that it owns.

    begin, step, ...   an order to all ranks, rank 0's own part among them
    payload            each rank extracts its chunks, rank 0 puts them together
    commit             rank 0 decodes payloads or sums; each rank moves its parameters
    digest             the sum of all ranks'
    parameters         fetched from their owners one at a time: for a snapshot, a saved state, a
                       checkpoint

Its bits are those of a node with one rank, as no chunk and no parameter lies on two.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path

import torch
from torch import Tensor

from node.exact.contributions import Contribution
from node.exact.engine import Extraction
from node.model.passes import Tokens
from node.model.training import TrainingModel
from node.ranks.crew import Crew
from node.ranks.orders import (
    Accumulate,
    Apply,
    ApplySums,
    Begin,
    Digest,
    Extract,
    Fetch,
    Keep,
    MakeStep,
    Put,
    Reset,
    StandAt,
)
from node.replica.factory import replica_for, seed_of
from node.replica.kept_state import KeptState
from node.replica.local_steps import LocalStepsReplica
from node.replica.replica import Replica
from node.replica.share import SpreadParameters
from protocol.codec.commit_sums import AuthorSet
from protocol.codec.sums import Levels
from protocol.ids import PeerId, RunId
from protocol.runfile import RunSpec


def replica_of(
    crew: Crew,
    spec: RunSpec,
    run_id: RunId,
    device: torch.device,
    micro_batch_max: int,
    own: PeerId,
    *,
    genesis: Path | None = None,
) -> Replica:
    """As `replica_for`, of a node of many ranks. In runs without local steps rank 0 holds all of
    it, and the others compute gradients.
    """
    if spec.algorithm.facts.steps_within_round:
        parts = spec, run_id, device, micro_batch_max
        return SharedReplica(crew, *parts, genesis, seed=seed_of(own))
    replica = replica_for(spec, run_id, device, micro_batch_max, own, genesis=genesis)
    crew.hold(spec, run_id, trainee=replica.trainee)
    return replica


class RanksState:
    """A state that all ranks keep together, each a part of it."""

    def __init__(self, crew: Crew, trainee: TrainingModel) -> None:
        self._crew, self._trainee = crew, trainee

    @property
    def at_once(self) -> int:
        return self._trainee.at_once

    def nats(self, samples: Tokens) -> float:
        """As `KeptState.nats`."""

        def measured() -> float:
            parts = torch.split(torch.as_tensor(samples), self.at_once)
            return sum(self._crew.measure(self._trainee, part) for part in parts)

        return self._trainee.in_memory(measured)


class SharedReplica(LocalStepsReplica):
    """State of one node for one run with local steps, on several ranks."""

    def __init__(
        self,
        crew: Crew,
        spec: RunSpec,
        run_id: RunId,
        device: torch.device,
        micro_batch_max: int,
        genesis: Path | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self._crew, self._is_new = crew, True
        self._kept: Callable[[], RanksState | None] = lambda: None
        """The kept state, as long as somebody has it: the ranks let go of it as a round begins."""
        super().__init__(spec, run_id, device, micro_batch_max, genesis, seed=seed)

    def _build(self, device: torch.device, micro_batch_max: int) -> None:
        part = self._crew.hold(
            self._spec, self._run_id, micro_batch_max=micro_batch_max, seed=self._seed
        )
        self._part = part.replica
        self.layout, self.trainee = self._part.layout, self._part.trainee
        self.committed = SpreadParameters(self.layout.shapes, self._fetched, self._put)

    def _begin_anew(self) -> None:
        if not self._is_new:
            self._crew.do(Reset())
        self._is_new, self._is_ahead = False, False
        self._passes, self._rate = None, 0.0

    def computed_digest(self) -> int:
        return self._crew.do(Digest()).digest

    @property
    def store(self) -> torch.device:
        return self._part.store

    @property
    def applies_beside(self) -> bool:
        return False  # ranks obey one order at a time

    # ---- upstream of the payload

    def begin_at(self, *, goes_on: bool) -> None:
        self._crew.do(Begin(goes_on, keeps=self._kept() is not None))

    def step(self, learning_rate: float) -> None:
        self._crew.do(MakeStep(learning_rate))

    def stand_at(self) -> None:
        self._crew.do(StandAt())

    def accumulate(self) -> None:
        """As `LocalStepsReplica.accumulate`; with a `GradientError` the ranks whose movements are
        finite have added theirs.
        """
        self._crew.do(Accumulate())
        self._is_ahead = self._spec.rounds.overlap > 0

    def take(self, code_max: int) -> Extraction:
        extraction = self._crew.do(Extract(code_max)).extraction
        assert extraction, "rank 0 has that of all"
        return extraction

    def kept(self) -> KeptState:
        self._crew.do(Keep())
        state = RanksState(self._crew, self.trainee)
        self._kept = weakref.ref(state)
        return state

    # ---- downstream of the commit

    def _step(self, contributions: Sequence[Contribution], rates: tuple[float, float]) -> None:
        authors = tuple((each.weight, len(each.coefficients.values)) for each in contributions)
        self._crew.do(Apply(authors, *rates), contributions)

    def _step_by_sums(self, levels: Levels, authors: AuthorSet, decay: float) -> None:
        self._crew.do(ApplySums(len(levels.values), astuple(authors), decay), levels)

    def _fetched(self, name: str) -> Tensor:
        if name in self._part.committed:
            return self._part.committed[name]
        tensor = self._crew.do(Fetch(name)).tensor
        assert tensor is not None, "its owner has told it"
        return tensor

    def _put(self, name: str, tensor: Tensor) -> None:
        if name in self._part.committed:
            self._part.committed[name].copy_(tensor)
        else:
            self._crew.do(Put(name), tensor)

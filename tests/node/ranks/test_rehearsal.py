"""A round is measured by all ranks before a node joins, none of which holds the network."""

from pathlib import Path
from typing import Any

import pytest
import torch

from node import rehearsal
from node.model.training import TrainingModel
from node.ranks.crew import Crew
from node.ranks.sharded import held_of
from node.rehearsal import rehearse
from node.settings import NodeSettings
from protocol.ids import RunId
from protocol.run_info import RunInfo
from protocol.runfile import AlgorithmSpec, RunSpec
from tests.node.ranks.test_ranks import MOVES, VOTES, agreement, replicas, train
from tests.support.tiny import tiny_spec

pytestmark = pytest.mark.usefixtures("alike")


def info(spec: RunSpec) -> RunInfo:
    return RunInfo(spec, RunId("a" * 32), b"")


def settings(place: Path, crew: Crew) -> NodeSettings:
    return NodeSettings("h:1", place, threads=1, micro_batch=2, ranks=crew.count)


@pytest.mark.parametrize(("spec", "most"), [(MOVES, 5), (VOTES, VOTES.rounds.batch_samples_max)])
def test_all_ranks_make_the_passes_and_are_as_they_were(
    crew: Crew, tmp_path: Path, spec: RunSpec, most: int
) -> None:
    found = rehearse(settings(tmp_path, crew), info(spec), crew=crew, finds=False)
    assert (found.micro_batch, found.samples, found.reason) == (2, min(2 * crew.count, most), "")
    assert 0 < found.pass_s <= found.round_s
    assert not found.is_apart
    assert list(tmp_path.iterdir()) == []
    assert crew._part is None
    alone, many = replicas(spec, crew)
    for replica in (alone, many):
        train(replica, spec, 4, (5, 5, 3))
    assert agreement(alone, many, 4) >= 0.99


def test_the_size_that_is_found_fits_the_rank_with_the_least_memory(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = TrainingModel.gradient

    def gradient(self: TrainingModel, piece: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        if len(piece) > 1:
            raise torch.OutOfMemoryError("too much for this one")
        return honest(self, piece, weight)

    monkeypatch.setattr(TrainingModel, "gradient", gradient)  # of rank 0
    spec = tiny_spec(algorithm=AlgorithmSpec(top_k=16, local_samples=8))
    found = rehearse(settings(tmp_path, crew), info(spec), crew=crew, finds=True)
    assert found.micro_batch == 1
    assert found.reason.startswith("2 do not fit the memory of cpu")


def test_no_rank_holds_the_whole_network_while_passes_are_tried(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, whole, honest = list[int](), list[int](), rehearsal._quickest

    def quickest(trainee: TrainingModel, tokens: Any) -> float | None:
        replica = crew._own_part.replica
        rows = replica.network.trainee.parameters.values()
        owned = trainee.parameters.values()
        held.append(sum(each.numel() for each in (*map(held_of, rows), *owned)))
        whole.append(replica.layout.parameters)
        return honest(trainee, tokens)

    monkeypatch.setattr(rehearsal, "_quickest", quickest)
    rehearse(settings(tmp_path, crew), info(MOVES), crew=crew, finds=True)
    assert max(held) <= 1.3 * 2 * whole[0] / crew.count, "its rows, and those that it owns"

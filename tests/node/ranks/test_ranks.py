"""Real ranks, each a process: their node computes what one rank computes."""

from typing import Any

import numpy as np
import pytest
import torch

from node.model.blocks import repeated
from node.model.training import TrainingModel
from node.ranks.crew import Crew
from node.ranks.dealing import Speeds
from node.ranks.replica import SharedReplica, replica_of
from node.replica.factory import replica_for
from node.replica.replica import Replica
from protocol.ids import PeerId, RunId
from protocol.runfile import AlgorithmSpec, RunSpec
from protocol.schedule import scalars
from tests.support.crew import CPU
from tests.support.payloads import signs_of
from tests.support.tiny import DEMO, tiny_spec

pytestmark = pytest.mark.usefixtures("alike")
RUN, OWN = RunId("a" * 32), PeerId("b" * 32)
VOTES = tiny_spec(overlap=0, algorithm=DEMO)
MOVES = tiny_spec(overlap=0, algorithm=AlgorithmSpec(top_k=16, local_samples=5))


def replicas(spec: RunSpec, crew: Crew) -> tuple[Replica, Replica]:
    """One of a rank alone, and one of all ranks."""
    parts = spec, RUN, CPU, 2, OWN
    return replica_for(*parts), replica_of(crew, *parts)


def samples(count: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 33))


def train(replica: Replica, spec: RunSpec, round: int, counts: tuple[int, ...]) -> float:
    """A round over batches of these counts; the loss."""
    batches = [samples(count, 10 * round + at) for at, count in enumerate(counts)]
    passes = replica.begin(batches, None, scalars(spec.schedule, round))
    while passes.next():
        pass
    work = passes.finish()
    assert work.samples == sum(counts)
    assert work.tokens == 32 * sum(counts)
    replica.accumulate()
    return work.loss_nats_per_token


@pytest.mark.parametrize("counts", [(1,), (3,), (2, 2, 2, 2, 1)])
def test_gradients_are_those_of_one_rank(crew: Crew, counts: tuple[int, ...]) -> None:
    alone, many = replicas(VOTES, crew)
    losses = [train(each, VOTES, 0, counts) for each in (alone, many)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, parameter in alone.trainee.parameters.items():
        found = many.trainee.parameters[name].grad
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-6)


def agreement(alone: Replica, many: Replica, round: int) -> float:
    """Part of the signs in which the payloads of a round agree."""
    one, other = (signs_of(each.extract(round).coefficients) for each in (alone, many))
    both = one.keys() & other.keys()
    assert len(both) >= 0.9 * len(one), "gradients in bfloat16 choose a few places otherwise"
    return sum(one[place] == other[place] for place in both) / len(both)


@pytest.mark.parametrize("spec", [VOTES, MOVES])
def test_the_payload_of_many_ranks_is_that_of_one_up_to_rounding(crew: Crew, spec: RunSpec) -> None:
    alone, many = replicas(spec, crew)
    for replica in (alone, many):
        train(replica, spec, 4, (5, 5, 3))
    assert agreement(alone, many, 4) >= 0.99


def test_parameters_that_move_between_two_passes_reach_every_rank(crew: Crew) -> None:
    alone, many = replicas(VOTES, crew)
    for replica in (alone, many):
        passes = replica.begin([samples(2, at) for at in range(8)], None, (0, 0))
        while passes.next():
            with torch.no_grad():
                if passes.samples == 8:
                    for tensor in replica.committed.values():
                        tensor.mul_(0.5)
            replica.stand_at()
        passes.finish()
    for name, parameter in alone.trainee.parameters.items():
        found = many.trainee.parameters[name].grad
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_rank_without_memory_has_all_make_smaller_passes(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, many = replicas(VOTES, crew)
    enough = TrainingModel.gradient

    def gradient(self: TrainingModel, piece: torch.Tensor) -> float:
        if self is many.trainee and len(piece) > 1:
            enough(self, piece)
            raise torch.OutOfMemoryError("too much for this one")
        return enough(self, piece)

    monkeypatch.setattr(TrainingModel, "gradient", gradient)
    for replica in (alone, many):
        train(replica, VOTES, 0, (2, 2, 2, 2, 2, 2, 2, 2))
    assert many.trainee.micro_batch_max == 1
    for name, parameter in alone.trainee.parameters.items():
        found = many.trainee.parameters[name].grad
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_rank_that_runs_out_of_memory_within_a_sharded_pass_keeps_nobody_waiting(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for it in the middle of the pass, and all make smaller ones."""
    alone, many = replicas(MOVES, crew)
    assert isinstance(many, SharedReplica)
    (block, *_) = repeated(many._part.network.trainee.model)
    enough, ran_out = type(block).forward, False

    def forward(self: torch.nn.Module, hidden: torch.Tensor, *rest: Any, **more: Any) -> Any:
        nonlocal ran_out
        if self is block and not ran_out:
            ran_out = True
            raise torch.OutOfMemoryError("too much for this one")
        return enough(self, hidden, *rest, **more)

    monkeypatch.setattr(type(block), "forward", forward)
    before = many.trainee.micro_batch_max
    for replica in (alone, many):
        train(replica, MOVES, 4, (5, 5, 3))
    assert many.trainee.micro_batch_max < before
    assert agreement(alone, many, 4) >= 0.99


@pytest.mark.parametrize("spec", [VOTES, MOVES])
def test_blocks_are_computed_again_on_every_rank(crew: Crew, spec: RunSpec) -> None:
    alone, many = replicas(spec, crew)
    many.trainee.recompute()
    for replica in (alone, many):
        train(replica, spec, 4, (4, 4))
    assert agreement(alone, many, 4) >= 0.99


@pytest.mark.parametrize("count", [1, 7])
def test_the_loss_that_ranks_measure_is_that_of_one(crew: Crew, count: int) -> None:
    alone, many = (each.kept().nats(samples(count)) for each in replicas(MOVES, crew))
    assert alone == pytest.approx(many, rel=1e-6)


def test_a_rank_without_samples_takes_part_and_adds_nothing(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 has none: the gradients are those of a node whose other ranks have them all."""
    alone, many = replicas(MOVES, crew)
    monkeypatch.setattr("node.ranks.crew.dealt", lambda n, *_: (0, n, *[0] * (crew.count - 2)))
    for replica in (alone, many):
        train(replica, MOVES, 4, (2, 2))
    assert agreement(alone, many, 4) >= 0.99


def test_a_node_that_rests_and_goes_on_holds_its_network_anew(crew: Crew) -> None:
    replicas(VOTES, crew)
    crew.rest()
    alone, many = replicas(VOTES, crew)
    assert train(alone, VOTES, 0, (3,)) == pytest.approx(train(many, VOTES, 0, (3,)), rel=1e-5)
    about = crew.document()
    assert [each["host"] for each in about] == [f"host-{rank}" for rank in range(crew.count)]
    assert all(each["memory_bytes"] > 10**7 for each in about)
    assert crew.hardware == f"{crew.count} x a CPU"


def test_rank_0_leaves_the_others_their_threads_while_all_make_a_pass(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(crew.count)
    _, many = replicas(VOTES, crew)
    honest, seen = TrainingModel.gradient, list[int]()

    def gradient(self: TrainingModel, piece: torch.Tensor) -> float:
        seen.append(torch.get_num_threads())
        return honest(self, piece)

    monkeypatch.setattr(TrainingModel, "gradient", gradient)
    monkeypatch.setattr(crew, "speeds", Speeds(crew.count))  # equal: rank 0 gets a sample
    train(many, VOTES, 0, (2, 2, 2, 2))
    assert set(seen) == {1}
    assert torch.get_num_threads() == crew.count

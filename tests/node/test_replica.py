"""A replica's gradients enter its momentum as the run says, and a saved one goes on where it stood."""

from pathlib import Path

import pytest
import torch

from node.data import Corpus
from node.replica import Position, Replica
from protocol.commits import genesis_digest
from protocol.runfile import AlgorithmSpec
from tests.node.links.net import RUN
from tests.passes import do_work
from tests.tiny import tiny_corpus, tiny_spec


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path_factory.mktemp("corpus")))


def replica_of(gradients: str) -> Replica:
    algorithm = AlgorithmSpec(top_k=16, gradients=gradients)  # type: ignore[arg-type]
    spec = tiny_spec().model_copy(update={"algorithm": algorithm})
    return Replica(spec, RUN, torch.device("cpu"), 1)


def train(replica: Replica, corpus: Corpus, step: int) -> None:
    do_work(replica.trainee, [corpus.batch(step * 2, 2, 32, 0)])
    replica.accumulate()


def test_each_way_for_gradients_gives_another_momentum(corpus: Corpus) -> None:
    replicas = [replica_of(gradients) for gradients in ("plain", "unit", "even")]
    for replica in replicas:
        train(replica, corpus, 0)
    plain, unit, even = (replica.engine.momentum for replica in replicas)
    assert not torch.equal(plain, unit)
    assert not torch.equal(unit, even)
    assert even.square().mean() > 100 * plain.square().mean(), "a tiny network's gradients are small"


@pytest.mark.parametrize("gradients", ["plain", "even"])
def test_a_saved_replica_goes_on_bit_for_bit(corpus: Corpus, tmp_path: Path, gradients: str) -> None:
    replica, again = replica_of(gradients), replica_of(gradients)
    for step in range(3):
        train(replica, corpus, step)
    replica.save(tmp_path / "state", position := Position(0, genesis_digest(RUN), -1))
    assert again.load(tmp_path / "state") == position
    for each in (replica, again):
        train(each, corpus, 3)
    assert torch.equal(again.engine.momentum, replica.engine.momentum)

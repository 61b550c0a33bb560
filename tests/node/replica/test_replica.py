"""A replica's gradients enter its momentum as the run says, and a saved one goes on where it
stood.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from node.data.corpus import Corpus
from node.replica.demo import DemoReplica
from node.replica.position import Position
from protocol.codec.commits import Commit, Entry, genesis_digest
from protocol.codec.payload import Header, encode
from protocol.errors import SettingsError
from protocol.ids import PeerId, sha256
from protocol.runfile import AlgorithmSpec, RoundsSpec, ScheduleSpec
from protocol.schedule import float32_value, scalars
from tests.node.links.net import RUN
from tests.support.passes import do_work
from tests.support.tiny import tiny_corpus, tiny_spec

OWN = PeerId("0d" * 16)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path_factory.mktemp("corpus")))


def replica_of(**algorithm: Any) -> DemoReplica:
    changed = AlgorithmSpec(**{"name": "demo", "top_k": 16, **algorithm})
    return DemoReplica(
        tiny_spec(overlap=0).model_copy(update={"algorithm": changed}), RUN, torch.device("cpu"), 1
    )


def train(replica: DemoReplica, corpus: Corpus, step: int) -> None:
    do_work(replica.trainee, [corpus.batch(step * 2, 2, 32, 0)])
    replica.accumulate()


def test_a_saved_replica_has_the_parameters_and_begins_without_momentum(
    corpus: Corpus, tmp_path: Path
) -> None:
    replica, again = replica_of(), replica_of()
    for round in range(3):
        train(replica, corpus, round)
        commit, payload = sent_in(replica, round)
        replica.apply(commit, [payload])
        assert len(payload) <= replica.payload_bytes_max
    replica.save(tmp_path / "state", position := Position(3, genesis_digest(RUN), 2))
    assert again.load(tmp_path / "state") == position
    assert again.digest == replica.digest
    assert replica.engine.entries.any()
    assert not again.engine.entries.any()


def sent_in(replica: DemoReplica, round: int) -> tuple[Commit, bytes]:
    """What it sends in a round, and the commit of that alone."""
    payload = encode(Header(RUN, round, OWN), replica.extract(round).coefficients, replica.shape)
    entry = Entry(OWN, sha256(payload), len(payload), 2, 1)
    return Commit(
        RUN, round, round, (entry,), *scalars(ScheduleSpec(), 100), genesis_digest(RUN)
    ), payload


def test_a_payload_with_the_k_of_another_run_counts_for_nothing(corpus: Corpus) -> None:
    replica, other = replica_of(), replica_of(top_k=40)
    train(other, corpus, 0)
    commit, payload = sent_in(other, 1)
    before = {name: tensor.clone() for name, tensor in replica.committed.items()}
    replica.apply(commit, [payload])
    decay = float32_value(commit.decay_bits)
    assert all(
        torch.equal(tensor, before[name] * decay) for name, tensor in replica.committed.items()
    )


def test_a_run_whose_largest_payloads_are_too_large_is_refused_by_the_field_to_lower() -> None:
    algorithm = AlgorithmSpec(name="demo", top_k=200)
    most = replica_of(top_k=200).payload_bytes_max
    rounds = RoundsSpec(payload_bytes_max=most - 1)
    spec = tiny_spec().model_copy(update={"algorithm": algorithm, "rounds": rounds})
    with pytest.raises(SettingsError, match=rf"reach {most} bytes, .* or lower algorithm.top_k$"):
        DemoReplica(spec, RUN, torch.device("cpu"), 1)

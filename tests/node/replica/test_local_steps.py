"""A replica with local steps: equal on every node, and nothing that was moved is lost or sent
twice.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from node.data.corpus import Corpus
from node.exact.engine import GradientError
from node.replica import local_steps
from node.replica.factory import replica_for
from node.replica.local_steps import LocalStepsReplica
from node.replica.position import Position
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, Entry, genesis_digest
from protocol.codec.payload import Header, sealed
from protocol.ids import PeerId, sha256
from protocol.runfile import AlgorithmSpec
from protocol.schedule import float32_bits
from tests.node.links.net import RUN
from tests.support.card import Card
from tests.support.tiny import tiny_corpus, tiny_spec

AUTHORS = [PeerId(f"{number:032x}") for number in range(1, 4)]
RATE_BITS = (float32_bits(0.01), float32_bits(1.0))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path_factory.mktemp("corpus")))


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"], autouse=True)
def weights(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """The type of the model's weights, whatever this machine is quick at."""
    monkeypatch.setattr(local_steps, "weights_dtype", lambda device, chunks: request.param)
    dtype: torch.dtype = request.param
    return dtype


def replica(overlap: int = 0, **algorithm: Any) -> LocalStepsReplica:
    settings = {"name": "local_steps", "top_k": 24, "local_samples": 2, **algorithm}
    spec = tiny_spec(overlap=overlap).model_copy(update={"algorithm": AlgorithmSpec(**settings)})
    found = replica_for(spec, RUN, torch.device("cpu"), 1)
    assert isinstance(found, LocalStepsReplica)
    return found


def work(
    replica: LocalStepsReplica, corpus: Corpus, part: int, pending: wire.Announced | None = None
) -> int:
    """A round of three steps, one of them cut short; returns the samples."""
    batches = [corpus.batch(part * 6 + first, 2, 32, 0) for first in (0, 2, 4)]
    passes = replica.begin(batches, pending, RATE_BITS)
    for _ in range(5):
        assert passes.next()
    samples = passes.finish().samples
    replica.accumulate()
    return samples


def sent(
    replica: LocalStepsReplica, round: int, author: PeerId, samples: int
) -> tuple[Entry, bytes, wire.Announced]:
    extraction, shape = replica.extract(round), replica.shape
    payload = sealed(Header(RUN, round, author), extraction.body(shape), shape)
    announced = wire.Announced(round=round, digest=sha256(payload), samples=samples)
    return Entry(author, sha256(payload), len(payload), samples, samples), payload, announced


def commit(round: int, *entries: Entry) -> Commit:
    return Commit(RUN, round, round, entries, *RATE_BITS, genesis_digest(RUN))


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within a step of bfloat16 and a rounded start, if that is what is found."""
    rtol, atol = (2**-6, 2**-10) if found.dtype == torch.bfloat16 else (1.3e-6, 1e-5)
    torch.testing.assert_close(found.float(), expected, rtol=rtol, atol=atol)


def test_replicas_that_trained_apart_are_equal_after_each_commit_and_learn(
    corpus: Corpus,
) -> None:
    nodes, verifier = [replica() for _ in range(3)], replica()
    validation = corpus.batch(500, 8, 32, 0)
    before = verifier.trainee.evaluate(validation)
    for round in range(6):
        made = [
            sent(node, round, AUTHORS[number], work(node, corpus, round * 3 + number))
            for number, node in enumerate(nodes)
        ]
        decided = commit(round, *(entry for entry, *_ in made))
        payloads = [payload for _, payload, _ in made]
        digests = {node.apply(decided, payloads) for node in (*nodes, verifier)}
        assert len(digests) == 1
    verifier.begin([], None, RATE_BITS)
    assert verifier.trainee.evaluate(validation) < before - 0.3


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_replica_that_is_started_again_has_the_parameters_and_begins_anew(
    corpus: Corpus, tmp_path: Path, overlap: int
) -> None:
    node, again, fresh = replica(overlap), replica(overlap), replica(overlap)
    entry, payload, _ = sent(node, 0, AUTHORS[0], work(node, corpus, 0))
    node.apply(commit(0, entry), [payload])
    work(node, corpus, 1)
    position = Position(1, genesis_digest(RUN), 0)
    node.save(tmp_path / "state", position)
    assert again.load(tmp_path / "state") == position
    assert again.digest == node.digest
    fresh.apply(commit(0, entry), [payload])
    fresh.engine.fade = again.engine.fade
    for each in (again, fresh):
        work(each, corpus, 2)
    assert torch.equal(again.engine.entries, fresh.engine.entries), "no residual, no optimizer"


def test_between_rounds_a_replica_holds_no_gradient_and_six_bytes_for_its_own_work(
    corpus: Corpus, weights: torch.dtype
) -> None:
    node = replica()
    work(node, corpus, 0)
    parameters = node.trainee.parameters
    assert {parameter.dtype for parameter in parameters.values()} == {weights}
    assert all(parameter.grad is None for parameter in parameters.values())
    assert node.engine.entries.dtype == torch.bfloat16
    assert {tensor.dtype for tensor in node.committed.values()} == {torch.float32}
    node.begin([], None, RATE_BITS)
    node.trainee.zero_gradients()
    gradients = [parameter.grad for parameter in parameters.values()]
    moments = [each for state in node._optimizer._state.values() for each in state.values()]
    on_device = [parameter.data for parameter in parameters.values()] + gradients + moments
    second_bytes = sum(
        4 * len(parameter) if parameter.ndim == 2 else 2 * parameter.numel()
        for parameter in (*node._optimizer._tables, *node._optimizer._vectors)
    )
    expected = (weights.itemsize + 2 + 2) * node.layout.parameters + second_bytes
    assert sum(tensor.nbytes for tensor in on_device if tensor is not None) == expected


def test_two_nodes_round_by_other_random_bits(corpus: Corpus) -> None:
    spec = replica()._spec
    nodes = [replica_for(spec, RUN, torch.device("cpu"), 1, author) for author in AUTHORS[:2]]
    for each in nodes:
        assert isinstance(each, LocalStepsReplica)
        work(each, corpus, 0)
    one, other = (each.engine.entries for each in nodes)
    assert not torch.equal(one, other)
    torch.testing.assert_close(one.float().norm(), other.float().norm(), rtol=0.1, atol=0)


def test_the_gain_of_the_run_is_a_factor_on_the_movement_of_several_authors(
    corpus: Corpus,
) -> None:
    nodes = [replica() for _ in range(2)]
    made = [
        sent(node, 0, AUTHORS[number], work(node, corpus, number))
        for number, node in enumerate(nodes)
    ]
    moved: dict[tuple[int, float], torch.Tensor] = {}
    for authors in (1, 2):
        for gain in (1.0, 2.5):
            judge = replica(gain=gain)
            before = torch.cat([t.flatten().clone() for t in judge.committed.values()])
            counted = made[:authors]
            judge.apply(commit(0, *(e for e, *_ in counted)), [p for _, p, _ in counted])
            after = torch.cat([t.flatten() for t in judge.committed.values()])
            moved[authors, gain] = after - before
    torch.testing.assert_close(moved[2, 2.5], 2.5 * moved[2, 1.0], rtol=1e-3, atol=1e-6)
    assert moved[2, 1.0].abs().sum() > 0
    assert torch.equal(moved[1, 2.5], moved[1, 1.0]), "an author alone has no mean"


def test_what_was_not_said_fades_unless_the_node_was_alone(corpus: Corpus) -> None:
    node, other = replica(fade=0.25), replica()
    ours, theirs = (
        sent(each, 0, author, work(each, corpus, part))
        for part, (each, author) in enumerate(zip((node, other), AUTHORS, strict=False))
    )
    for counted, left in (((ours, theirs), 0.25), ((ours,), 1.0)):
        node.apply(commit(0, *(e for e, *_ in counted)), [p for _, p, _ in counted])
        rest = node.engine.entries.clone()
        node.begin([], None, RATE_BITS)
        node.accumulate()  # nothing moved
        torch.testing.assert_close(node.engine.entries, left * rest)
    node.reset()
    assert node.engine.fade == 0.25


def test_a_scale_above_what_the_samples_allow_is_cut_by_every_replica(corpus: Corpus) -> None:
    node = replica()
    entry, payload, _ = sent(node, 0, AUTHORS[0], work(node, corpus, 0))
    fewer = replace(entry, weight=1, samples=1)
    moved = []
    for each in (entry, fewer):
        judge = replica(top_k=24)
        before = {name: tensor.clone() for name, tensor in judge.committed.items()}
        judge.apply(replace(commit(0, each), learning_rate_bits=float32_bits(1e-4)), [payload])
        moved.append(sum((judge.committed[name] - before[name]).square().sum() for name in before))
    assert 6.0 < float(moved[0] / moved[1]) < 13.5, "nine, but for steps of a fifth in scales"


def test_gradients_that_blow_up_leave_the_residual_and_the_committed_parameters(
    corpus: Corpus,
) -> None:
    node = replica()
    work(node, corpus, 0)
    residual, digest = node.engine.entries.clone(), node.digest
    passes = node.begin([corpus.batch(0, 2, 32, 0)], None, RATE_BITS)
    with torch.no_grad():
        next(iter(node.trainee.parameters.values())).fill_(float("inf"))
    while passes.next():
        pass
    with pytest.raises(GradientError):
        passes.finish()
    assert torch.equal(node.engine.entries, residual)
    assert node.digest == digest
    work(node, corpus, 1)
    assert node.engine.entries.isfinite().all(), "the next round begins at the committed ones"


def test_with_overlap_the_model_goes_on_from_its_own_steps_and_then_from_the_commit(
    corpus: Corpus,
) -> None:
    node = replica(overlap=1)
    working = node.trainee.parameters
    genesis = {name: tensor.clone() for name, tensor in node.committed.items()}
    entry, payload, pending = sent(node, 0, AUTHORS[0], work(node, corpus, 0))
    own = {name: parameter.detach().clone() for name, parameter in working.items()}
    batches = [corpus.batch(first, 2, 32, 0) for first in (20, 22)]
    passes = node.begin(batches, pending, RATE_BITS)
    assert all(torch.equal(own[name], parameter) for name, parameter in working.items())
    assert passes.next()
    assert passes.next()
    since = {name: (each.detach() - own[name]).float() for name, each in working.items()}
    node.apply(commit(0, entry), [payload])
    node.stand_at()
    for name, parameter in working.items():
        assert_near(parameter.detach(), node.committed[name] + since[name])
    residual = node.engine.entries.clone()
    passes.finish()
    node.accumulate()
    grown = node.engine.entries.float() - residual
    expected = node.layout.gather(since)
    torch.testing.assert_close(grown.square().sum(), expected.square().sum(), rtol=0.02, atol=1e-6)
    assert any(not torch.equal(node.committed[name], genesis[name]) for name in genesis)
    node.begin([], None, RATE_BITS)
    for name, parameter in working.items():
        assert torch.equal(node.committed[name].to(parameter.dtype), parameter)


def test_with_overlap_a_commit_that_comes_after_the_passes_is_taken_in_by_the_next_round(
    corpus: Corpus,
) -> None:
    node, other = replica(overlap=1), replica(overlap=1)
    entries = [
        sent(each, 0, author, work(each, corpus, part))
        for part, (each, author) in enumerate(zip((node, other), AUTHORS, strict=False))
    ]
    pending = entries[0][2]
    begun = {name: each.detach().clone() for name, each in node.trainee.parameters.items()}
    *_, next_pending = sent(node, 1, AUTHORS[0], work(node, corpus, 2, pending))
    working = {name: each.detach() for name, each in node.trainee.parameters.items()}
    moved = {name: (working[name] - begun[name]).float() for name in working}
    decided = commit(0, *(entry for entry, *_ in entries))
    node.apply(decided, [payload for _, payload, _ in entries])
    node.begin([], next_pending, RATE_BITS)
    for name, parameter in working.items():
        assert_near(parameter, node.committed[name] + moved[name])


def test_a_commit_that_is_applied_beside_a_pass_is_the_same_commit(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a card: the pass goes on while another thread changes the committed parameters."""
    node, verifier = replica(overlap=1), replica(overlap=1)
    assert not node.applies_beside
    node.trainee.queue = Card().queue()
    assert node.applies_beside
    entry, payload, announced = sent(node, 0, AUTHORS[0], work(node, corpus, 0))
    passes = node.begin([corpus.batch(6, 8, 32, 0)], announced, RATE_BITS)
    under_way, gradient = threading.Event(), node.trainee.gradient

    def awaited(piece: torch.Tensor) -> torch.Tensor:
        under_way.set()
        return gradient(piece)

    monkeypatch.setattr(node.trainee, "gradient", awaited)
    with ThreadPoolExecutor(1) as beside:
        made = beside.submit(lambda: [passes.next() for _ in range(8)])
        assert under_way.wait(10)
        digest = node.apply(commit(0, entry), [payload])
        assert made.result() == [True] * 8
    node.stand_at()
    assert passes.finish().samples == 8
    node.accumulate()
    assert digest == verifier.apply(commit(0, entry), [payload])
    again, further, _ = sent(node, 1, AUTHORS[0], 8)
    assert node.apply(commit(1, again), [further]) == verifier.apply(commit(1, again), [further])

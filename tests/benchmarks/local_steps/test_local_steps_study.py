"""The study of local steps does what nodes do, at equal bytes, and comes to an end."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from node.data.corpus import Corpus
from node.exact.local_steps.optimizer import LocalOptimizer
from node.exact.local_steps.residual import Residual
from node.model.training import TrainingModel
from node.replica import local_steps
from node.replica.factory import replica_for
from node.replica.local_steps import LocalStepsReplica
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, Entry, genesis_digest
from protocol.codec.payload import Coefficients, Header, PayloadShape, encode, sealed
from protocol.errors import SettingsError
from protocol.ids import PeerId, RunId, sha256
from protocol.runfile import AlgorithmSpec, ModelSpec, RoundsSpec, RunSpec
from protocol.schedule import scalars
from tests.benchmarks.headline.study import SEEDS, STEPS
from tests.benchmarks.local_steps.authors import Authors, dealt
from tests.benchmarks.local_steps.study import (
    AUTHOR_COUNTS,
    BLOCKS,
    DEFAULT,
    HORIZONS,
    LOCAL,
    WIDTHS,
    Arrival,
    Trial,
    best_rate,
    optimum,
    waiting,
)
from tests.benchmarks.local_steps.train import all_rows, found_in, trained, trial_of
from tests.benchmarks.parity.cells import Task
from tests.benchmarks.parity.local_steps import LocalStepsAuthors
from tests.benchmarks.parity.task import Fixture
from tests.support.tiny import tiny_corpus

TASK = Task(
    layers=1, hidden=32, sequence_length=32, batch_samples=4, validation_samples=8, point_steps=2
)
SAMPLES = 2
"""Of a local step, with two authors."""

RUN = RunId("0" * 32)
SMALL = Trial("local_steps", 0.02, 8, authors=2, local_steps=2, top_k=40)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path_factory.mktemp("corpus")))


def rounds(trial: Trial, corpus: Corpus) -> Authors:
    """The authors of a trial after its last round."""
    authors = Authors(trial, Fixture(TASK, trial.cell, corpus))
    for first in range(0, trial.steps, trial.local_steps):
        authors.round(first, trial.local_steps)
    return authors


def test_equal_speeds_at_once_are_the_local_steps_of_the_parity_study(corpus: Corpus) -> None:
    fixture = Fixture(TASK, SMALL.cell, corpus)
    theirs = LocalStepsAuthors(fixture)
    for _ in range(SMALL.steps):
        theirs.step()
    ours = rounds(SMALL, corpus)
    assert all(torch.equal(ours.committed[name], each) for name, each in theirs.committed.items())


@pytest.fixture
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that round nothing of their own, as the authors of the study."""

    def residual(*layout: Any, fade: float, value_bits: int, rounding: object) -> Residual:
        return Residual(*layout, fade=fade, value_bits=value_bits)

    def optimizer(model: nn.Module, parameters: Any, rounding: object) -> LocalOptimizer:
        return LocalOptimizer(model, parameters)

    def trainee(
        _: LocalStepsReplica, model: nn.Module, device: torch.device, samples: int
    ) -> TrainingModel:
        return TrainingModel(model, device, samples)

    monkeypatch.setattr(local_steps, "Residual", residual)
    monkeypatch.setattr(local_steps, "LightOptimizer", optimizer)
    monkeypatch.setattr(LocalStepsReplica, "_trainee", trainee)


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("arrival", ["at once", "half a round late", "a round late"])
def test_authors_of_unlike_speeds_do_what_replicas_of_a_run_do(
    corpus: Corpus, arrival: Arrival
) -> None:
    trial = replace(SMALL, speeds=(3, 1), arrival=arrival)
    ours, (node, verifier) = rounds(trial, corpus), by_replicas(trial, corpus)
    if arrival == "at once":
        assert all(torch.equal(ours.committed[n], each) for n, each in node.committed.items())
    assert node.digest == verifier.digest
    for name, tensor in node.committed.items():  # what was moved is counted with other roundings
        torch.testing.assert_close(ours.committed[name], tensor, rtol=0, atol=2e-4)


def by_replicas(trial: Trial, corpus: Corpus) -> list[LocalStepsReplica]:
    """The replicas of the authors after the same rounds, with commits as a coordinator makes
    them.
    """
    nodes, fixture = replicas(trial), Fixture(TASK, trial.cell, corpus)
    late, halfway = trial.arrival != "at once", trial.arrival == "half a round late"
    undecided: list[tuple[Commit, list[bytes]]] = []
    pending: list[wire.Announced | None] = [None] * len(nodes)

    def decide() -> None:
        decided = undecided.pop(0)
        for node in nodes:
            node.apply(*decided)

    for round, first in enumerate(range(0, trial.steps, trial.local_steps)):
        rate_bits = scalars(trial.cell.schedule, first)
        steps = range(first, first + trial.local_steps)
        batches = np.concatenate([fixture.samples(step) for step in steps])
        pieces = dealt(batches.reshape(-1, SAMPLES, TASK.sequence_length + 1), trial.speeds)
        passes = [
            node.begin(mine, before, rate_bits)
            for node, mine, before in zip(nodes, pieces, pending, strict=True)
        ]
        if undecided and halfway:
            for each, mine in zip(passes, pieces, strict=True):
                for _ in range(len(mine) // 2):
                    each.next()
            decide()
            for node in nodes:
                node.stand_at()
        entries, payloads = [], []
        for number, (node, each) in enumerate(zip(nodes, passes, strict=True)):
            while each.next():
                pass
            entry, payload, pending[number] = sent(node, number, round, each.finish().samples)
            entries.append(entry)
            payloads.append(payload)
        decided = Commit(RUN, round, round, tuple(entries), *rate_bits, genesis_digest(RUN))
        undecided.append((decided, payloads))
        while len(undecided) > late:
            decide()
    return nodes


def replicas(trial: Trial) -> list[LocalStepsReplica]:
    """One for each author, of a run that trains as the trial says."""
    overlap: Literal[0, 1] = 0 if trial.arrival == "at once" else 1
    spec = RunSpec(
        name="twin",
        seed=trial.seed,
        model=ModelSpec(config=TASK.config),
        algorithm=AlgorithmSpec(name="local_steps", top_k=trial.top_k, local_samples=SAMPLES),
        rounds=RoundsSpec(overlap=overlap, batch_samples_max=16),
    )
    nodes = [replica_for(spec, RUN, torch.device("cpu"), 4) for _ in range(trial.authors)]
    found = [node for node in nodes if isinstance(node, LocalStepsReplica)]
    assert len(found) == trial.authors
    return found


def sent(
    node: LocalStepsReplica, number: int, round: int, samples: int
) -> tuple[Entry, bytes, wire.Announced]:
    """What an author announces of the steps that it has made."""
    node.accumulate()
    peer, extraction, shape = PeerId(f"{number:032x}"), node.extract(round), node.shape
    payload = sealed(Header(RUN, round, peer), extraction.body(shape), shape)
    announced = wire.Announced(round=round, digest=sha256(payload), samples=samples)
    return Entry(peer, sha256(payload), len(payload), samples, samples), payload, announced


def test_a_commit_that_is_not_taken_in_leaves_authors_where_they_went_alone(
    corpus: Corpus,
) -> None:
    apart = [
        sum(
            float((author.working[name] - authors.committed[name]).square().sum())
            for author in authors.authors
            for name in authors.committed
        )
        for authors in (
            rounds(replace(SMALL, arrival=arrival), corpus)
            for arrival in ("a round late", "not taken in")
        )
    ]
    assert apart[0] < apart[1]


def test_pieces_are_dealt_in_turns_to_those_that_have_steps_left() -> None:
    pieces = np.arange(6).reshape(6, 1, 1)
    found = [[piece.item() for piece in mine] for mine in dealt(pieces, (3, 1, 2))]
    assert found == [[0, 3, 5], [1], [2, 4]]
    with pytest.raises(ValueError, match="longer"):
        dealt(pieces, (3, 3, 3))


@pytest.mark.parametrize(
    "unlike",
    [
        {"speeds": (5, 5)},
        {"speeds": (6, 5, 5, 5)},
        {"speeds": (20, 0, 0, 0)},
        {"speeds": (8, 6, 4, 2), "steps": 151},
    ],
)
def test_speeds_that_make_other_samples_are_refused(unlike: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"expected .*speeds"):
        replace(LOCAL, **unlike)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="expected the default at once"):
        replace(DEFAULT, arrival="not taken in")


def test_k_by_h_is_for_equal_bytes_of_a_step() -> None:
    generator = np.random.default_rng(0)

    def bytes_of(top_k: int) -> int:
        chunks = 40
        places = [np.sort(generator.choice(4096, top_k, replace=False)) for _ in range(chunks)]
        sent = Coefficients(
            np.full(chunks, top_k, np.uint16),
            np.concatenate(places).astype(np.uint16),
            np.ones(chunks * top_k, np.int16),
            np.full(chunks, 100, np.uint8),
        )
        shape = PayloadShape(chunks, top_k, 1, scaled=True)
        return len(encode(Header(RUN, 0, PeerId("0" * 32)), sent, shape))

    each = {steps: bytes_of(top_k) / steps for steps, top_k in HORIZONS.items()}
    assert all(size == pytest.approx(each[5], rel=0.03) for size in each.values()), each


def loss(trial: Trial) -> float:
    """A landscape with one best rate, which no sweep begins with."""
    return 3 + math.log(trial.rate / 0.2) ** 2 / 10


def test_the_study_ends_with_every_sweep_around_its_best_rate() -> None:
    found: dict[Trial, float] = {}
    while trial := waiting(found):
        found[trial] = loss(trial)
        assert len(found) < 300
    short = replace(LOCAL, steps=STEPS)
    for base in (
        *(replace(short, authors=authors) for authors in AUTHOR_COUNTS),
        *(replace(short, hidden=width) for width in WIDTHS),
    ):
        rates = sorted(each.rate for each in found if replace(each, rate=base.rate) == base)
        assert rates[0] < best_rate(found, base) < rates[-1]
        assert optimum(found, base) == pytest.approx(0.2)
    seeds = {trial.seed for trial in found if trial.local_steps == min(HORIZONS) == 2}
    assert seeds == set(SEEDS), "the first one of equals is the best H"
    assert waiting(found, ("widths",)) is None
    assert {trial.method for trial in found} == {"local_steps"}, "the former default is a record"
    assert waiting({}, ("widths",)) != waiting({}, ("speeds",))


def test_the_former_default_is_kept_and_not_trained(corpus: Corpus) -> None:
    for arrival in ("at once", "a round late"):
        trial = replace(DEFAULT, arrival=arrival)
        assert trial in found_in(all_rows())
        with pytest.raises(SettingsError, match="no longer trains it"):
            trained(trial, corpus)


def test_the_optimum_needs_a_worse_rate_on_both_sides() -> None:
    ends = {replace(LOCAL, rate=rate): loss(replace(LOCAL, rate=rate)) for rate in (0.05, 0.1)}
    assert optimum(ends, LOCAL) is None
    ends[replace(LOCAL, rate=0.4)] = math.inf
    assert optimum(ends, LOCAL) is None


def test_every_row_is_a_trial_that_is_trained_once() -> None:
    rows = all_rows()
    assert len(found_in(rows)) == len(rows)
    assert len({row["corpus"] for row in rows}) == 1
    possible = waiting({}) in {trial_of(row) for row in rows}
    assert possible, "the headline's cells are those that the study begins with"


def test_rows_of_the_headline_end_with_their_last_step(tmp_path: Path) -> None:
    rows = all_rows(tmp_path / "none.jsonl")
    assert rows
    assert all(row["points"][-1][0] == row["steps"] for row in rows)


def test_every_block_says_what_was_expected_of_it() -> None:
    assert all(block.expected for block in BLOCKS.values())

"""The benchmark of the audit of work: every kind of payload is judged at every audit."""

from dataclasses import replace
from pathlib import Path

import pytest

from node.data.corpus import Corpus
from tests.benchmarks.headline.study import cell
from tests.benchmarks.parity.cells import Task
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.work_audit import demo, local_steps
from tests.benchmarks.work_audit.results import summed_up
from tests.support.tiny import tiny_corpus

TASK = Task(layers=1, hidden=32, sequence_length=32, batch_samples=8, validation_samples=1)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path))


def test_each_kind_of_payload_is_judged_and_noise_agrees_in_half(corpus: Corpus) -> None:
    cell = demo.cell_of(authors=2, steps=4, top_k=8, seed=0)
    study = demo.Study(Fixture(TASK, cell, corpus), corpus.samples(32))
    for number in range(4):
        study.step(number, audited=number % 2 == 1)
    found = summed_up(study)["agreement"]
    assert found["honest"]["audits"] == 2 * 2
    assert all(found[kind]["audits"] == 2 for kind in demo.KINDS if kind != "honest")
    assert found["honest"]["least"] > found["noise"]["most"]
    assert found["noise"]["median"] == pytest.approx(0.5, abs=0.1)
    places = summed_up(study)["shared_places"]
    assert places["two honest authors"]["most"] < 1.0


def test_each_kind_of_local_steps_is_judged_and_copies_follow_another_movement(
    corpus: Corpus,
) -> None:
    small = replace(cell("local_steps", 0.02, 0, 8, 2), local_steps=2, top_k=64, warmup_steps=1)
    study = local_steps.LocalStudy(Fixture(TASK, small, corpus), corpus.samples(32))
    for number in range(4):
        study.step(number, audited=number % 2 == 1)
    document = summed_up(study)
    found = document["agreement"]
    assert found["honest"]["audits"] == 2 * 2
    assert all(found[kind]["audits"] == 2 for kind in local_steps.KINDS if kind != "honest")
    assert found["honest"]["least"] > found["noise"]["most"]
    assert found["noise"]["median"] == pytest.approx(0.5, abs=0.1)
    assert len(document["uneven_parts"]) == 2
    own = {
        kind: sum(row[1] for row in rows) / sum(row[2] for row in rows)
        for kind, rows in document["crossed"].items()
    }
    assert own["honest"] > 0.5 > own["copied"]

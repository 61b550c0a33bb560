"""The benchmark of the audit of work: every kind of payload is judged at every audit."""

from pathlib import Path

import pytest

from node.data.corpus import Corpus
from tests.benchmarks import work_audit
from tests.benchmarks.parity.cells import Task
from tests.benchmarks.parity.task import Fixture
from tests.support.tiny import tiny_corpus


def test_each_kind_of_payload_is_judged_and_noise_agrees_in_half(tmp_path: Path) -> None:
    tiny_corpus(tmp_path)
    corpus = Corpus.open(tmp_path)
    task = Task(layers=1, hidden=32, sequence_length=32, batch_samples=8, validation_samples=1)
    cell = work_audit.cell_of(authors=2, steps=4, top_k=8, seed=0)
    study = work_audit.Study(Fixture(task, cell, corpus), corpus.samples(32))
    for number in range(4):
        study.step(number, audited=number % 2 == 1)
    found = work_audit.summed_up(study)["agreement"]
    assert found["honest"]["audits"] == 2 * 2
    assert all(found[kind]["audits"] == 2 for kind in work_audit.KINDS if kind != "honest")
    assert found["honest"]["least"] > found["noise"]["most"]
    assert found["noise"]["median"] == pytest.approx(0.5, abs=0.1)
    places = work_audit.summed_up(study)["shared_places"]
    assert places["two honest authors"]["most"] < 1.0

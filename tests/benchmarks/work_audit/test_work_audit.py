"""The benchmark of the audit of work: every kind of payload is judged at every audit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from node.data.corpus import Corpus
from tests.benchmarks.headline.study import cell
from tests.benchmarks.parity.cells import Task
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.work_audit import demo, local_steps
from tests.benchmarks.work_audit.judged import accused, found_after, ratios
from tests.benchmarks.work_audit.machines import in_bfloat16, in_pieces
from tests.benchmarks.work_audit.measured import Measured
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
        kind: sum(sum(row[1::2]) for row in rows) / sum(sum(row[2::2]) for row in rows)
        for kind, rows in document["crossed"].items()
    }
    assert own["honest"] > 0.5 > own["copied"]


def test_machines_that_round_unlike_find_nearly_the_same_gradient(corpus: Corpus) -> None:
    small = replace(cell("local_steps", 0.02, 0, 8, 2), local_steps=2, top_k=64, warmup_steps=1)
    fixture = Fixture(TASK, small, corpus)
    samples = fixture.samples(0)

    def gradient(on: Fixture) -> Tensor:
        return torch.cat([g.flatten() for g in on.gradients(samples).values() if g is not None])

    whole = gradient(fixture)
    apart = [
        float((gradient(on) - whole).norm() / whole.norm())
        for on in (fixture, in_pieces(fixture, 4), in_bfloat16(fixture))
    ]
    assert apart[0] == 0 < apart[1] < 1e-5 < apart[2] < 0.1


def test_of_batches_of_one_sample_no_double_trains_a_part(corpus: Corpus) -> None:
    small = replace(cell("local_steps", 0.02, 0, 8, 8), local_steps=2, top_k=64, warmup_steps=1)
    study = local_steps.LocalStudy(Fixture(TASK, small, corpus), 64, without=["young"])
    assert {*study.doubles} == {*local_steps.DOUBLES} - {"young", "thin", "pieces"}


def test_the_judge_finds_in_a_measured_run_who_sends_noise_and_accuses_no_honest_author() -> None:
    random = np.random.default_rng(0)
    rows = [[step, *random.normal(0.65, 0.01, 4).round(4)] for step in range(32, 200, 8)]
    noise = [[step, 0.5] for step, *_ in rows]
    run = Measured(
        {
            "settings": {"top_k": 192, "authors": 4},
            "crossed": {},
            "by_step": {"honest": rows, "noise": noise},
        }
    )
    assert found_after(run, "noise", 5) == [3] * 5
    assert found_after(run, "honest", 5) == [None] * 5
    assert accused(run, 2000) == (0, 3200)
    found, audits = accused(run, 100, "noise")
    assert (found, audits) == (400 // 3, 400)
    assert ratios(run, "noise") == [[0] * len(noise)]

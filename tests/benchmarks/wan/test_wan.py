"""Curves that are really trained, and every method once over two shaped lines."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from node.data.corpus import Corpus
from tests.benchmarks.parity.cells import Task
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.wan import curves
from tests.benchmarks.wan.archive import Archive
from tests.benchmarks.wan.curves import (
    CURVES,
    DiLoCo,
    curve_path,
    load_curves,
    run_curves,
    steps_to,
    train_curve,
)
from tests.benchmarks.wan.links import Seen, Trial, run
from tests.benchmarks.wan.results import (
    measured,
    predicted,
)
from tests.lockstep.wan.lab.fixture import needs_ground
from tests.support.tiny import tiny_corpus

TASK = Task(
    layers=1, hidden=32, sequence_length=32, batch_samples=8, validation_samples=4, point_steps=2
)


# ---- the curves


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path_factory.mktemp("corpus")))


def test_steps_to_a_loss_are_those_of_its_first_point() -> None:
    points = [(0, 9.0), (10, 3.0), (20, 2.0), (30, 2.5)]
    assert steps_to(points, 2.5) == 20
    assert steps_to(points, 1.0) is None


def test_dilocos_parameters_move_only_when_the_workers_meet(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "INNER_STEPS", 2)
    fixture = Fixture(TASK, CURVES["diloco"].cell, corpus)
    genesis = {name: tensor.clone() for name, tensor in fixture.parameters.items()}
    diloco = DiLoCo(fixture)
    for moved in (False, True):
        diloco.step()
        diloco.stand_at_committed()
        for name, tensor in fixture.parameters.items():
            assert torch.equal(tensor, genesis[name]) is not moved, name
    for worker in diloco._workers:
        assert all(torch.equal(worker[name], tensor) for name, tensor in diloco._global.items())


def test_dilocos_first_outer_step_is_nesterovs_on_the_mean_of_the_workers(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "INNER_STEPS", 2)
    fixture = Fixture(TASK, CURVES["diloco"].cell, corpus)
    diloco = DiLoCo(fixture)
    diloco.step()
    monkeypatch.setattr(diloco, "_meet", lambda: None)
    before = {name: tensor.clone() for name, tensor in diloco._global.items()}
    diloco.step()
    monkeypatch.undo()
    means = {
        name: torch.stack([worker[name] for worker in diloco._workers]).mean(0) for name in before
    }
    diloco._meet()
    for name, tensor in diloco._global.items():
        expected = before[name] - 0.7 * (1 + 0.9) * (before[name] - means[name])
        torch.testing.assert_close(tensor, expected)


def test_every_rate_is_swept_and_the_best_goes_on(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "SWEEP_STEPS": 2,
        "STEPS_MAX": 4,
        "INNER_STEPS": 2,
        "TARGET_NATS": 0.1,
    }.items():
        monkeypatch.setattr(curves, name, value)
    monkeypatch.setitem(CURVES, "diloco", replace(CURVES["diloco"], point_steps=2))
    said: list[str] = []
    archive = Archive(tmp_path / "results.jsonl", tmp_path)
    run_curves(archive, corpus, TASK, say=said.append)
    trained = {name: curve for name, curve in CURVES.items() if not curve.cell.is_record}
    assert trained.keys() >= {"adamw", "muon", "diloco"}
    for name, curve in trained.items():
        result = json.loads((tmp_path / f"curve-{name}.json").read_text())
        assert [swept["rate"] for swept in result["swept"]] == list(curve.rates)
        assert max(step for step, _ in result["points"]) >= 4
        last = {swept["rate"]: swept["points"][1][1] for swept in result["swept"]}
        assert last[result["rate"]] == min(last.values())
        assert all(math.isfinite(loss) for _, loss in result["points"])
    assert len(said) == sum(len(curve.rates) + 1 for curve in trained.values())
    assert load_curves(archive).keys() == trained.keys()
    archive.merge()
    for known in (archive, Archive(archive.path, tmp_path / "none")):
        run_curves(known, corpus, TASK, say=lambda _: pytest.fail("trained again"))


def test_a_sweep_that_was_stopped_goes_on_with_the_next_rate_and_ends_as_if_it_had_not(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SWEEP_STEPS": 2, "STEPS_MAX": 4, "TARGET_NATS": 0.1}.items():
        monkeypatch.setattr(curves, name, value)
    whole, stopped = (
        Archive(tmp_path / f"{name}.jsonl", tmp_path / name) for name in ("whole", "stopped")
    )
    run_curves(whole, corpus, TASK, only=["adamw"], say=lambda _: None)

    def stop(_: str) -> None:
        raise KeyboardInterrupt

    for _ in CURVES["adamw"].rates:
        with pytest.raises(KeyboardInterrupt):
            run_curves(stopped, corpus, TASK, only=["adamw"], say=stop)
        assert load_curves(stopped) == {}
    run_curves(stopped, corpus, TASK, only=["adamw"], say=lambda _: None)
    ends = [
        json.loads(curve_path(archive.directory, "adamw").read_text())
        for archive in (whole, stopped)
    ]
    assert [{**end, "seconds": 0} for end in ends] == [{**ends[0], "seconds": 0}] * 2


def test_a_training_ends_at_the_target(tmp_path: Path, corpus: Corpus) -> None:
    path = curve_path(tmp_path, "adamw")
    train_curve("adamw", TASK, corpus, path, target_nats=100.0, say=lambda _: None)
    assert len(load_curves(Archive(tmp_path / "none.jsonl", tmp_path))["adamw"]) == 1


# ---- every method on shaped lines


def smoke(directory: Path, method: str, **changes: Any) -> tuple[Trial, Seen]:
    trial = Trial("cable", method, nodes=2, size="tiny", compute_s=0.05, limit_s=240.0)
    trial = Trial(**{name: getattr(trial, name) for name in Trial.__dataclass_fields__} | changes)
    found = run(trial, directory)
    for node in range(2):
        began_s, ended_s = found.notes[node][0].began_s, found.notes[node][-1].began_s
        assert found.crossed(node, began_s, ended_s + 60)[0] > 0
    return trial, found


@needs_ground
@pytest.mark.slow
def test_ddp_sends_its_gradients_over_the_lines(tmp_path: Path) -> None:
    trial, found = smoke(tmp_path, "ddp", steps=3)
    assert [len(notes) for notes in found.notes] == [4, 4]
    up, down = found.crossed(0, 0.0, math.inf)
    assert min(up, down) > 3 * predicted(trial).bytes
    assert measured(trial, found).seconds > trial.compute_s


@needs_ground
@pytest.mark.slow
def test_diloco_sends_nothing_until_its_outer_step(tmp_path: Path) -> None:
    trial, found = smoke(tmp_path, "diloco", steps=2)
    assert [[note.sync for note in notes] for notes in found.notes] == [
        [False, False, True, False]
    ] * 2
    up, _ = found.crossed(1, 0.0, math.inf)
    assert up > 50 * predicted(trial).bytes
    assert measured(trial, found).facts["sync_s"] > 0


@pytest.mark.slow
@needs_ground
def test_lockstep_trains_to_equal_digests_with_computing_stood_for(tmp_path: Path) -> None:
    trial, found = smoke(tmp_path, "demo-grpc", steps=6)
    assert (
        found.facts["rounds"],
        found.facts["digests_checked"],
        found.facts["digests_agreed"],
    ) == (6, 6, True)
    up, _ = found.crossed(0, 0.0, math.inf)
    assert up > 6 * found.facts["payload_bytes"]
    result = measured(trial, found)
    assert len(result.step_s) == 2
    assert result.arithmetic_s > 0
    assert 0 < result.computing_alone <= 1


@needs_ground
@pytest.mark.slow
def test_local_steps_make_equal_rounds_and_exchange_once_in_each(tmp_path: Path) -> None:
    trial, found = smoke(tmp_path, "lockstep-0-grpc-local5-k192", steps=20)
    assert (found.facts["rounds"], found.facts["digests_agreed"]) == (4, True)
    assert [len(notes) for notes in found.notes] == [19, 19], "the last step has no end"
    up, _ = found.crossed(0, 0.0, math.inf)
    assert up > 4 * found.facts["payload_bytes"]
    result = measured(trial, found)
    assert len(result.step_s) == 2
    assert result.seconds > trial.compute_s
    assert result.arithmetic_s > 0


@needs_ground
@pytest.mark.slow
def test_hivemind_averages_with_all_peers(tmp_path: Path) -> None:
    trial, found = smoke(
        tmp_path, "hivemind", steps=3, compute_s=2.0, matchmaking_s=3.0, averaging_s=30.0
    )
    assert found.facts["groups"].get("gradients, 2 peers", 0) >= 2
    assert measured(trial, found).seconds > trial.compute_s

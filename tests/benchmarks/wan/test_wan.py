"""The parts of the headline benchmark, and every method once over two shaped lines with a tiny network."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.wan.home_link import HomeLink, Way
from lockstep.wan.profiles import read_profiles
from node.data import Corpus
from node.model import build_model, named_parameters_once
from protocol.errors import DataError
from tests.benchmarks.engine.shapes import llama_20m
from tests.benchmarks.parity.cells import Task
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.wan import __main__ as wan
from tests.benchmarks.wan import curves
from tests.benchmarks.wan.curves import (
    CURVES,
    DiLoCo,
    curve_path,
    points_of,
    run_curves,
    steps_to,
    train_curve,
)
from tests.benchmarks.wan.links import Seen, Trial, group_sizes, interpolated, run, run_spec
from tests.benchmarks.wan.methods import METHODS
from tests.benchmarks.wan.model import CONFIGS, GradientPool, Notes, StandIn, StepNote, read_notes, shapes
from tests.benchmarks.wan.report import Row, csv_of, duration, rows, table_of, write_report
from tests.benchmarks.wan.results import Measurement, load_all, measured, parameters_of, predicted, save
from tests.benchmarks.wan.slow_motion import slow_motion
from tests.lockstep.wan.ground import needs_ground
from tests.tiny import tiny_corpus

TASK = Task(layers=1, hidden=32, sequence_length=32, batch_samples=8, validation_samples=4, point_steps=2)


# ---- the network and its gradients


def test_the_network_is_the_engine_benchmarks_llama() -> None:
    assert sorted(shapes(CONFIGS["20m"]).values()) == sorted(llama_20m().values())
    assert round(parameters_of("20m"), -5) == 20_500_000


def test_the_shapes_are_those_of_the_network_that_the_run_file_builds() -> None:
    config = CONFIGS["tiny"]
    built = named_parameters_once(build_model("llama", config))
    assert sorted(shapes(config).values()) == sorted(tuple(parameter.shape) for parameter in built.values())


def test_every_step_has_gradients_of_its_own_and_the_same_ones_again() -> None:
    pool = GradientPool(100, seed=1)
    steps = [torch.zeros(10, 10) for _ in range(3)]
    for gradient, step in zip(steps, (0, 1, 0), strict=True):
        pool.copy([gradient], step)
    assert not torch.equal(steps[0], steps[1])
    assert torch.equal(steps[0], steps[2])
    assert steps[0].count_nonzero() == 100


def test_a_stood_for_backward_leaves_the_pools_numbers_in_every_gradient() -> None:
    sizes = shapes(CONFIGS["tiny"])
    model = StandIn(sizes, compute_s=0.0, seed=3)
    model().backward()
    expected = [torch.empty(shape) for shape in sizes.values()]
    GradientPool(model.numbers, 3).copy(expected, 1)
    assert len(expected) == len(list(model.parameters()))
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        assert weight.grad is not None
        assert torch.equal(weight.grad, gradient)


def test_notes_on_disk_are_the_steps_and_where_the_last_one_ended(tmp_path: Path) -> None:
    notes = Notes.to(tmp_path / "notes")
    notes.next_step().compute_s = 1.5
    with notes.arithmetic():
        pass
    notes.next_step(sync=True)
    notes.close()
    first, second, end = read_notes(tmp_path / "notes")
    assert (first.compute_s, first.sync, second.sync) == (1.5, False, True)
    assert first.arithmetic_s > 0
    assert first.began_s <= second.began_s <= end.began_s


def test_a_step_that_is_abandoned_only_says_where_the_last_one_ended(tmp_path: Path) -> None:
    notes = Notes.to(tmp_path / "notes")
    whole, unfinished = notes.next_step(), notes.next_step()
    notes.abandon()
    assert read_notes(tmp_path / "notes") == [whole, unfinished]


def test_a_node_that_died_before_its_first_step_has_no_notes(tmp_path: Path) -> None:
    assert read_notes(tmp_path / "none") == []


# ---- predictions


def test_ddp_on_cable_is_predicted_to_send_143_megabytes_in_57_seconds() -> None:
    found = predicted(Trial("cable", "ddp"))
    assert found.bytes == pytest.approx(143e6, rel=0.01)
    assert found.seconds == pytest.approx(57.9, abs=0.1)


def test_lockstep_sends_seven_payloads_and_hides_them_with_overlap() -> None:
    late, hidden = (predicted(Trial("cable", f"lockstep-{overlap}-grpc")) for overlap in (0, 1))
    assert late.bytes == hidden.bytes == pytest.approx(7 * 187_000, rel=0.02)
    assert hidden.seconds == 2.0
    assert late.seconds == pytest.approx(2.0 + late.bytes / 2.5e6)


def test_a_line_that_is_slower_down_than_up_is_the_bound() -> None:
    link = HomeLink(Way(16_000_000), Way(8_000_000))
    assert predicted(Trial("cable", "ddp"), link).seconds == pytest.approx(143e6 / 1e6 + 2 / 3, rel=0.01)


def test_diloco_pays_for_an_all_reduce_once_in_fifty_steps() -> None:
    ddp, diloco = predicted(Trial("cable", "ddp")), predicted(Trial("cable", "diloco"))
    assert diloco.bytes == ddp.bytes / 50
    assert diloco.seconds == pytest.approx(2.0 + diloco.bytes / 2.5e6)


def test_a_trial_on_a_slow_line_makes_fewer_steps_or_is_left_out() -> None:
    known = {trial.name: trial for trial in wan.trials(8, "20m", 2.0)}
    assert known["cable-lockstep-1-grpc"].steps == 22
    assert 8 <= known["dsl-poor-lockstep-1-grpc"].steps < 22
    assert "dsl-poor-ddp" not in known
    assert "dsl-poor-diloco" not in known
    assert all(wan.trial_s(trial) <= wan.TRIAL_S_MAX for trial in known.values())


# ---- from notes and counters to a measurement


def crossed(node: int, from_s: float, until_s: float) -> tuple[float, float]:
    """A line on which 100 bytes a second go up, 10 more for each number of a node, and twice as many come down."""
    rate = 100 + 10 * node
    return rate * (until_s - from_s), 2 * rate * (until_s - from_s)


def seen(*notes: Sequence[StepNote]) -> Seen:
    return Seen(tuple(list(own) for own in notes), crossed, {"load": 1})


def steps(*lengths: float, compute_s: float = 2.0, arithmetic_s: float = 1.0, alone_s: float = 0.5) -> list[StepNote]:
    starts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    return [StepNote(start, compute_s, arithmetic_s, alone_s) for start in starts]


def test_warm_up_is_left_out_and_a_step_is_the_mean_over_nodes() -> None:
    found = measured(Trial("cable", "ddp", nodes=2, size="tiny"), seen(steps(50, 4, 6, 4), steps(50, 6, 6, 4)))
    assert found.step_s == (5.0, 6.0, 4.0)
    assert found.seconds == 5.0
    assert found.up_bytes == pytest.approx((100 * 14 / 3 + 110 * 16 / 3) / 2, abs=1)
    assert found.up_bytes_most == pytest.approx(110 * 16 / 3, abs=1)
    assert found.down_bytes == pytest.approx(2 * found.up_bytes, abs=1)
    assert found.computing == pytest.approx(3.0 / 5.0)
    assert found.computing_alone == pytest.approx(2.5 / 5.0)
    assert found.facts == {"load": 1}


def test_a_step_of_diloco_is_an_inner_one_and_a_fiftieth_of_the_outer_one() -> None:
    notes = steps(9, 2, 2, 100, arithmetic_s=0.0)
    notes[3] = StepNote(13.0, 0.0, 1.0, 0.5, sync=True)
    found = measured(Trial("cable", "diloco", nodes=1, size="tiny"), seen(notes))
    assert found.step_s == (4.0, 4.0)
    assert (found.up_bytes, found.down_bytes) == (200, 400)
    assert found.arithmetic_s == pytest.approx(0.02)
    assert found.computing == pytest.approx(2.02 / 4.0)
    assert found.facts["sync_s"] == 100


@pytest.mark.parametrize("method", ["ddp", "lockstep-1-grpc", "diloco"])
def test_too_few_steps_are_an_error_that_names_the_trial(method: str) -> None:
    with pytest.raises(DataError, match=f"cable-{method}"):
        measured(Trial("cable", method, nodes=2), seen(steps(1), steps(1, 1, 1, 1)))


def test_counters_between_two_readings_lie_on_a_straight_line() -> None:
    times, counts = [1.0, 2.0, 4.0], [(0, 0), (10, 100), (30, 100)]
    assert interpolated(times, counts, 1.5) == (5, 50)
    assert interpolated(times, counts, 3.0) == (20, 100)
    assert interpolated(times, counts, 0.0) == (0, 0)
    assert interpolated(times, counts, 9.0) == (30, 100)


def test_hiveminds_log_says_with_how_many_it_averaged(tmp_path: Path) -> None:
    (tmp_path / "node-0.log").write_text(
        "Nov 21 [INFO] Averaged gradients with 8 peers\nNov 21 [INFO] Averaged parameters with 7 peers\n"
        "Nov 21 [INFO] Proceeding with local gradients\n"
    )
    (tmp_path / "node-1.log").write_text("Nov 21 [INFO] Averaged gradients with 8 peers\nother\n")
    assert group_sizes(tmp_path) == {"gradients, 8 peers": 2, "parameters, 7 peers": 1, "failed": 1}


@pytest.mark.parametrize("overlap", [0, 1])
def test_the_run_gives_every_node_one_sample_of_the_global_batch(overlap: int) -> None:
    spec = run_spec(Trial("cable", f"lockstep-{overlap}-libp2p", nodes=8))
    assert spec.algorithm.update == "sign"
    assert (spec.rounds.batch_samples_max, spec.rounds.share_samples_first, spec.membership.start_members) == (8, 1, 8)
    assert spec.rounds.overlap == overlap


def test_a_trial_asks_its_methods_algorithm_of_the_run() -> None:
    for name, method in METHODS.items():
        algorithm = run_spec(Trial("cable", name)).algorithm
        assert (algorithm.update, algorithm.gradients) == (method.update, method.gradients)


# ---- the report


def measurement(method: str, step_s: float, profile: str = "cable", **changes: Any) -> Measurement:
    figures: dict[str, Any] = {
        "profile": profile,
        "method": method,
        "nodes": 8,
        "parameters": 20_000_000,
        "compute_s": 2.0,
        "step_s": (step_s - 0.5, step_s, step_s + 1.0),
        "up_bytes": 1e6,
        "down_bytes": 2e6,
        "up_bytes_most": 1e6,
        "computing": 0.9,
        "computing_alone": 0.8,
        "arithmetic_s": 1.0,
        "arithmetic_cpu_s": 0.3,
        "facts": {},
    }
    return Measurement(**figures | changes)


CURVE_POINTS = {
    "adamw": [(0, 9.0), (100, curves.TARGET_NATS)],
    "lockstep-1": [(0, 9.0), (100, 5.0), (200, curves.TARGET_NATS - 0.1)],
}


def test_time_to_the_loss_is_steps_times_seconds_and_is_compared_with_ddp() -> None:
    ddp, ours = rows([measurement("ddp", 60.0), measurement("lockstep-1-grpc", 3.0)], CURVE_POINTS)
    assert (ddp.steps, ddp.loss_s, ddp.times_less) == (100, 6000.0, 1.0)
    assert (ours.steps, ours.loss_s, ours.times_less) == (200, 600.0, 10.0)
    assert (ours.least_s, ours.step_s, ours.most_s) == (2.5, 3.0, 4.0)


def test_slow_motion_divides_what_was_measured_but_not_what_the_cores_did() -> None:
    trial = Trial("cable", "lockstep-0-grpc", nodes=1, size="tiny")
    notes = steps(50, 50, 8, 10, 8)
    life, slow = (measured(replace(trial, slowed=times), seen(notes)) for times in (1, 4))
    assert slow.step_s == pytest.approx([seconds / 4 for seconds in life.step_s], abs=1e-3)
    assert (slow.arithmetic_s, slow.arithmetic_cpu_s) == (life.arithmetic_s / 4, life.arithmetic_cpu_s)
    assert (slow.computing, slow.up_bytes) == (life.computing, life.up_bytes)
    (_, row) = rows([measurement("ddp", 60.0), measurement("lockstep-1-grpc", 3.0, slowed=4)], CURVE_POINTS)
    assert "lockstep-1-grpc (slowed 4 times)" in table_of([row])


def test_a_slowed_line_carries_less_and_later() -> None:
    link = read_profiles().profile("cable").link()
    slow = slow_motion(link, 4)
    assert link.up
    assert slow.up
    assert (slow.up.rate_bit_s, slow.up.delay_s) == (link.up.rate_bit_s // 4, 4 * link.up.delay_s)
    assert slow.up.loss == link.up.loss
    assert slow.up.queue_bytes == link.up.queue_bytes, "which are then as long in the time of slow motion"


def test_a_method_without_a_curve_has_no_time_to_the_loss() -> None:
    _, ours = rows([measurement("ddp", 60.0), measurement("lockstep-0-grpc", 3.0)], CURVE_POINTS)
    assert (ours.steps, ours.loss_s, ours.times_less) == (None, None, None)


def test_where_ddp_is_too_slow_to_be_measured_its_step_is_computed_and_said_to_be() -> None:
    ddp, ours = rows([measurement("lockstep-1-grpc", 30.0, "dsl-poor")], CURVE_POINTS)
    assert (ddp.method, ddp.how, ours.how) == ("ddp", "computed", "measured")
    assert ddp.step_s == pytest.approx(143.1e6 * 8 / 0.4e6, rel=0.01)
    assert "ddp (computed)" in table_of([ddp])
    assert ours.times_less is not None
    assert ours.times_less > 40


def test_every_method_follows_a_curve_that_is_trained_as_it_is() -> None:
    for name, method in METHODS.items():
        cell = CURVES[method.curve].cell
        assert (cell.overlap, cell.update) == (method.overlap, method.update), name
        if method.kind == "lockstep":
            assert (cell.gradients, cell.top_k) == (method.gradients, method.top_k), name


def test_the_report_is_a_table_a_csv_and_a_picture_for_each_setting(tmp_path: Path) -> None:
    for name, points in CURVE_POINTS.items():
        (tmp_path / f"curve-{name}.json").write_text(json.dumps({"points": points}))
    short = [measurement(name, seconds, compute_s=0.5) for name, seconds in (("ddp", 59.0), ("hivemind", 80.0))]
    found = [measurement("ddp", 60.0), measurement("lockstep-1-grpc", 3.0), *short]
    table = write_report(tmp_path, found)
    assert (tmp_path / "table.md").read_text() == table
    assert {line.count("|") for line in table.splitlines()} == {table.splitlines()[0].count("|")}
    header, *lines = (tmp_path / "measurements.csv").read_text().splitlines()
    assert header.split(",") == list(Row.__dataclass_fields__)
    assert [line.split(",")[2] for line in lines] == ["ddp", "lockstep-1-grpc", "ddp", "hivemind"]
    for picture in ("cable.png", "cable-compute0.5.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_unknown_figures_are_empty_cells() -> None:
    (row,) = rows([measurement("ddp", 60.0)], {})
    assert csv_of([row]).splitlines()[1].endswith(",,,")


@pytest.mark.parametrize(("seconds", "text"), [(90, "90 s"), (600, "10.0 min"), (36_000, "10.0 h")])
def test_a_duration_is_in_the_unit_that_a_person_would_choose(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_measurements_come_back_from_disk_in_the_order_of_methods_and_other_files_are_passed_over(
    tmp_path: Path,
) -> None:
    for method in ("lockstep-1-grpc", "ddp"):
        save(tmp_path, Trial("cable", method), measurement(method, 3.0))
    (tmp_path / "curve-adamw.json").write_text('{"points": []}')
    (tmp_path / "links-cable.json").write_text("[]")
    assert load_all(tmp_path) == [measurement("ddp", 3.0), measurement("lockstep-1-grpc", 3.0)]


def test_a_file_that_is_no_measurement_is_named(tmp_path: Path) -> None:
    (tmp_path / "cable-ddp.json").write_text('{"step_s": [1], "colour": "red"}')
    with pytest.raises(DataError, match=r"cable-ddp\.json"):
        load_all(tmp_path)


def test_what_is_there_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("ddp", "diloco"):
        save(tmp_path, Trial("cable", method), measurement(method, 60.0))
    monkeypatch.setattr(wan, "unable", lambda: "")
    monkeypatch.setattr(wan, "run", lambda *_: pytest.fail("measured again"))
    asked = ["--compute-seconds", "2", "--results", str(tmp_path)]
    wan.main(["--only", "cable-ddp", "--only", "cable-d*", *asked, "--json", str(tmp_path / "out.json")])
    document = json.loads((tmp_path / "out.json").read_text())
    assert [row["method"] for row in document["rows"]] == ["ddp", "diloco"]
    wan.main(["--only", "cable-d*", "--only", "cable-h*", "--list", *asked])
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["done", "waits", "done"]


def test_a_trial_that_fails_is_named_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(trial: Trial, _: Path) -> Seen:
        if trial.method == "ddp":
            raise TimeoutError("expected its end")
        return seen(*[steps(2.0, 2.0, 3.0)] * trial.nodes)

    monkeypatch.setattr(wan, "unable", lambda: "")
    monkeypatch.setattr(wan, "run", failing)
    (tmp_path / "links-cable.json").write_text("[]")
    assert wan.main(["--only", "cable-ddp", "--only", "cable-hivemind", "--results", str(tmp_path)]) == 1
    assert "cable-ddp failed: expected its end" in capsys.readouterr().err
    assert [(one.method, one.step_s) for one in load_all(tmp_path)] == [("hivemind", (2.0, 3.0))]


# ---- the curves


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path_factory.mktemp("corpus")))


def test_the_first_step_that_low_counts() -> None:
    points = [(0, 9.0), (10, 3.0), (20, 2.0), (30, 2.5)]
    assert steps_to(points, 2.5) == 20
    assert steps_to(points, 1.0) is None


def test_dilocos_parameters_move_only_when_the_workers_meet(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
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
    means = {name: torch.stack([worker[name] for worker in diloco._workers]).mean(0) for name in before}
    diloco._meet()
    for name, tensor in diloco._global.items():
        expected = before[name] - 0.7 * (1 + 0.9) * (before[name] - means[name])
        torch.testing.assert_close(tensor, expected)


def test_every_rate_is_swept_and_the_best_goes_on(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SWEEP_STEPS": 2, "STEPS_MAX": 4, "INNER_STEPS": 2, "TARGET_NATS": 0.1}.items():
        monkeypatch.setattr(curves, name, value)
    monkeypatch.setitem(CURVES, "diloco", replace(CURVES["diloco"], point_steps=2))
    said: list[str] = []
    run_curves(tmp_path, corpus, TASK, say=said.append)
    for name, curve in CURVES.items():
        result = json.loads((tmp_path / f"curve-{name}.json").read_text())
        assert [swept["rate"] for swept in result["swept"]] == list(curve.rates)
        assert max(step for step, _ in result["points"]) >= 4
        last = {swept["rate"]: swept["points"][1][1] for swept in result["swept"]}
        assert last[result["rate"]] == min(last.values())
        assert all(math.isfinite(loss) for _, loss in result["points"])
    assert len(said) == sum(len(curve.rates) + 1 for curve in CURVES.values())
    run_curves(tmp_path, corpus, TASK, say=lambda _: pytest.fail("trained again"))


def test_a_sweep_that_was_stopped_goes_on_with_the_next_rate_and_ends_as_if_it_had_not(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SWEEP_STEPS": 2, "STEPS_MAX": 4, "TARGET_NATS": 0.1}.items():
        monkeypatch.setattr(curves, name, value)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for directory in (whole, stopped):
        directory.mkdir()
    run_curves(whole, corpus, TASK, only=["lockstep-0"], say=lambda _: None)

    def stop(_: str) -> None:
        raise KeyboardInterrupt

    for _ in CURVES["lockstep-0"].rates:
        with pytest.raises(KeyboardInterrupt):
            run_curves(stopped, corpus, TASK, only=["lockstep-0"], say=stop)
        assert not points_of(curve_path(stopped, "lockstep-0"))
    run_curves(stopped, corpus, TASK, only=["lockstep-0"], say=lambda _: None)
    ends = [json.loads(curve_path(directory, "lockstep-0").read_text()) for directory in (whole, stopped)]
    assert [{**end, "seconds": 0} for end in ends] == [{**ends[0], "seconds": 0}] * 2


def test_a_training_ends_at_the_target(tmp_path: Path, corpus: Corpus) -> None:
    path = tmp_path / "curve.json"
    train_curve("adamw", TASK, corpus, path, target_nats=100.0, say=lambda _: None)
    assert len(points_of(path)) == 1


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
    assert [[note.sync for note in notes] for notes in found.notes] == [[False, False, True, False]] * 2
    up, _ = found.crossed(1, 0.0, math.inf)
    assert up > 50 * predicted(trial).bytes
    assert measured(trial, found).facts["sync_s"] > 0


@needs_ground
@pytest.mark.parametrize("method", [pytest.param("lockstep-0-libp2p", marks=pytest.mark.slow), "lockstep-1-grpc"])
def test_lockstep_trains_to_equal_digests_with_computing_stood_for(tmp_path: Path, method: str) -> None:
    trial, found = smoke(tmp_path, method, steps=6)
    assert (found.facts["rounds"], found.facts["digests_checked"], found.facts["digests_agreed"]) == (6, 6, True)
    up, _ = found.crossed(0, 0.0, math.inf)
    assert up > 6 * found.facts["payload_bytes"]
    result = measured(trial, found)
    assert len(result.step_s) == 2
    assert result.arithmetic_s > 0
    assert 0 < result.computing_alone <= 1


@needs_ground
@pytest.mark.slow
def test_hivemind_averages_with_everybody(tmp_path: Path) -> None:
    trial, found = smoke(tmp_path, "hivemind", steps=3, compute_s=2.0, matchmaking_s=3.0, averaging_s=30.0)
    assert found.facts["groups"].get("gradients, 2 peers", 0) >= 2
    assert measured(trial, found).seconds > trial.compute_s

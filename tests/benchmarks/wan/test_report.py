"""Measurements on disk, the report made of them, and the command."""

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from lockstep.wan.profiles import read_profiles
from protocol.errors import DataError
from tests.benchmarks.wan import __main__ as wan
from tests.benchmarks.wan import curves
from tests.benchmarks.wan.archive import Archive
from tests.benchmarks.wan.curves import (
    CURVES,
    load_curves,
)
from tests.benchmarks.wan.links import Seen, Trial
from tests.benchmarks.wan.methods import DENSE, METHODS
from tests.benchmarks.wan.report import Row, csv_of, duration, rows, table_of, write_report
from tests.benchmarks.wan.results import (
    Measurement,
    load_all,
    measured,
    save,
)
from tests.benchmarks.wan.slow_motion import slow_motion
from tests.benchmarks.wan.test_results import seen, steps


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


def test_ddp_with_muon_makes_the_steps_of_its_own_curve_and_takes_its_own_arithmetic() -> None:
    known = CURVE_POINTS | {"muon": [(0, 9.0), (50, curves.TARGET_NATS)]}
    ddp, muon, ours = rows(
        [measurement("ddp", 60.0), measurement("lockstep-1-grpc", 3.0)], known, muon_more_s=2.0
    )
    assert (muon.method, muon.how, muon.step_s, muon.steps) == ("ddp-muon", "computed", 62.0, 50)
    assert (muon.loss_s, muon.up_bytes) == (3100.0, ddp.up_bytes)
    assert (ours.times_less, ours.times_less_muon) == (10.0, pytest.approx(3100 / 600))
    assert len(rows([measurement("ddp", 60.0)], CURVE_POINTS, muon_more_s=2.0)) == 1


def test_slow_motion_divides_measured_times_but_not_core_times() -> None:
    trial = Trial("cable", "lockstep-0-grpc", nodes=1, size="tiny")
    notes = steps(50, 50, 8, 10, 8)
    life, slow = (measured(replace(trial, slowed=times), seen(notes)) for times in (1, 4))
    assert slow.step_s == pytest.approx([seconds / 4 for seconds in life.step_s], abs=1e-3)
    assert (slow.arithmetic_s, slow.arithmetic_cpu_s) == (
        life.arithmetic_s / 4,
        life.arithmetic_cpu_s,
    )
    assert (slow.computing, slow.up_bytes) == (life.computing, life.up_bytes)
    (_, row) = rows(
        [measurement("ddp", 60.0), measurement("lockstep-1-grpc", 3.0, slowed=4)], CURVE_POINTS
    )
    assert "lockstep-1-grpc (slowed 4 times)" in table_of([row])


def test_a_slowed_line_carries_less_and_later() -> None:
    link = read_profiles().profile("cable").link()
    slow = slow_motion(link, 4)
    assert link.up
    assert slow.up
    assert (slow.up.rate_bit_s, slow.up.delay_s) == (link.up.rate_bit_s // 4, 4 * link.up.delay_s)
    assert slow.up.loss == link.up.loss
    assert slow.up.queue_bytes == link.up.queue_bytes, (
        "which are then as long in the time of slow motion"
    )


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
    for name, method in (METHODS | DENSE).items():
        cell = CURVES[method.curve].cell
        assert (cell.overlap, cell.update) == (method.overlap, method.update), name
        if method.local_steps:
            assert (cell.local_steps, cell.top_k) == (method.local_steps, method.top_k), name
        elif method.kind == "lockstep":
            assert (cell.gradients, cell.top_k) == (method.gradients, method.top_k), name


def test_the_report_is_a_table_a_csv_and_a_figure_for_each_setting(tmp_path: Path) -> None:
    short = [
        measurement(name, seconds, compute_s=0.5)
        for name, seconds in (("ddp", 59.0), ("hivemind", 80.0))
    ]
    found = [measurement("ddp", 60.0), measurement("lockstep-1-grpc", 3.0), *short]
    table = write_report(tmp_path, rows(found, CURVE_POINTS), CURVE_POINTS)
    assert (tmp_path / "table.md").read_text() == table
    assert {line.count("|") for line in table.splitlines()} == {table.splitlines()[0].count("|")}
    header, *lines = (tmp_path / "measurements.csv").read_text().splitlines()
    assert header.split(",") == list(Row.__dataclass_fields__)
    assert [line.split(",")[2] for line in lines] == ["ddp", "lockstep-1-grpc", "ddp", "hivemind"]
    for figure in ("cable.svg", "cable-compute0.5.svg"):
        assert b"<svg" in (tmp_path / figure).read_bytes()


def test_unknown_figures_are_empty_cells() -> None:
    (row,) = rows([measurement("ddp", 60.0)], {})
    assert csv_of([row]).splitlines()[1].endswith(",,,")


@pytest.mark.parametrize(("seconds", "text"), [(90, "90 s"), (600, "10.0 min"), (36_000, "10.0 h")])
def test_a_duration_is_in_the_unit_that_a_person_would_choose(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def archive_in(directory: Path) -> Archive:
    """An archive, empty at first."""
    (directory / "work").mkdir()
    return Archive(directory / "results.jsonl", directory / "work")


def test_measurements_come_back_in_the_order_of_methods_beside_curves_and_lines(
    tmp_path: Path,
) -> None:
    archive = archive_in(tmp_path)
    expected = [measurement("ddp", 3.0), measurement("lockstep-1-grpc", 0.1 + 0.2)]
    for one in reversed(expected):
        save(archive.directory, Trial("cable", one.method), one)
    (archive.directory / "curve-adamw.json").write_text('{"points": [[0, 9.1], [10, 2.5]]}')
    (archive.directory / "curve-diloco.json").write_text('{"swept": []}')
    (archive.directory / "links-cable.json").write_text("[]")
    archive.merge()
    for kept in (archive, Archive(archive.path, tmp_path / "none")):
        assert load_all(kept) == expected
        assert load_curves(kept) == {"adamw": [(0, 9.1), (10, 2.5)]}
        assert list(kept.documents()) == sorted(kept.documents())
        assert len(kept.documents()) == 5


def test_a_new_document_replaces_a_merged_one(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    for seconds in (3.0, 2.0):
        save(archive.directory, Trial("cable", "ddp"), measurement("ddp", seconds))
        archive.merge()
    assert load_all(Archive(archive.path, tmp_path / "none")) == [measurement("ddp", 2.0)]


def test_a_document_that_is_no_measurement_is_named(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    (archive.directory / "cable-ddp.json").write_text('{"step_s": [1], "colour": "red"}')
    with pytest.raises(DataError, match=r"cable-ddp: expected a measurement"):
        load_all(archive)
    (archive.directory / "cable-ddp.json").write_text("{")
    with pytest.raises(DataError, match=r"cable-ddp\.json: expected JSON"):
        archive.documents()
    archive.path.write_text('{"name": "cable-ddp"}\n')
    with pytest.raises(DataError, match=r"results\.jsonl, line 1: expected a name and a document"):
        archive.documents()


def test_committed_results_are_the_default_trials_their_lines_and_all_curves() -> None:
    committed = Archive(Path("docs/results/data/wan.jsonl"), Path("/nonexistent"))
    names = [
        trial.name
        for compute_s in wan.PASSES_S
        for trial in wan.trials(8, "20m", compute_s)
        if any(fnmatchcase(trial.name, pattern) for pattern in wan.DEFAULT)
    ]
    others = [f"curve-{name}" for name in CURVES]
    others += [curves.ARITHMETIC, "links-cable", "links-dsl-poor"]
    assert sorted(committed.documents()) == sorted(names + others)
    assert len(load_all(committed)) == len(names)
    assert load_curves(committed).keys() == CURVES.keys()


def test_known_trials_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = archive_in(tmp_path)
    for method in ("ddp", "diloco"):
        save(archive.directory, Trial("cable", method), measurement(method, 60.0))
        archive.merge()
    (archive.directory / "cable-ddp.json").unlink()
    monkeypatch.setattr(wan, "unable", lambda: "")
    monkeypatch.setattr(wan, "run", lambda *_: pytest.fail("measured again"))
    places = ["--results", str(archive.path), "--work", str(archive.directory)]
    asked = ["--compute-seconds", "2", *places]
    wan.main(
        ["--only", "cable-ddp", "--only", "cable-d*", *asked, "--json", str(tmp_path / "out.json")]
    )
    document = json.loads((tmp_path / "out.json").read_text())
    assert [row["method"] for row in document["rows"]] == ["ddp", "diloco"]
    wan.main(["--only", "cable-d*", "--only", "cable-h*", "--list", *asked])
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [
        "done",
        "waits",
        "done",
    ]


def test_a_trial_that_fails_is_named_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(trial: Trial, _: Path) -> Seen:
        if trial.method == "ddp":
            raise TimeoutError("expected its end")
        return seen(*[steps(2.0, 2.0, 3.0)] * trial.nodes)

    monkeypatch.setattr(wan, "unable", lambda: "")
    monkeypatch.setattr(wan, "run", failing)
    archive = archive_in(tmp_path)
    (archive.directory / "links-cable.json").write_text("[]")
    places = ["--results", str(archive.path), "--work", str(archive.directory)]
    assert wan.main(["--only", "cable-ddp", "--only", "cable-hivemind", *places]) == 1
    assert "cable-ddp failed: expected its end" in capsys.readouterr().err
    assert [(one.method, one.step_s) for one in load_all(archive)] == [("hivemind", (2.0, 3.0))]

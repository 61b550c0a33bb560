"""Results of the parity study: which cells a sweep has, where they are kept, what a report says of
them.
"""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lockstep.presets import run_of
from protocol.errors import DataError
from tests.benchmarks.parity import __main__ as parity
from tests.benchmarks.parity.cells import FORMER, PUBLISHED, Cell, Task
from tests.benchmarks.parity.report import pictured, settings_of, write_report
from tests.benchmarks.parity.results import (
    Point,
    Result,
    in_order,
    load,
    load_all,
    merge,
    read_results,
    result_path,
    save,
)
from tests.benchmarks.parity.sweeps import SWEEPS
from tests.benchmarks.parity.train import run_cells

TASK = Task(
    layers=1, hidden=32, sequence_length=32, batch_samples=4, validation_samples=8, point_steps=2
)
CELL = Cell("demo", 0.01, 5, top_k=16, authors=2, warmup_steps=1, weight_decay=0.1)


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_no_two_cells_of_a_sweep_share_a_name(name: str) -> None:
    names = [cell.name for cell in SWEEPS[name].cells()]
    titles = [(cell.title, cell.steps) for cell in SWEEPS[name].cells()]
    assert len(names) == len(set(names)) == len(set(titles))
    assert not [name for name in names if set(name) & set("/\\ *?[")]


def test_sweeps_that_share_a_file_have_unlike_tasks_or_cells() -> None:
    of_file: dict[str, list[tuple[Task, str]]] = {}
    for sweep in SWEEPS.values():
        of_file.setdefault(sweep.results, []).extend(
            (sweep.task, cell.name) for cell in sweep.cells()
        )
    assert all(len(found) == len(set(found)) for found in of_file.values())


@pytest.mark.parametrize("path", sorted({sweep.results for sweep in SWEEPS.values()}))
def test_committed_results_are_those_of_their_sweeps_cells_and_no_others(path: str) -> None:
    sweeps = [sweep for sweep in SWEEPS.values() if sweep.results == path]
    results = read_results(Path(path))
    expected = [(sweep.task, cell) for sweep in sweeps for cell in sweep.cells()]
    assert len(results) == len(expected)
    assert {(result.task, result.cell) for result in results} == set(expected)
    assert not [result.cell.name for result in results if result.failure]
    assert results == in_order(results)
    assert len({result.corpus for result in results}) == 1


def test_the_published_rule_is_what_a_run_file_of_demo_says() -> None:
    usual = run_of("demo").algorithm.model_dump()
    ours = {field: value for field, value in asdict(PUBLISHED).items() if field in usual}
    assert ours == {field: usual[field] for field in ours}
    assert ours.keys() >= {"top_k", "value_bits", "momentum_decay"}


def test_a_title_names_the_differences_from_the_former_default() -> None:
    assert FORMER.title == "demo 0.003"
    assert (
        replace(FORMER, top_k=8, authors=8, seed=1).title
        == "demo 0.003, top_k 8, authors 8, seed 1"
    )
    assert CELL.title.startswith(
        "demo 0.01, weight_decay 0.1, top_k 16, update sign, gradients plain, recency 0.0"
    )
    assert Cell("adamw", 0.006, 600).title == "adamw 0.006"


def test_a_name_holds_every_field_that_is_not_the_default() -> None:
    assert Cell("demo", 0.004, 600).name == "demo-lr0.004-n600"
    odd = Cell("adamw", 0.006, 600, adam_decays=(0.9, 0.99), seed=2)
    assert odd.name == "adamw-lr0.006-n600-adam_decays=0.9+0.99-seed=2"


def made_up(cell: Cell, bits_per_byte: float, failure: str = "") -> Result:
    points = Point(0, 0, 8.0, 0, 0), Point(cell.steps, 100, bits_per_byte, 1000, 3000)
    return Result(cell, TASK, "c0", 10_000, 1.0, "a machine", points, failure)


def test_a_result_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    result = made_up(CELL, 2.5)
    save(tmp_path, result)
    assert load(result_path(tmp_path, CELL)) == result


@pytest.mark.parametrize("name", ["results.jsonl", "results.jsonl.xz"])
def test_merged_results_come_back_in_order_beside_those_of_other_tasks(
    tmp_path: Path, name: str
) -> None:
    path, seeds = (
        tmp_path / name,
        [made_up(replace(CELL, seed=seed), 0.1 + 0.2 * seed) for seed in (2, 0, 1)],
    )
    wider = replace(seeds[0], task=replace(TASK, hidden=64))
    merge(path, [*seeds, wider])
    assert load_all(path, tmp_path, TASK) == sorted(seeds, key=lambda result: result.cell.name)
    assert load_all(path, tmp_path, wider.task) == [wider]
    better = made_up(CELL, 0.05)
    merge(path, [better])
    assert better in load_all(path, tmp_path, TASK)
    assert len(read_results(path)) == 4


def test_a_newly_trained_cell_replaces_a_merged_one(tmp_path: Path) -> None:
    path, cells = tmp_path / "results.jsonl", tmp_path / "cells"
    merge(path, [made_up(CELL, 2.5), made_up(replace(CELL, seed=1), 2.6)])
    save(cells, made_up(CELL, 2.4))
    assert sorted(result.last.bits_per_byte for result in load_all(path, cells, TASK)) == [2.4, 2.6]


def test_results_are_refused_by_name(tmp_path: Path) -> None:
    path, cells = tmp_path / "results.jsonl", tmp_path / "cells"
    save(cells, replace(made_up(replace(CELL, seed=1), 2.5), task=replace(TASK, hidden=64)))
    with pytest.raises(DataError, match=r"expected results of .*, got .*seed=1.* of Task"):
        load_all(path, cells, TASK)
    merge(path, [made_up(CELL, 2.5), replace(made_up(replace(CELL, seed=2), 2.5), corpus="c1")])
    with pytest.raises(DataError, match=r"expected results of one corpus, got .*seed=2.* of c1"):
        load_all(path, tmp_path / "none", TASK)
    (tmp_path / "odd.json").write_text("[]")
    with pytest.raises(DataError, match=r"odd\.json: expected a result of this study"):
        load(tmp_path / "odd.json")
    path.write_text("{}\n")
    with pytest.raises(DataError, match=r"results\.jsonl, line 1: expected a result of this study"):
        read_results(path)


def test_a_cell_in_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    save(tmp_path, made_up(CELL, 2.5))
    result_path(tmp_path, CELL).rename(tmp_path / "other.json")
    with pytest.raises(DataError, match=r"other\.json: expected a cell of this name"):
        load(tmp_path / "other.json")


def test_a_stopped_sweep_continues_with_the_cells_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    merged, trained_since, *waiting = (
        cell for cell in SWEEPS["study"].cells() if cell.method == "adamw"
    )
    path, cells = tmp_path / "results.jsonl", tmp_path / "cells"
    study = SWEEPS["study"].task
    merge(path, [replace(made_up(merged, 2.0), task=study)])
    save(cells / "study", replace(made_up(trained_since, 2.1), task=study))
    started: list[Cell] = []
    monkeypatch.setattr(parity, "run_cells", lambda cells, *_, **__: started.extend(cells))
    asked = [
        "--only",
        "adamw-*",
        "--results",
        str(path),
        "--cells",
        str(cells),
        "--reports",
        str(tmp_path / "reports"),
    ]
    parity.main([*asked, "--list"])
    lines = [
        f"done  {merged.name}",
        f"done  {trained_since.name}",
        *(f"waits {cell.name}" for cell in waiting),
    ]
    assert capsys.readouterr().out.splitlines() == lines
    assert not started
    parity.main(asked)
    assert started == waiting
    parity.main([*asked, "--report"])
    assert {result.cell for result in read_results(path)} == {merged, trained_since}
    assert (
        "2 cells, 0.0 hours of one core."
        in (tmp_path / "reports" / "study" / "table.md").read_text()
    )


def test_records_never_wait_and_are_listed_where_they_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, *_ = (cell for cell in SWEEPS["tries"].cells() if cell.is_record)
    waiting = [cell for cell in SWEEPS["tries"].cells() if not cell.is_record]
    assert PUBLISHED in waiting
    path = tmp_path / "results.jsonl"
    merge(path, [replace(made_up(record, 2.0), task=SWEEPS["tries"].task)])
    started: list[Cell] = []
    monkeypatch.setattr(parity, "run_cells", lambda cells, *_, **__: started.extend(cells))
    asked = ["--set", "tries", "--results", str(path), "--cells", str(tmp_path)]
    parity.main([*asked, "--list"])
    listed = capsys.readouterr().out.splitlines()
    assert sorted(listed) == sorted(
        [f"done  {record.name}", *(f"waits {cell.name}" for cell in waiting)]
    )
    parity.main(asked)
    assert started == waiting


@pytest.mark.slow
def test_a_sweep_trains_its_cells_in_processes_and_leaves_their_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = replace(CELL, steps=2)
    run_cells([cell], tmp_path / "cells", tmp_path / "data", TASK)
    (result,) = load_all(tmp_path / "none.jsonl", tmp_path / "cells", TASK)
    assert (result.cell, result.task, result.last.step) == (cell, TASK, 2)
    assert result.last.up_bytes > 0
    assert capsys.readouterr().out.startswith(
        f"1/1 {cell.name}: {result.last.bits_per_byte:.4f} bits per byte"
    )


def test_a_figure_has_the_best_rate_of_demo_and_the_best_of_every_other_method() -> None:
    adamw = Cell("adamw", 0.001, CELL.steps)
    cells = {CELL: 2.0, replace(CELL, learning_rate=0.02): 2.1, replace(CELL, top_k=9): 2.2}
    cells |= {adamw: 2.3, replace(adamw, weight_decay=0.1): 2.25}
    settings = settings_of(made_up(cell, end) for cell, end in cells.items())
    expected = [CELL, replace(CELL, top_k=9), replace(adamw, weight_decay=0.1)]
    assert [setting.cell for setting in pictured(settings)] == expected


def test_the_report_averages_seeds_and_puts_the_best_first(tmp_path: Path) -> None:
    worse, bad = replace(CELL, learning_rate=0.02), replace(CELL, learning_rate=1.0)
    results = [
        made_up(bad, 7.0, "step 3: NaN"),
        made_up(worse, 2.6),
        made_up(CELL, 2.0),
        made_up(replace(CELL, seed=1), 2.2),
    ]
    settings = settings_of(results)
    assert [setting.cell for setting in settings] == [CELL, worse, bad]
    assert settings[0].bits_per_byte == pytest.approx(2.1)
    assert [setting.cell for setting in pictured(settings)] == [CELL]
    lines = write_report(tmp_path, results).splitlines()
    assert lines[0] == "## 5 steps"
    assert lines[4] == f"| {CELL.title} | 2 | 2.100 | 0.200 | 6.525 | 200 | 200 |"
    assert "blew up" in lines[6]
    assert lines[-1] == "4 cells, 0.0 hours of one core."
    assert b"<svg" in (tmp_path / "curves-5.svg").read_bytes()
    rows = (tmp_path / "points.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * len(results)
    assert rows[0].startswith("cell,method,learning_rate,steps,")

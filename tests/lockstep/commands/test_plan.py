"""`lockstep plan` as a person types it: tables of 80 columns, JSON, a figure, clear errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import main
from lockstep.commands.plan import render, setting_of
from lockstep.commands.plan_options import PlanOptions
from lockstep.exit_codes import ExitCode
from lockstep.presets import run_of
from lockstep.run_file import run_file_text
from protocol.planner.advice import bytes_text, sentences
from protocol.planner.parameters import size_of
from protocol.planner.plan import plan
from protocol.runfile import ModelSpec, RunSpec
from tests.lockstep.shared import printed
from tests.lockstep.test_cli import error_line, without_torch


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(run_file_text(RunSpec()))
    return path


def planned(run_file: Path, *arguments: str) -> dict[str, Any]:
    path = run_file.with_name("plan.json")
    assert main(["plan", str(run_file), *arguments, "--json", str(path)]) == ExitCode.OK
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_json_has_every_method_with_its_parts(run_file: Path) -> None:
    found = planned(run_file, "--nodes", "8", "--profiles", "cable,dsl")
    methods = found["methods"]
    assert [one["method"] for one in methods if one["method"] != "gossip-adam"] == [
        "all-reduce",
        "demo",
        "demo-overlap",
        "diloco",
    ]
    assert {one["topology"] for one in methods if one["method"] == "gossip-adam"} == {
        "ring",
        "one-peer-exponential",
        "alternating-exponential-ring",
        "hierarchical",
        "complete",
        "random-matching",
    }
    for one in methods:
        parts = one["compute_s"] + one["exposed_s"] + one["waiting_s"]
        assert one["seconds"] == pytest.approx(parts)
        assert one["day_bytes"] == pytest.approx(one["up_bytes"] * 86_400 / one["seconds"])
    assert found["nodes"] == 8
    assert found["parameters"] == 824_576
    assert found["words"][0].startswith("Decentralisation pays")


def test_a_crowd_that_would_send_less_if_it_added_for_all_is_told_how(run_file: Path) -> None:
    few, many = (planned(run_file, "--nodes", str(nodes)) for nodes in (8, 40))
    assert not any("init --nodes" in words for words in few["words"])
    *_, told = many["words"]
    path = run_file.with_name("summed.toml")
    assert main(["init", str(path), "--defaults", "--nodes", "40"]) == ExitCode.OK
    found = planned(path, "--nodes", "40")
    sent = {one["method"]: one["up_bytes"] for one in found["methods"]}
    before = {one["method"]: one["up_bytes"] for one in many["methods"]}
    for method in ("demo", "demo-overlap"):
        assert sent[method] < before[method] / 4
        assert f"each sends {bytes_text(sent[method])} a round instead of " in told
        assert bytes_text(before[method]) in told
    assert sent["all-reduce"] == before["all-reduce"]
    assert not any("init --nodes" in words for words in found["words"]), "it does already"
    alone = planned(path, "--nodes", "8")
    assert alone["traffic"]["results"] == 0, "to everybody, in so small a round"


def test_every_line_fits_80_columns(run_file: Path) -> None:
    spec = run_of("demo")
    size = size_of(spec.model, 70_000_000_000)
    options = PlanOptions(
        nodes=12, profiles=("dsl-poor", "fibre", "5g-fixed"), parameters=70_000_000_000, flops=1e15
    )
    found = plan(spec, setting_of(spec, size, options))
    words = sentences(found)
    text = "".join(printed(part) for part in render(found, size, words))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for heading in ("takes", "exchange", "waiting", "sends", "a day", "less"):
        assert heading in text


def test_one_node_exchanges_nothing(run_file: Path) -> None:
    assert "One node" in planned(run_file, "--nodes", "1")["words"][0]


def test_standard_output_is_json_alone_when_asked(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(run_file), "--nodes", "4", "--json", "-"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["nodes"] == 4


def test_it_needs_no_torch(run_file: Path) -> None:
    done = without_torch("plan", str(run_file), "--nodes", "3")
    assert done.returncode == 0, done.stderr
    assert "all-reduce" in done.stdout


def test_given_figures_are_taken(run_file: Path) -> None:
    given = ("--nodes", "4", "--compute-s", "3", "--jitter", "0", "--parameters", "1000000")
    found = planned(run_file, *given, "--slower", "1,1,1,5")
    assert found["compute"]["forward_s"] + found["compute"]["backward_s"] == pytest.approx(3)
    assert found["compute"]["slower"] == [1, 1, 1, 5]
    assert found["traffic"]["gradient"] == 2e6


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        ([], ExitCode.USAGE, "expected --nodes N, or --measure LINK"),
        (["--nodes", "0"], ExitCode.SETTINGS, "--nodes"),
        (["--nodes", "4", "--profiles", "warp"], ExitCode.SETTINGS, "expected one of dsl-poor"),
        (["--nodes", "4", "--slower", "1,fast"], ExitCode.USAGE, "--slower: expected numbers"),
        (["--nodes", "2", "--measure", "h:1"], ExitCode.USAGE, "got both"),
        (["--nodes", "2", "--slower", "1,1,2"], ExitCode.USAGE, "at most 2 factors"),
    ],
)
def test_wrong_arguments_are_one_line(
    run_file: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: ExitCode,
    problem: str,
) -> None:
    assert main(["plan", str(run_file), *arguments]) == code
    assert problem in error_line(capsys)


def test_a_model_of_unknown_layout_asks_for_its_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.toml"
    path.write_text(run_file_text(RunSpec(model=ModelSpec(type="mamba", config={}))))
    assert main(["plan", str(path), "--nodes", "4"]) == ExitCode.SETTINGS
    assert "--parameters" in error_line(capsys)
    assert main(["plan", str(path), "--nodes", "4", "--parameters", "5000000"]) == ExitCode.OK


def test_a_plan_has_the_run_s_own_words_and_its_length_and_bytes_of_a_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for algorithm, own, other in (
        ("local_steps", "local steps", "demo"),
        ("demo", "demo", "local"),
    ):
        file = tmp_path / f"{algorithm}.toml"
        sections = {"schedule": {"steps": 1000}, "rounds": {"overlap": 0}}
        file.write_text(run_file_text(run_of(algorithm, **sections)))
        line = ("--nodes", "8", "--profiles", "cable,dsl", "--compute-s", "2")
        assert main(["plan", str(file), *line]) == ExitCode.OK
        shown = " ".join(capsys.readouterr().out.split())
        assert other not in shown.lower().partition(" method ")[2].partition(" diloco")[0]
        table = re.search(rf" {own} (\S+) s .*? (\S+) kB ", shown)
        in_all = rf"1,000 steps of this run, by {own}, take (\S+) min, and a node sends (\S+) GB"
        total = re.search(in_all, shown)
        assert table
        assert total
        seconds, sent = float(table[1]), float(table[2])
        assert float(total[1]) == pytest.approx(1000 * seconds / 60, rel=0.01)
        assert float(total[2]) == pytest.approx(sent * 86_400 / seconds / 1e6, rel=0.01)

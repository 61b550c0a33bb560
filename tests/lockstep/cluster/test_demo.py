"""The demo: what it refuses, what it configures, and a whole small run in real processes."""

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import main
from lockstep.cluster import demo
from lockstep.cluster.demo import TITLES, against_text, demo_spec, run_demo
from lockstep.cluster.local import Cluster
from lockstep.cluster.settings import DemoOptions
from lockstep.exit_codes import ExitCode, UsageError
from lockstep.service.directory import Owner, claimed
from node.model.build import named_parameters_once
from node.model.checkpoint import load_checkpoint
from node.replica.digest import state_digest
from protocol.runfile import RunSpec
from tests.lockstep.shared import tiny_model

ROUNDS = 6
"""Rounds of the real demo, a second each."""


def settings(directory: Path, **changes: Any) -> DemoOptions:
    values = {
        "directory": directory,
        "nodes": 4,
        "rounds": 60,
        "seed": 0,
        "json_path": str(directory / "summary.json"),
    }
    return DemoOptions(**(values | changes))


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 64])
@pytest.mark.parametrize("rounds", [1, 60, 1000])
def test_any_number_of_nodes_and_rounds_gives_a_valid_run_file(
    tmp_path: Path, nodes: int, rounds: int
) -> None:
    spec = demo_spec(settings(tmp_path, nodes=nodes, rounds=rounds))
    assert RunSpec.model_validate(spec.model_dump()) == spec
    assert spec.schedule.steps == rounds
    assert spec.schedule.warmup_steps < rounds
    assert 1 <= spec.rounds.quorum <= spec.membership.start_members == nodes


@pytest.mark.parametrize("algorithm", TITLES)
def test_a_demo_of_each_algorithm_has_a_valid_run_file(tmp_path: Path, algorithm: str) -> None:
    spec = demo_spec(settings(tmp_path, algorithm=algorithm))
    assert RunSpec.model_validate(spec.model_dump()) == spec
    assert spec.algorithm.name == algorithm


def test_a_demo_of_no_algorithm_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--algorithm", "adam", "--directory", str(tmp_path)]) == ExitCode.SETTINGS
    assert "expected local_steps, demo, gossip-adam, got 'adam'" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_directory_of_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    assert main(["demo", "--directory", str(tmp_path)]) == ExitCode.USAGE
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_next_demo_keeps_the_corpus_and_nothing_of_the_last_run(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    demo.clear_directory(directory)
    for name in ("data", "node-0", "coordinator", "checkpoint"):
        (directory / name).mkdir()
    demo.clear_directory(directory)
    assert sorted(path.name for path in directory.iterdir()) == [demo.MARK_NAME, "data"]
    (directory / demo.MARK_NAME).unlink()
    with pytest.raises(UsageError):
        demo.clear_directory(directory)


def test_a_second_demo_at_once_is_refused_and_touches_nothing_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.clear_directory(tmp_path)
    (tmp_path / "node-0").mkdir()
    with claimed(tmp_path, Owner("demo")):
        assert main(["demo", "--directory", str(tmp_path)]) == ExitCode.STORAGE
    assert "is at work in" in capsys.readouterr().err
    assert (tmp_path / "node-0").exists()


def test_a_demo_that_is_refused_leaves_the_last_one_as_it_is(tmp_path: Path) -> None:
    demo.clear_directory(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    assert main(["demo", "--algorithm", "adam", "--directory", str(tmp_path)]) == ExitCode.SETTINGS
    assert (tmp_path / "checkpoint").exists()


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo of seconds: a tiny model and little text."""
    monkeypatch.setattr(demo, "demo_spec", lambda settings: tiny_model(demo_spec(settings)))
    monkeypatch.setattr(demo, "CORPUS_BYTES", 300_000)


def test_a_demo_trains_to_equal_digests_a_summary_a_picture_and_a_model_that_generates(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "demo"
    run_demo(settings(directory, nodes=2, rounds=ROUNDS, json_path=str(tmp_path / "out.json")))

    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["nodes"], document["rounds"]["committed"]) == (2, ROUNDS)
    assert document["digests"]["agreed"] is True
    assert document["digests"]["rounds_checked"] == ROUNDS
    assert document["loss"]["last"] < document["loss"]["first"]
    assert document["loss"]["validation_last"] < document["loss"]["validation_first"]
    assert document["traffic"]["bits_per_value"] < 16
    assert document["traffic"]["times_less_than_dense"] > 1
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")

    last = {
        json.loads((directory / f"node-{n}" / "status.json").read_text())["state_digest"]
        for n in range(2)
    }
    assert last == {document["digests"]["last"]}
    model = load_checkpoint(directory / "checkpoint").model
    assert f"{state_digest(named_parameters_once(model)):016x}" == document["digests"]["last"]
    assert (
        main(["generate", str(directory / "checkpoint"), "--prompt", "def ", "--tokens", "5"])
        == ExitCode.OK
    )


@pytest.mark.usefixtures("small_demo")
def test_ctrl_c_stops_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters: list[Cluster] = []
    watch = Cluster.watch

    def watch_and_interrupt(cluster: Cluster) -> Sequence[str]:
        seen = watch(cluster)
        if cluster.coordinator.status.get("steps", {}).get("committed", 0) >= 2:
            clusters.append(cluster)
            signal.raise_signal(signal.SIGTERM)
        return seen

    monkeypatch.setattr(Cluster, "watch", watch_and_interrupt)
    assert (
        main(["demo", "--nodes", "2", "--rounds", "1000", "--directory", str(tmp_path / "d")])
        == ExitCode.INTERRUPTED
    )
    (cluster,) = clusters
    assert [child.exit_status for child in (*cluster.nodes, cluster.coordinator)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("times_less", "words"),
    [
        (2500.0, "2500 times less payload uploaded"),
        (3.4, "3.4 times less payload uploaded"),
        (1.0, "as much payload uploaded"),
        (0.4, "2.5 times as much payload uploaded"),
        (0.0, "no payload uploaded"),
    ],
)
def test_the_upload_is_compared_in_true_words(times_less: float, words: str) -> None:
    assert against_text(times_less) == words

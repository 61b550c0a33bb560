"""`lockstep init` asks, and answers become a run file."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from lockstep.audit.work.recompute import unaudited
from lockstep.cli import app, main
from lockstep.commands.init import ask, audit_warning, for_crowd
from lockstep.exit_codes import ExitCode, UsageError
from lockstep.presets import PRESETS, at_its_width, run_of
from lockstep.run_file import read_run_file
from protocol.planner.parameters import size_of
from protocol.planner.payload_bytes import largest_bytes
from protocol.runfile import ModelSpec, RunSpec, ScheduleSpec
from protocol.sections.retention import RetentionSpec


def test_without_a_terminal_the_questions_point_to_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(UsageError, match="--defaults"):
        ask(tmp_path / "run.toml", "demo", force=False)


def test_answers_become_the_run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = iter(["winter", 77, "my-corpus"])
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    spec = ask(tmp_path / "run.toml", "demo", force=False)
    assert (spec.name, spec.schedule.steps, spec.data.corpus) == ("winter", 77, "my-corpus")
    assert spec.rounds == run_of("demo").rounds


def test_an_answer_out_of_its_bounds_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = iter(["My first run", "winter", "adam", "demo", "many", "-5", "12", "", "text"])
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    spec = ask(tmp_path / "run.toml", "", force=False)
    assert (spec.name, spec.schedule.steps, spec.data.corpus) == ("winter", 12, "text")
    lines = capsys.readouterr().err.splitlines()
    for line, words in zip(
        lines,
        (
            "name: expected 1 to 63 letters, digits, '.', '_' and '-', a letter or digit first, no",
            "algorithm.name: expected 'demo', 'local_steps' or 'gossip-adam', found 'adam'",
            "schedule.steps: expected a valid integer, found 'many'",
            "schedule.steps: expected greater than or equal to 1, found -5",
            "data.corpus: expected at least 1 character, found ''",
        ),
        strict=True,
    ):
        assert line.startswith(f"error: {words}")


def test_the_algorithm_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = iter(["winter", "gossip-adam", 77, "my-corpus"])
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    assert ask(tmp_path / "run.toml", "", force=False).algorithm.name == "gossip-adam"


def test_a_gossip_adam_run_is_written_with_its_contraction_factor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    assert main(["init", "--defaults", "--algorithm", "gossip-adam", str(path)]) == 0
    said = capsys.readouterr().err
    assert "one-peer-exponential, 2 members: after 1 rounds at most 0 %" in said
    assert "a round, half of it up, however many take part; at every 100th step" in said
    spec = read_run_file(path)
    assert spec.algorithm.name == "gossip-adam"
    assert spec.rounds.overlap_at(0) == 1, "the exchange hides behind the passes from the start"


def test_a_run_for_a_crowd_has_summers_and_richer_payloads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for nodes, sums in ((0, 0), (8, 0), (9, 9), (1000, 9)):
        path = tmp_path / f"{nodes}.toml"
        assert main(["init", "--defaults", str(path), "--nodes", str(nodes)]) == 0
        spec = read_run_file(path)
        assert spec.rounds.sums == sums
        found = spec.algorithm
        assert (found.top_k, found.value_bits) == ((384, 2) if sums else (192, 1))
        assert (found.gain, found.fade) == ((3.0, 0.0) if sums else (1.0, 1.0))
        said = capsys.readouterr().err
        assert ("whose payloads are added for all" in said) == (sums > 0)
    path = tmp_path / "demo.toml"
    demo = ["init", "--defaults", "--algorithm", "demo", str(path), "--nodes", "1000"]
    assert main(demo) == 0
    assert read_run_file(path).rounds.sums == 0, "its votes are no movements"
    assert main(["init", "--defaults", str(tmp_path / "x"), "--nodes", "-1"]) == ExitCode.SETTINGS


def test_a_model_of_unknown_chunks_gets_no_sums_and_its_owner_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = {"vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "intermediate_size": 96, "is_decoder": True}
    model = ModelSpec(type="roberta", config=sizes | heads)
    spec = run_of("local_steps").model_copy(update={"model": model})
    assert for_crowd(spec, 1000) == spec
    said = " ".join(capsys.readouterr().err.split())
    assert "note: --nodes 1000: expected a model.type whose chunks are known" in said
    assert "got 'roberta': no round has summers" in said
    assert for_crowd(spec, 2) == spec
    assert not capsys.readouterr().err


def test_a_crowd_s_payloads_have_room_in_the_run_file(tmp_path: Path) -> None:
    model = ModelSpec(
        config={**RunSpec().model.config, "hidden_size": 2048, "num_hidden_layers": 44}
    )
    spec = run_of("local_steps").model_copy(update={"model": model})
    found, size = for_crowd(spec, 100), size_of(model)
    assert found.rounds.payload_bytes_max >= largest_bytes(found.algorithm, size)
    assert largest_bytes(found.algorithm, size) > spec.rounds.payload_bytes_max


def test_the_rate_times_the_width_stays_the_same() -> None:
    for algorithm in PRESETS:
        spec = run_of(algorithm)
        assert at_its_width(spec) == spec, "presets are for the width of the default network"
    for algorithm, config, rate in (
        ("demo", {"n_embd": 768}, 0.00017),
        ("demo", {"hidden_size": 64}, 0.002),
        ("local_steps", {"hidden_size": 768}, 0.002),
        ("local_steps", {"d_model": 1000}, 0.0015),
        ("local_steps", {"hidden_size": "wide"}, 0.012),
        ("gossip-adam", {"hidden_size": 768}, 0.001),
    ):
        spec = run_of(algorithm, model={"config": config})
        assert at_its_width(spec).schedule.learning_rate == rate


def test_an_algorithm_of_no_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    assert main(["init", "--defaults", "--algorithm", "adam", str(path)]) == ExitCode.SETTINGS
    assert "expected 'demo', 'local_steps' or 'gossip-adam', found 'adam'" in (
        capsys.readouterr().err
    )
    assert not path.exists()


def test_no_question_is_asked_for_a_file_that_may_not_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    (tmp_path / "run.toml").touch()
    with pytest.raises(UsageError, match="already exists"):
        ask(tmp_path / "run.toml", "demo", force=False)


def test_a_run_whose_payloads_would_be_lost_is_warned_of_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--defaults", str(tmp_path / "run.toml")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "the payloads of the last 1000 rounds (retention.log_rounds)" in said
    assert "the run has 2000 steps: without an archive nobody can audit its first rounds" in said
    assert "auditor LINK" in said
    assert "relay LINK --archive" in said


def test_a_run_that_keeps_all_its_payloads_is_not_warned_of() -> None:
    spec = RunSpec(schedule=ScheduleSpec(steps=500), retention=RetentionSpec(log_rounds=500))
    assert audit_warning(spec) == ""


def answered(
    monkeypatch: pytest.MonkeyPatch, path: Path, *answers: object
) -> tuple[RunSpec, ExitCode | int]:
    """The run file of a public run, as somebody at a terminal answers."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    given = iter(answers)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(given))
    code = main(["init", "--public", str(path)])
    assert next(given, None) is None, "every answer was asked for"
    return read_run_file(path), code


def test_a_run_for_strangers_is_written_and_its_commands_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    answers = ("winter", "local_steps", 9, "lockstep-2026", "run.example")
    spec, code = answered(monkeypatch, path, *answers)
    assert (code, spec.membership.trust, spec.name) == (ExitCode.OK, "public", "winter")
    assert not unaudited(spec), "its work can be computed again"
    lines = [line.split("lockstep ")[-1] for line in capsys.readouterr().out.splitlines()[1::2]]
    start, *others = [shlex.split(line) for line in lines]
    assert start[:2] == ["coordinator", str(path)]
    named = dict(zip(start[2::2], start[3::2], strict=True))
    assert (named["--admit"], named["--advertise"]) == ("token", "run.example")
    root: Any = typer.main.get_command(app)
    for words in (start, *others):
        command, left = root, words
        while hasattr(command, "commands"):
            command, left = command.commands[left[0]], left[1:]
        command.make_context("lockstep", left)


def test_data_of_ones_own_are_asked_for_by_their_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ("winter", "local_steps", 9, "books")
    url, digest = "https://data.example/books", 64 * "a"
    spec, _ = answered(monkeypatch, tmp_path / "one", *first, "short", digest, url, "run.example")
    assert (spec.data.manifest_sha256, spec.data.url) == (digest, url)
    assert "nobody can audit" not in capsys.readouterr().out
    answered(monkeypatch, tmp_path / "two", *first, "none", "run.example")
    assert "nobody can audit the strangers' work" in capsys.readouterr().out


def test_strangers_cannot_be_let_into_a_run_of_gossip_adam(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["init", "--public", "--defaults", "--algorithm", "gossip-adam"]
    assert main([*words, str(tmp_path / "run.toml")]) == ExitCode.SETTINGS
    assert "trust must be known with gossip-adam" in capsys.readouterr().err
    assert not (tmp_path / "run.toml").exists()

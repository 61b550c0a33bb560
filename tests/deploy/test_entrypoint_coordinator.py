"""The run file of the compose file's coordinator, and the process beside it."""

import os
from pathlib import Path

import pytest

from deploy.entrypoint_coordinator import INVITE, prepare, start_apart
from lockstep.run_file import read_run_file
from protocol.errors import SettingsError

TEMPLATE = Path(__file__).parents[2] / "deploy/run.toml"


def test_the_first_start_writes_the_template_with_length_and_seed(tmp_path: Path) -> None:
    run_file = tmp_path / "state" / "run.toml"
    prepare(TEMPLATE, run_file, {"LOCKSTEP_ROUNDS": "40", "LOCKSTEP_SEED": "7"})
    found, template = read_run_file(run_file), read_run_file(TEMPLATE)
    assert (found.schedule.steps, found.seed) == (40, 7)
    assert found.rounds == template.rounds
    assert found.schedule.model_copy(update={"steps": template.schedule.steps}) == template.schedule


def test_without_variables_the_template_is_the_run_file(tmp_path: Path) -> None:
    prepare(TEMPLATE, tmp_path / "run.toml", {"LOCKSTEP_ROUNDS": ""})
    assert read_run_file(tmp_path / "run.toml") == read_run_file(TEMPLATE)


def test_a_run_that_has_begun_stays_as_it_is_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file = tmp_path / "run.toml"
    prepare(TEMPLATE, run_file, {"LOCKSTEP_ROUNDS": "40"})
    before = run_file.read_bytes()
    prepare(TEMPLATE, run_file, {"LOCKSTEP_ROUNDS": "40"})
    assert capsys.readouterr().out == ""
    prepare(TEMPLATE, run_file, {"LOCKSTEP_ROUNDS": "50"})
    assert run_file.read_bytes() == before
    assert "has begun and goes on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variable", "field"), [("LOCKSTEP_ROUNDS", "schedule.steps"), ("LOCKSTEP_SEED", "seed")]
)
def test_a_wrong_variable_is_named_with_what_was_expected(
    tmp_path: Path, variable: str, field: str
) -> None:
    with pytest.raises(
        SettingsError, match=rf"{variable}.*{field}: expected .*integer.*, found 'many'"
    ):
        prepare(TEMPLATE, tmp_path / "run.toml", {variable: "many"})
    assert not (tmp_path / "run.toml").exists()


def test_the_template_s_rounds_are_the_env_file_s_default() -> None:
    template = read_run_file(TEMPLATE)
    defaults = (TEMPLATE.parents[1] / ".env").read_text()
    assert f"#LOCKSTEP_ROUNDS={template.schedule.steps}\n" in defaults
    assert f"#LOCKSTEP_SEED={template.seed}\n" in defaults


def test_a_process_beside_the_coordinator_is_not_its_child(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    os.mkfifo(parent)
    start_apart("sh", "-c", 'echo "$PPID" > "$0"', str(parent))
    assert int(parent.read_text()) != os.getpid()
    assert INVITE.exists()


def test_the_template_s_run_is_public() -> None:
    assert read_run_file(TEMPLATE).membership.trust == "public"

"""The commented run file says everything that the run file's model says, and parses back to it."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from lockstep.exit_codes import UsageError
from lockstep.run_file import PAGES, read_run_file, run_file_text, write_run_file
from protocol.errors import SettingsError
from protocol.runfile import ModelSpec, RoundsSpec, RunSpec, ScheduleSpec, parse_run_file


def sections(values: BaseModel) -> list[BaseModel]:
    inner = [value for value in dict(values).values() if isinstance(value, BaseModel)]
    return [values, *(section for value in inner for section in sections(value))]


def test_the_written_defaults_parse_back_to_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    write_run_file(path, RunSpec())
    assert parse_run_file(path.read_text()) == RunSpec()


def test_values_that_are_not_defaults_survive_too() -> None:
    config = {
        "vocab_size": 257,
        "rope": {"type": "linear", "factor": 2.0},
        "odd key": [1, "two", True],
        "text": 'a"b\\',
    }
    spec = RunSpec(
        name="other",
        seed=2**62,
        model=ModelSpec(type="gpt2", config=config),
        schedule=ScheduleSpec(learning_rate=1e-05, shape="constant"),
        rounds=RoundsSpec(overlap=0),
    )
    assert parse_run_file(run_file_text(spec)) == spec


def test_every_field_stands_there_with_its_description_and_default() -> None:
    text = " ".join(line.removeprefix("# ") for line in run_file_text(RunSpec()).splitlines())
    for section in sections(RunSpec()):
        for name, field in type(section).model_fields.items():
            if not isinstance(getattr(section, name), BaseModel):
                assert field.description, f"{type(section).__name__}.{name} has no docstring"
                assert PAGES.sub("", " ".join(field.description.split())) in text


def test_no_page_is_named_for_an_installed_command_has_none() -> None:
    assert "docs/" not in run_file_text(RunSpec())


def test_bounds_are_said_in_words() -> None:
    text = run_file_text(RunSpec())
    assert "[at least 0; below 1; default 0.999]\nmomentum_decay = 0.999" in text
    assert '[one of "cosine", "constant"; default "cosine"]' in text
    assert "[one of 1, 2, 4, 8; default 1]" in text


def test_an_existing_file_is_only_replaced_when_forced(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("precious")
    with pytest.raises(UsageError, match="already exists"):
        write_run_file(path, RunSpec())
    assert path.read_text() == "precious"
    write_run_file(path, RunSpec(), force=True)
    assert parse_run_file(path.read_text()) == RunSpec()


def test_a_missing_run_file_is_an_error_that_names_the_command_that_writes_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        SettingsError, match=r"none\.toml: No such file.*`lockstep init` writes one"
    ):
        read_run_file(tmp_path / "none.toml")

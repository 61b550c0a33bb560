"""A table of a run's rounds, for spreadsheets and plots."""

import csv
import io
from pathlib import Path

import pytest

from coordinator.journal import JOURNAL_NAME, Journal
from lockstep.cli import main
from lockstep.commands.run.export import COLUMNS
from lockstep.exit_codes import ExitCode
from tests.coordinator.test_round_log import written


@pytest.fixture
def place(tmp_path: Path) -> Path:
    written(tmp_path / JOURNAL_NAME).close()
    return tmp_path


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_line_for_each_round_with_what_is_known_of_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = place / "rounds.csv"
    assert main(["run", "export", str(place), "--csv", str(file)]) == ExitCode.OK
    assert f"5 rounds in {file}" in capsys.readouterr().err.replace("\n", "")
    first, _, skipped, unknown, _ = table(file.read_text())
    assert tuple(first) == COLUMNS
    assert first | {"loss": "2.5"} == first
    assert (first["decided_at"], first["seconds"]) == ("1970-01-01T00:00:12Z", "2.0")
    assert (first["contributors"], first["assigned"], first["samples"]) == ("2", "2", "8")
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "nobody announced")
    assert skipped["step"] == skipped["loss"] == ""
    assert unknown["seconds"] == ""


def test_on_standard_output_it_is_the_table_and_nothing_else(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "export", str(place), "--csv", "-"]) == ExitCode.OK
    said = capsys.readouterr()
    assert [row["round"] for row in table(said.out)] == list("01234")
    assert not said.err


def test_without_a_journal_no_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rounds.csv"
    assert main(["run", "export", str(tmp_path), "--csv", str(file)]) == ExitCode.STORAGE
    assert not file.exists()
    Journal(tmp_path / JOURNAL_NAME).close()
    assert main(["run", "export", str(tmp_path), "--csv", str(file)]) == ExitCode.OK
    assert file.read_text().splitlines() == [",".join(COLUMNS)]

"""Words for a person: numbers, verdicts, and how this program is called again."""

import sys
from pathlib import Path

import pytest

from lockstep.console import agreement, bytes_text, number, own_command, replicas_text


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called lockstep, which this process claims to be."""
    path = tmp_path / "bin of ours" / "lockstep"
    path.parent.mkdir()
    path.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(path), "demo"])
    return path


def test_a_program_on_the_path_is_called_by_its_name(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(program.parent))
    assert own_command() == "lockstep"


def test_a_program_that_is_not_on_the_path_is_called_by_its_own_path(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert own_command() == f"'{program}'"


def test_another_program_of_the_same_name_on_the_path_is_not_ours(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = tmp_path / "lockstep"
    stranger.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_command() == f"'{program}'"


def test_a_module_run_by_python_is_called_so_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/some/where/lockstep/__main__.py", "demo"])
    monkeypatch.setattr(sys, "executable", "/some/where/python")
    assert own_command() == "/some/where/python -m lockstep"
    monkeypatch.setattr(sys, "executable", "/a pläce/python")
    assert own_command() == "'/a pläce/python' -m lockstep"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e12, "2.5 TB")]
)
def test_bytes_have_three_digits_and_a_unit(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_an_unknown_loss_is_empty_and_a_known_one_has_four_digits() -> None:
    assert (number(None), number(3.21)) == ("", "3.2100")


def test_replicas_are_equal_different_or_not_compared() -> None:
    assert (agreement(True), agreement(False)) == ("equal", "DIFFERENT")
    assert replicas_text({"rounds_checked": 7, "agreed": True}) == "equal in 7 rounds"
    assert replicas_text({}) == "not compared yet"

"""Lockstep's packages and strangers of the same names: the command names the stranger in a line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import DISTRIBUTION, own_packages
from lockstep.__main__ import INTERRUPTED, USAGE
from lockstep.__main__ import main as program
from lockstep.exit_codes import ExitCode

ROOT = Path(__file__).parents[2]


def run_with(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that finds packages in `path` before Lockstep's."""
    return subprocess.run(
        [sys.executable, "-m", "lockstep", *arguments],
        cwd=path,
        env=os.environ | {"PYTHONPATH": f"{path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_lockstep_s_own_packages_are_recognised() -> None:
    assert own_packages.foreign_package() == ""


@pytest.mark.parametrize("name", own_packages.PACKAGES)
@pytest.mark.parametrize("content", ["", "raise RuntimeError('only on Tuesdays')\n"])
def test_a_stranger_first_on_the_path_is_named_with_its_place_and_the_way_out(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(content)
    done = run_with(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: expected Lockstep's own package '{name}', found another one at")
    assert str(tmp_path / name / "__init__.py") in line
    assert DISTRIBUTION in line


def test_without_strangers_the_command_runs(tmp_path: Path) -> None:
    done = run_with(tmp_path, "--version")
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_packages, "PACKAGES", ("no_such_package_of_lockstep",))
    expected = "expected Lockstep's own package 'no_such_package_of_lockstep', found none"
    assert own_packages.foreign_package() == expected


def test_the_code_is_the_documented_one() -> None:
    assert (USAGE, INTERRUPTED) == (ExitCode.USAGE, ExitCode.INTERRUPTED)


def test_ctrl_c_while_the_commands_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("lockstep.__main__.foreign_package", interrupt)
    assert program() == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize(
    ("mark", "name", "removes"),
    [
        ("pipx_metadata.json", "pipx", "pipx uninstall lockstep-train"),
        ("uv-receipt.toml", "uv", "uv tool uninstall lockstep-train"),
        ("", "pip", "pip uninstall lockstep-train"),
    ],
)
def test_hints_name_the_program_that_has_installed_this(
    mark: str, name: str, removes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_packages.installer() == "checkout"
    assert str(ROOT) in own_packages.how_to_remove()
    monkeypatch.setattr(own_packages, "CHECKOUT", tmp_path)
    monkeypatch.setattr(own_packages, "PREFIX", tmp_path)
    if mark:
        (tmp_path / mark).touch()
    assert own_packages.installer() == name
    assert own_packages.how_to_remove() == removes
    for how in (own_packages.how_to_add("node"), own_packages.how_to_upgrade()):
        assert how.startswith(name)
        assert "'WHEEL[node]'" in how
    assert DISTRIBUTION in removes

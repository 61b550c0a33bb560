"""The systemd user unit of a volunteer."""

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.commands.service import UNIT_NAME, unit_text
from lockstep.exit_codes import ExitCode


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for systemctl; returns the file with the commands that it was given."""
    said, program = tmp_path / "said", tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return said


def test_install_writes_a_unit_and_starts_it_and_remove_takes_it_away(
    tmp_path: Path, systemctl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = tmp_path / "config" / "systemd" / "user" / UNIT_NAME
    command = ["service", "install", "example:50700", "--hours", "22:00-06:00"]
    assert main(command) == ExitCode.OK
    line = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    assert line.endswith('"lockstep" "join" "--yes" "example:50700" "--hours" "22:00-06:00"')
    assert systemctl.read_text() == f"--user daemon-reload\n--user enable --now {UNIT_NAME}\n"
    assert "enable-linger" in capsys.readouterr().out
    assert main(["service", "remove"]) == ExitCode.OK
    assert not unit.exists()
    assert main(["service", "remove"]) == ExitCode.USAGE


def test_an_option_that_join_does_not_take_is_refused_before_anything_is_written(
    tmp_path: Path, systemctl: Path
) -> None:
    for wrong, code in [(["--nonsense"], ExitCode.USAGE), (["--nice", "99"], ExitCode.SETTINGS)]:
        assert main(["service", "install", "example:50700", *wrong]) == code
    assert not systemctl.exists()
    assert not (tmp_path / "config").exists()


def test_words_reach_the_command_as_they_are() -> None:
    text = unit_text(['a "b" %h $x \\'])
    assert r'"a \"b\" %%h $$x \\"' in text


def test_a_unit_that_cannot_succeed_is_not_started_again_and_gains_no_rights() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(unit_text(["example:50700"]))
    service = unit["Service"]
    assert service["RestartPreventExitStatus"] == "2 3 5 8 9"
    assert service["NoNewPrivileges"] == "yes"
    assert service["KillSignal"] == "SIGTERM"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT_NAME
    unit.write_text(unit_text(["example:50700"]))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)], capture_output=True, text=True
    )
    assert UNIT_NAME not in done.stderr

"""The systemd user units of volunteers and operators."""

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.commands.service import UNITS, installed, unit_path, unit_text
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
    unit = tmp_path / "config" / "systemd" / "user" / UNITS["join"]
    command = ["service", "install", "example:50700", "--hours", "22:00-06:00"]
    assert main(command) == ExitCode.OK
    line = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    assert line.endswith('"lockstep" "join" "--yes" "example:50700" "--hours" "22:00-06:00"')
    assert systemctl.read_text() == f"--user daemon-reload\n--user enable --now {unit.name}\n"
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
    text = unit_text("join", ['a "b" %h $x \\'])
    assert r'"a \"b\" %%h $$x \\"' in text


@pytest.mark.parametrize("role", UNITS)
def test_a_unit_that_cannot_succeed_is_not_started_again_and_gains_no_rights(role: str) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(unit_text(role, ["example:50700"]))
    service = unit["Service"]
    assert service["RestartPreventExitStatus"] == "2 3 5 8 9"
    assert service["NoNewPrivileges"] == "yes"
    assert service["KillSignal"] == "SIGTERM"


WORDS = {
    "coordinator": ["run.toml", "--listen", "0.0.0.0:50700"],
    "relay": ["example:50700", "--archive"],
    "auditor": ["example:50700", "--threads", "2"],
    "join": ["example:50700", "--nice", "19"],
}
"""Arguments by role."""


@pytest.mark.parametrize("role", WORDS)
def test_each_role_has_a_unit_of_its_own_that_works_where_it_was_installed(
    role: str, tmp_path: Path, systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "100 % mine"
    place.mkdir()
    monkeypatch.chdir(place)
    (place / "run.toml").touch()
    assert main(["service", "install", role, *WORDS[role]]) == ExitCode.OK
    assert installed() == [role]
    text = unit_path(role).read_text()
    assert f"WorkingDirectory={tmp_path}/100 %% mine\n" in text
    command = [role, *(["--yes"] if role == "join" else []), *WORDS[role]]
    assert " ".join(f'"{word}"' for word in command) in text
    assert main(["service", "remove", role]) == ExitCode.OK
    assert installed() == []


def test_a_role_is_not_given_what_its_command_does_not_take(
    tmp_path: Path, systemctl: Path
) -> None:
    wrong = [("relay", "--nice"), ("auditor", "--archive"), ("coordinator", "--archive")]
    for role, option in wrong:
        assert main(["service", "install", role, "example:50700", option]) == ExitCode.USAGE
    assert not systemctl.exists()


def test_a_unit_that_somebody_else_wrote_is_left(systemctl: Path) -> None:
    path = unit_path("auditor")
    path.parent.mkdir(parents=True)
    path.write_text("[Unit]\nDescription=mine\n")
    assert main(["service", "remove", "auditor"]) == ExitCode.USAGE
    assert installed() == []
    assert path.exists()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
@pytest.mark.parametrize("role", UNITS)
def test_systemd_finds_no_fault_in_the_unit(role: str, tmp_path: Path) -> None:
    unit = tmp_path / UNITS[role]
    unit.write_text(unit_text(role, WORDS[role]))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)], capture_output=True, text=True
    )
    assert unit.name not in done.stderr

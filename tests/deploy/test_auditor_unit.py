"""The auditor's systemd unit: the command exists, hopeless ends are final, its rights are few."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lockstep.audit.process import LAST_COMMIT_S
from lockstep.cli import main
from lockstep.commands.service import HOPELESS
from node.relay.process import DRAIN_S, GOODBYE_S

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy/lockstep-auditor.service"


def values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_command_exists_and_every_variable_is_one_that_it_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (command,) = values("ExecStart")
    assert command.split()[0].endswith("/lockstep")
    assert main([*command.split()[1:], "--help"]) == 0
    shown = capsys.readouterr().out
    given = set(re.findall(r"LOCKSTEP_[A-Z_]+", UNIT.read_text()))
    assert given
    assert {name for name in given if name not in shown} == set()


def test_ends_that_a_restart_only_repeats_are_final() -> None:
    (codes,) = values("RestartPreventExitStatus")
    assert {*map(int, codes.split())} == set(HOPELESS)


def test_it_has_the_time_to_end_its_work_and_few_rights() -> None:
    (seconds,) = values("TimeoutStopSec")
    assert int(seconds) > LAST_COMMIT_S + DRAIN_S + GOODBYE_S
    assert values("DynamicUser") == values("NoNewPrivileges") == ["yes"]
    assert values("ProtectSystem") == ["strict"]
    assert values("CapabilityBoundingSet") == [""]
    (state,) = values("StateDirectory")
    assert f"LOCKSTEP_DIRECTORY=/var/lib/{state}" in values("Environment")[0]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_understands_it(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert UNIT.name not in done.stderr, done.stderr

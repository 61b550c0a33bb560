"""`lockstep service install | remove`: systemd user units that join, operate, relay or audit a run
at each start.

A unit has no more rights than it needs: no new privileges, no other address families, no real-time
scheduling; files that it makes are its owner's alone. It works in the directory in which it was
installed, so that a relative path means what it meant there.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lockstep.console import output
from lockstep.exit_codes import ExitCode, UsageError
from node.system.files import replacing_file, storage_errors

UNITS: Final = {
    "join": "lockstep.service",
    "coordinator": "lockstep-coordinator.service",
    "relay": "lockstep-relay.service",
    "auditor": "lockstep-auditor.service",
}
"""Names of units by the command that they run."""

WRITTEN = "# Written by `lockstep service install`"
"""First words of a unit."""

PURPOSES: Final = {
    "join": "trains on this machine",
    "coordinator": "operates a run",
    "relay": "forwards payloads",
    "auditor": "audits a run and keeps its payloads",
}

RESTART_S: Final = {"coordinator": 5}
"""Pause before a unit that failed starts again, where it is not the usual one: a run waits for its
coordinator."""

RESTART_USUAL_S = 30

HOPELESS = (ExitCode.USAGE, ExitCode.SETTINGS, ExitCode.VERSION, ExitCode.DATA, ExitCode.REFUSED)
"""Exit codes that another start would only repeat."""

UNIT = """\
{written}; `lockstep service remove {role}` takes it away.
[Unit]
Description=Lockstep: {purpose}
After=network-online.target

[Service]
ExecStart={command}
WorkingDirectory={directory}
Restart=on-failure
RestartSec={restart_s}
RestartPreventExitStatus={hopeless}
KillSignal=SIGTERM
TimeoutStopSec=180
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""


def unit_text(role: str, arguments: Sequence[str]) -> str:
    """The unit that runs the command of a role with these arguments, from the present directory."""
    agrees = ["--yes"] if role == "join" else []
    command = [sys.executable, "-m", "lockstep", role, *agrees, *arguments]
    return UNIT.format(
        written=WRITTEN,
        role=role,
        purpose=PURPOSES[role],
        command=" ".join(map(_quoted, command)),
        directory=str(Path.cwd()).replace("%", "%%"),
        restart_s=RESTART_S.get(role, RESTART_USUAL_S),
        hopeless=" ".join(str(int(code)) for code in HOPELESS),
    )


def unit_path(role: str) -> Path:
    """Path of a role's unit among the user's own."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "systemd" / "user" / UNITS[role]


def role_and_arguments(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that a unit is to run, and its arguments; a link alone is joined."""
    first, *others = words
    return (first, others) if first in UNITS else ("join", list(words))


def install(role: str, arguments: Sequence[str]) -> None:
    """Writes the unit and starts it, or says how to where systemd does not answer."""
    path = unit_path(role)
    with replacing_file(path, mode=0o600) as temporary:  # a link may hold a token
        temporary.write_text(unit_text(role, arguments), encoding="utf-8")
    output.print(f"wrote {path}", soft_wrap=True)
    _systemctl("daemon-reload")
    if _systemctl("enable", "--now", path.name):
        shows = "lockstep me" if role == "join" else f"systemctl --user status {path.name}"
        output.print(f"it works now, and at each login; `{shows}` shows it", soft_wrap=True)
        output.print("for a start at boot, without a login: loginctl enable-linger")


def remove(role: str) -> None:
    """Stops the unit and takes it away; a node finishes its round first."""
    path = unit_path(role)
    if role not in installed():
        raise UsageError(f"expected a unit at {path}, found none; nothing was changed")
    _systemctl("disable", "--now", path.name)
    with storage_errors(path):
        path.unlink()
    _systemctl("daemon-reload")
    output.print(f"removed {path}; runs and identity stay", soft_wrap=True)


def installed() -> list[str]:
    """The roles that have a unit which `install` wrote."""
    return [role for role in UNITS if _is_ours(unit_path(role))]


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").startswith(WRITTEN)
    return False


def _systemctl(*words: str) -> bool:
    """Whether systemd did it; else the command is printed for the user."""
    command = ["systemctl", "--user", *words]
    if shutil.which("systemctl"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return True
        output.print(f"systemd says: {done.stderr.strip()}", soft_wrap=True, markup=False)
    output.print(f"to do by hand: {' '.join(command)}", soft_wrap=True)
    return False


def _quoted(word: str) -> str:
    """A word as systemd reads it back."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'

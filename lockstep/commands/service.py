"""`lockstep service install | remove`: a systemd user unit that joins a run at each start.

The unit has no more rights than it needs: no new privileges, no other address families, no
real-time scheduling; files that it makes are its owner's alone.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep.console import output
from lockstep.exit_codes import ExitCode, UsageError
from node.system.files import replacing_file, storage_errors

UNIT_NAME = "lockstep.service"

HOPELESS = (ExitCode.USAGE, ExitCode.SETTINGS, ExitCode.VERSION, ExitCode.DATA, ExitCode.REFUSED)
"""Exit codes that another start would only repeat."""

UNIT = """\
# Written by `lockstep service install`; `lockstep service remove` takes it away.
[Unit]
Description=Lockstep: trains on this machine
After=network-online.target

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=30
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


def unit_text(arguments: Sequence[str]) -> str:
    """The unit that runs `lockstep join` with these arguments."""
    command = [sys.executable, "-m", "lockstep", "join", "--yes", *arguments]
    hopeless = " ".join(str(int(code)) for code in HOPELESS)
    return UNIT.format(command=" ".join(map(_quoted, command)), hopeless=hopeless)


def unit_path() -> Path:
    """Path of the unit among the user's own."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "systemd" / "user" / UNIT_NAME


def install(arguments: Sequence[str]) -> None:
    """Writes the unit and starts it, or says how to where systemd does not answer."""
    path = unit_path()
    with replacing_file(path, mode=0o600) as temporary:  # a link may hold a token
        temporary.write_text(unit_text(arguments), encoding="utf-8")
    output.print(f"wrote {path}", soft_wrap=True)
    _systemctl("daemon-reload")
    if _systemctl("enable", "--now", UNIT_NAME):
        output.print("it works now, and at each login; `lockstep me` shows it")
        output.print("for a start at boot, without a login: loginctl enable-linger")


def remove() -> None:
    """Stops the unit and takes it away; the node finishes its round first."""
    path = unit_path()
    if not path.exists():
        raise UsageError(f"expected a unit at {path}, found none; nothing was changed")
    _systemctl("disable", "--now", UNIT_NAME)
    with storage_errors(path):
        path.unlink()
    _systemctl("daemon-reload")
    output.print(f"removed {path}; runs and identity stay", soft_wrap=True)


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

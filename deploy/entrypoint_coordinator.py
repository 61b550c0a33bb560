"""Entry point of the coordinator's container: writes the run file of a new run, then becomes
`lockstep coordinator`, with a process beside it that makes tokens for the other containers.

    first start    /run.toml of the host, with LOCKSTEP_ROUNDS and LOCKSTEP_SEED -> /state/run.toml
    later starts   /state/run.toml as it is: a run keeps the run file that it began with
    every start    deploy/invite.py: tokens that are missing -> /invitation

A run's name is a hash of its run file, so another run file means another run and needs an empty
volume.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from lockstep.console import error_line
from lockstep.exit_codes import exit_code
from lockstep.run_file import read_run_file, write_run_file
from protocol.errors import LockstepError
from protocol.runfile import RunSpec, parse_run_json, run_json

TEMPLATE = Path("/run.toml")
STATE = Path("/state")
INVITE = Path(__file__).with_name("invite.py")


def prepare(template: Path, run_file: Path, environment: Mapping[str, str]) -> None:
    """Writes `run_file`, unless it exists; `SettingsError` names the error in template or
    environment.
    """
    asked = with_settings(read_run_file(template), environment)
    if not run_file.exists():
        write_run_file(run_file, asked)
    elif read_run_file(run_file) != asked:
        print(
            f"{run_file} belongs to a run that has begun and goes on with it; "
            "`docker compose down --volumes` ends that run",
            flush=True,
        )


def with_settings(spec: RunSpec, environment: Mapping[str, str]) -> RunSpec:
    """`spec` with the length and the seed of the environment, checked like any run file."""
    values = msgspec.json.decode(run_json(spec))
    for variable, table, field in (
        ("LOCKSTEP_ROUNDS", values["schedule"], "steps"),
        ("LOCKSTEP_SEED", values, "seed"),
    ):
        if text := environment.get(variable, ""):
            # Text that is no number stays text: the check of the run file names it.
            table[field] = int(text) if text.isdecimal() else text
    return parse_run_json(msgspec.json.encode(values), "LOCKSTEP_ROUNDS, LOCKSTEP_SEED")


def start_apart(*command: str) -> None:
    """Starts a command that the container's init adopts: the coordinator, which this process
    becomes, would not reap a child of its own.
    """
    subprocess.run(["sh", "-c", '"$@" &', "sh", *command], check=True)


def main() -> NoReturn:
    """Replaces this process by the coordinator, or ends it with an error line."""
    run_file = STATE / "run.toml"
    try:
        prepare(TEMPLATE, run_file, os.environ)
    except LockstepError as error:
        error_line(str(error))
        sys.exit(exit_code(error))
    start_apart(sys.executable, str(INVITE))
    command = ["lockstep", "coordinator", str(run_file), *sys.argv[1:]]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

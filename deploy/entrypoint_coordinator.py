"""The coordinator of the compose file: writes the run file of a new run, then becomes `lockstep
coordinator`.

    first start    /run.toml (from the host) with LOCKSTEP_ROUNDS and LOCKSTEP_SEED -> /state/run.toml
    later starts   /state/run.toml as it is: a run is what it was when it began

A run's name is a hash of its run file, so changing it would be another run: that needs an empty
volume."""

import os
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


def prepare(template: Path, run_file: Path, environment: Mapping[str, str]) -> None:
    """Writes `run_file`, unless it is there; `SettingsError` names what is wrong with template or
    environment."""
    asked = with_settings(read_run_file(template), environment)
    if not run_file.exists():
        write_run_file(run_file, asked)
    elif read_run_file(run_file) != asked:
        print(
            f"{run_file} is of a run that has begun and goes on; `docker compose down --volumes` ends it",
            flush=True,
        )


def with_settings(spec: RunSpec, environment: Mapping[str, str]) -> RunSpec:
    """`spec` with what the environment says of length and seed, checked as any run file is."""
    values = msgspec.json.decode(run_json(spec))
    for variable, table, field in (
        ("LOCKSTEP_ROUNDS", values["schedule"], "steps"),
        ("LOCKSTEP_SEED", values, "seed"),
    ):
        if text := environment.get(variable, ""):
            # What is no number stays text: the run file's check says what it expected.
            table[field] = int(text) if text.isdecimal() else text
    return parse_run_json(msgspec.json.encode(values), "LOCKSTEP_ROUNDS, LOCKSTEP_SEED")


def main() -> NoReturn:
    """Replaces this process by the coordinator, or ends it with the reason in one line."""
    run_file = STATE / "run.toml"
    try:
        prepare(TEMPLATE, run_file, os.environ)
    except LockstepError as error:
        error_line(str(error))
        sys.exit(exit_code(error))
    command = ["lockstep", "coordinator", str(run_file), *sys.argv[1:]]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

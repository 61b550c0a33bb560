"""`lockstep init`: asks a few questions and writes a commented run file."""

import json
import sys
from pathlib import Path

import typer

from lockstep.exit_codes import UsageError
from lockstep.run_file import require_replaceable
from protocol.runfile import RunSpec, parse_run_json


def ask(path: Path, *, force: bool) -> RunSpec:
    """A run file from a few answers and defaults for the rest.

    Raises `UsageError` when standard input is no terminal, or when `path` exists without `force`:
    better before the questions than after them.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "standard input is not a terminal; `lockstep init --defaults` asks no questions"
        )
    require_replaceable(path, force=force)
    defaults = RunSpec()
    answers = {
        "name": typer.prompt("Name of the run", default=defaults.name),
        "schedule": {"steps": typer.prompt("Steps to train", default=defaults.schedule.steps)},
        "data": {"corpus": typer.prompt("Corpus", default=defaults.data.corpus)},
    }
    return parse_run_json(json.dumps(answers).encode(), "answers")

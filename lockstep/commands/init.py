"""`lockstep init`: asks a few questions and writes a commented run file."""

import json
import sys
from pathlib import Path

import typer

from lockstep.console import own_command
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


def audit_warning(spec: RunSpec) -> str:
    """Why the run could not be audited from its first round, and what to do; empty when it can."""
    kept, steps = spec.retention.log_rounds, spec.schedule.steps
    if kept >= steps:
        return ""
    return (
        f"warning: nodes keep the payloads of the last {kept} rounds (retention.log_rounds), and "
        f"the run has {steps} steps: without an archive nobody can audit its first rounds. Run "
        f"{own_command()} auditor LINK, or {own_command()} relay LINK --archive, from the start "
        f"of the run on, or set log_rounds to {steps} or more"
    )


def chosen(path: Path, published: Path | None, *, defaults: bool, force: bool) -> RunSpec:
    """The run file of `lockstep init`: from a published configuration, of defaults, or as asked.

    Raises `SettingsError` for a configuration that cannot be trained, and as `ask` does.
    """
    if published is None:
        return RunSpec() if defaults else ask(path, force=force)
    from lockstep.commands.check_run import check_run, published_run

    spec = published_run(published)
    check_run(spec)
    return spec

"""`lockstep init`: asks a few questions and writes a commented run file."""

import json
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer

from lockstep.commands.check_run import check_run, mixing_facts, published_run, with_room
from lockstep.console import error_line, messages, output, own_command
from lockstep.exit_codes import UsageError
from lockstep.presets import ORIGIN, at_its_width, run_of
from lockstep.run_file import require_replaceable, write_run_file
from lockstep.service.invitation import own_host
from lockstep.volunteer.needs import exchange_text, memory_text, sized
from node.data.builtin import BUILTIN_CORPUS, BUILTIN_SHA256
from protocol.errors import SettingsError
from protocol.planner.feasibility import unsummed
from protocol.planner.needs import needs_of
from protocol.planner.parameters import has_layout, size_of
from protocol.planner.sums import authors_from, with_sums
from protocol.runfile import RunSpec, parse_run_json, run_json
from protocol.words import quantity

DEFAULT = RunSpec().algorithm.name
"""The algorithm where none is named."""

HOST = "Name or address at which others reach this machine"

MANIFEST = "SHA-256 of the data's manifest, which `lockstep data prepare` prints"

URL = "URL at which the data are published (`lockstep data publish`)"


def init(
    path: Path,
    published: Path | None,
    algorithm: str,
    nodes: int,
    *,
    public: bool,
    defaults: bool,
    force: bool,
) -> None:
    """Writes the run file and says what the operator should know of it, and do next. Errors as of
    `chosen` and `for_strangers`.
    """
    spec = for_crowd(chosen(path, published, algorithm, defaults=defaults, force=force), nodes)
    asks = not defaults and published is None
    host = own_host()
    if public:
        spec = for_strangers(spec, asks=asks)
        host = str(typer.prompt(HOST, default=host)).strip() if asks else host
    write_run_file(path, spec, force=force)
    for remark in remarks(spec):
        messages.print(remark, soft_wrap=True)
    for line in next_commands(path, spec, host) if public else [next_command(path)]:
        output.print(line, soft_wrap=True)


def for_crowd(spec: RunSpec, nodes: int) -> RunSpec:
    """The run file of a crowd of this many nodes: where these send less if some add for all,
    they do. Says so where only the model is in the way. `SettingsError` for a model that no payload
    is large enough for.
    """
    size = sized(spec) if spec.algorithm.facts.steps_within_round and nodes else None
    if size is None or not 0 < authors_from(spec.algorithm, size) <= nodes:
        return spec
    if flaw := unsummed(spec.model):
        messages.print(f"note: --nodes {nodes}: {flaw}", soft_wrap=True, markup=False)
        return spec
    return with_room(with_sums(spec, size))


def for_strangers(spec: RunSpec, *, asks: bool) -> RunSpec:
    """The run file of a run in which strangers work and do not decide, and whose work can be
    audited; where the data are somebody's own it `asks` for them.

    Raises `SettingsError` for an algorithm with which that cannot be.
    """
    values = json.loads(run_json(spec))
    values["membership"]["trust"] = "public"
    if spec.data.corpus == BUILTIN_CORPUS:
        values["data"]["manifest_sha256"] = BUILTIN_SHA256
    found = parse_run_json(json.dumps(values).encode(), ORIGIN)
    if asks and not found.data.manifest_sha256:
        found = _asked(MANIFEST, "none", partial(_with_data, found, "manifest_sha256"))
        if found.data.manifest_sha256:
            found = _asked(URL, "none", partial(_with_data, found, "url"))
    return found


def _with_data(spec: RunSpec, field: str, answer: str) -> RunSpec:
    values = json.loads(run_json(spec))
    values["data"][field] = "" if answer == "none" else answer
    return parse_run_json(json.dumps(values).encode(), ORIGIN)


def next_command(path: Path) -> str:
    """What comes next among people who know each other."""
    return (
        f"wrote {path}; next: {own_command()} coordinator {shlex.quote(str(path))} --listen "
        "0.0.0.0:50700 (without --listen for this machine alone)"
    )


def next_commands(path: Path, spec: RunSpec, host: str) -> list[str]:
    """What comes next in a run for strangers, in order: commands, each below what it is for."""
    own, file, nodes = own_command(), shlex.quote(str(path)), spec.rounds.quorum
    start = f"{own} coordinator {file} --listen 0.0.0.0:50700 --advertise {shlex.quote(host)}"
    steps = {
        f"wrote {path}; next, from this directory": (
            f"{start} --admit token --public-page 0.0.0.0:8080"
        ),
        f"for {quantity(nodes, 'node')} of yours, which decide and without which none begins": (
            f"{own} run token create --vouch --uses {nodes}"
        ),
        "for strangers": f"{own} invite --uses 20",
    }
    if spec.data.manifest_sha256:
        judge = f"{own} run auditor add KEY"
        steps["for a judge of their work, the KEY of `lockstep auditor LINK` elsewhere"] = judge
    lines = [f"{words}:\n  {command}" for words, command in steps.items()]
    unaudited = "note: nobody can audit the strangers' work: data.manifest_sha256 is empty"
    return lines if spec.data.manifest_sha256 else [*lines, unaudited]


def ask(path: Path, algorithm: str, *, force: bool) -> RunSpec:
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
    named = _asked("Name of the run", defaults.name, _named)
    if not algorithm:
        question = "Algorithm (local_steps, demo, gossip-adam)"
        algorithm = _asked(question, DEFAULT, run_of).algorithm.name
    length = _asked(
        "Steps to train",
        str(defaults.schedule.steps),
        lambda text: run_of(algorithm, schedule={"steps": _number(text)}),
    )
    data = _asked(
        "Corpus", defaults.data.corpus, lambda text: run_of(algorithm, data={"corpus": text})
    )
    parts = {"name": named.name, "schedule": length.schedule, "data": data.data}
    return run_of(algorithm).model_copy(update=parts)


def _asked(question: str, default: str, judge: Callable[[str], RunSpec]) -> RunSpec:
    """The run file that one answer makes; an answer out of its bounds is asked for again."""
    while True:
        try:
            return judge(str(typer.prompt(question, default=default)).strip())
        except SettingsError as error:
            error_line(str(error).removeprefix(f"{ORIGIN}: "))


def _named(name: str) -> RunSpec:
    return parse_run_json(json.dumps({"name": name}).encode(), ORIGIN)


def _number(text: str) -> int | str:
    """A whole number as such; anything else is judged as it stands."""
    return int(text) if len(text) < 20 and text.removeprefix("-").isdecimal() else text


def remarks(spec: RunSpec) -> list[str]:
    """What the operator should know of a run file that was just written."""
    uses = _uses(spec)
    if not spec.algorithm.facts.replicas_equal:
        return [
            mixing_facts(spec),
            *uses,
            "note: in a gossip-adam run nodes differ by design: no audit, and no --restart-from",
        ]
    return uses + ([warning] if (warning := audit_warning(spec)) else [])


def _uses(spec: RunSpec) -> list[str]:
    """What a node sends in a round and holds; nothing for a model whose size needs torch."""
    if not has_layout(spec.model):
        return []
    size = size_of(spec.model)
    return [
        f"traffic of a node: {exchange_text(spec, size, 1, 'a round', spec.rounds.sums)}",
        f"memory of a node: {memory_text(needs_of(spec, size))}",
    ]


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


def chosen(
    path: Path, published: Path | None, algorithm: str, *, defaults: bool, force: bool
) -> RunSpec:
    """The run file of `lockstep init`: from a published configuration, of defaults, or as asked;
    for an algorithm, if one is named.

    Raises `SettingsError` for a configuration that cannot be trained, and as `ask` does.
    """
    if published is None:
        return run_of(algorithm or DEFAULT) if defaults else ask(path, algorithm, force=force)
    spec = run_of(algorithm or DEFAULT)
    spec = at_its_width(spec.model_copy(update={"model": published_run(published).model}))
    spec = with_room(spec)
    check_run(spec)
    return spec

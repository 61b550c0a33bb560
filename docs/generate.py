"""Writes the reference pages that are made from code: `python docs/generate.py [--check]`.

    run-file.md    protocol/runfile.py: docstrings, bounds and defaults of the fields
    settings.md    the command line: every command, option, variable and default
    wire.md        protocol/wire.proto with its comments
    metrics.md     the metrics that a coordinator, a node and a relay register

--check writes nothing: it compares the pages with the code and ends with 1 when one is out of date.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `python docs/generate.py` has only docs/ on its path

import typer  # noqa: E402
from prometheus_client import CollectorRegistry  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from lockstep.cli import app  # noqa: E402
from protocol.runfile import RunSpec  # noqa: E402

REFERENCE = ROOT / "docs" / "reference"

MADE_FROM = "<!-- Made by docs/generate.py from {}; run `make docs` after a change there. -->\n\n"

# ---- the run file

UNITS = {
    "ms": "milliseconds",
    "bytes": "bytes",
    "samples": "samples",
    "length": "tokens",
    "bits": "bits",
    "steps": "steps",
    "rounds": "rounds",
    "members": "members",
    "strikes": "strikes",
    "quorum": "members",
    "copies": "members",
    "neighbours": "peers",
    "overlap": "rounds",
    "snapshot": "steps",
}
"""Unit of a number by a word of its field's name; the first word that is here decides."""

FIRST_ROUND = "_from"
"""End of the name of a field that names a round."""

RUN_FILE_HEAD = """\
# The run file

The run file holds everything on which all parties of a run must agree. The operator writes it in
TOML (`lockstep init` writes one with every field explained), the coordinator serves it, and every
node checks it again before it builds anything. A field that is left out takes its default. An
unknown field, or a value outside its bounds, is an error that names the field.

The run's name on the wire, its *run id*, is a hash of this file and of the coordinator's key:
whoever changes a field after the start has another run.

## Rules between fields

- `rounds.quorum` is at most `membership.members_max`.
- `membership.lease_ms` is at least twice `membership.heartbeat_ms`.
- `retention.snapshot_every` is at most `retention.log_rounds`: a node that begins with a snapshot
  must find the payloads of all later rounds.
- `membership.members_max` x largest value x `algorithm.vote_rounds` is at most 16,777,215, where
  the largest value is 2^(`algorithm.value_bits` - 1): the sum of all votes must stay
  [exact](../explain/equal-bits.md).
"""


def run_file() -> str:
    """The page of the run file."""
    text = MADE_FROM.format("protocol/runfile.py") + RUN_FILE_HEAD
    return text + "".join(_section(RunSpec, "", RunSpec()))


def _section(kind: type[BaseModel], path: str, defaults: BaseModel) -> Iterator[str]:
    fields = kind.model_json_schema()["properties"]
    nested = [name for name in fields if isinstance(getattr(defaults, name), BaseModel)]
    title = f"`[{path}]`" if path else "At the top"
    yield f"\n## {title}\n\n{_prose(kind.__doc__ or '')}\n"
    for name, schema in fields.items():
        if name not in nested:
            yield _field(f"{path}.{name}" if path else name, schema, getattr(defaults, name))
    for name in nested:
        value = getattr(defaults, name)
        yield from _section(type(value), f"{path}.{name}" if path else name, value)


def _field(path: str, schema: dict[str, Any], default: object) -> str:
    name = path.rpartition(".")[2]
    facts = [fact for fact in (_kind(schema), unit(name, schema), *_bounds(schema)) if fact]
    text = f"\n### `{name}` {{#{path.replace('.', '-')}}}\n\n"
    if isinstance(default, dict):
        table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in default.items())
        block = f'\n```toml title="default"\n[{path}]\n{table}```\n'
    else:
        facts, block = [*facts, f"default `{json.dumps(default)}`"], ""
    return f"{text}{', '.join(facts)}\n{{: .facts }}\n\n{_prose(schema['description'])}\n{block}"


def unit(name: str, schema: dict[str, Any]) -> str:
    """The unit of a number, empty for one that has none."""
    if schema.get("type") != "integer" and "enum" not in schema:
        return ""
    if name.endswith(FIRST_ROUND):
        return "number of a round"
    return next((UNITS[word] for word in name.split("_") if word in UNITS), "")


def _kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(f"`{json.dumps(choice)}`" for choice in schema["enum"])
    if "const" in schema:
        return f"only `{json.dumps(schema['const'])}`"
    return {"string": "text", "number": "number", "integer": "whole number"}.get(
        schema["type"], "table"
    )


def _bounds(schema: dict[str, Any]) -> Iterator[str]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        yield f"{_number(least)} to {_number(most)}"
    elif least is not None:
        yield f"at least {_number(least)}"
    elif most is not None:
        yield f"at most {_number(most)}"
    if "exclusiveMinimum" in schema:
        yield f"above {_number(schema['exclusiveMinimum'])}"
    if "exclusiveMaximum" in schema:
        yield f"below {_number(schema['exclusiveMaximum'])}"
    if "maxLength" in schema:
        yield f"{schema.get('minLength', 0)} to {schema['maxLength']} characters"
    if "pattern" in schema:
        yield f"matches `{schema['pattern']}`"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _prose(text: str) -> str:
    """A docstring as one paragraph, its paths to pages of results as links."""
    joined = " ".join(text.split())
    return re.sub(r"docs/([a-z]+)/([a-z-]+)\.md", r"[\1: \2](../\1/\2.md)", joined)


# ---- settings

SETTINGS_HEAD = """\
# Commands and settings

Every command of `lockstep`, with its options. An option's value comes from, the later winning:

1. the default below;
2. the settings file, `lockstep --settings FILE COMMAND`: TOML with one table per command, such as
   `[join]` or `[data.prepare]`, and one line per option, named as on the command line without its
   dashes;
3. the environment variable;
4. the option on the command line.

A relative path counts from the directory in which the command runs, `~` is the user's home.
`lockstep COMMAND --help` prints the same. The exit codes are in
[troubleshooting](../guide/troubleshooting.md#exit-codes).
"""

DEFAULT_IN_HELP = re.compile(r"\s*\\?\[default: (.+?)\\?\]")


def settings() -> str:
    """The page of the command line."""
    root = typer.main.get_command(app)
    text = MADE_FROM.format("the command line of lockstep/cli.py") + SETTINGS_HEAD
    return text + "".join(_command(root, ("lockstep",)))


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    commands = getattr(command, "commands", {})
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    if len(path) == 1 or not commands:
        name = " ".join(path)
        yield f"\n## `{name}`\n\n{command.help or ''}\n\n"
        arguments = [_label(each) for each in shown if each.param_type_name == "argument"]
        usage = " ".join([name, "[OPTIONS]", *arguments, *(["COMMAND ..."] if commands else [])])
        yield f"```\n{usage}\n```\n"
        rows = [_parameter(each) for each in shown]
        if rows:
            yield "\n" + _table(("option", "variable", "default", "meaning"), rows)
    for inner in sorted(commands):
        yield from _command(commands[inner], (*path, inner))


def _label(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = str(parameter.metavar or parameter.name.upper())
        return name if parameter.required else f"[{name}]"
    return ", ".join(parameter.opts)


def _parameter(parameter: Any) -> tuple[str, ...]:
    text = parameter.help or {"version": "Print the version."}.get(parameter.name, "")
    told = DEFAULT_IN_HELP.search(text)
    text = DEFAULT_IN_HELP.sub("", text)
    if bounds := _range(parameter):
        text = f"{text} {bounds}"
    if told:
        default = told[1]
    elif parameter.required:
        default = "required"
    elif getattr(parameter, "is_flag", False) or parameter.default in (None, "", ()):
        default = ""
    else:
        default = f"`{parameter.default}`"
    variable = f"`{parameter.envvar}`" if getattr(parameter, "envvar", None) else ""
    return f"`{_label(parameter)}`", variable, default, text


def _range(parameter: Any) -> str:
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if least is None:
        return ""
    return (
        f"({_number(least)} to {_number(most)})"
        if most is not None
        else f"(at least {_number(least)})"
    )


# ---- the wire

WIRE_HEAD = """\
# The wire

The service `lockstep.v1.Coordinator` over gRPC, and the control frames of a link between two
peers. {}

The bytes of a commit and of a payload are no protobuf messages: they have canonical encodings of
their own, described in `protocol/commits.py` and `protocol/payload.py` and, in short, in [equal
bits](../explain/equal-bits.md). An empty field is zero, empty or false, as in every proto3
message.
"""

_COMMENT = re.compile(r"//\s?(.*)$")
_FIELD = re.compile(r"((?:repeated )?[\w.]+) (\w+) = (\d+);")
_VALUE = re.compile(r"([A-Z_]+) = (\d+);")
_CALL = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")


class _Line(NamedTuple):
    code: str
    comment: str


def wire() -> str:
    """The page of the protobuf messages."""
    lines = [_split(line) for line in (ROOT / "protocol" / "wire.proto").read_text().splitlines()]
    until = [line.code for line in lines].index('syntax = "proto3";')
    opening = " ".join(line.comment for line in lines[:until])
    text = MADE_FROM.format("protocol/wire.proto") + WIRE_HEAD.format(opening)
    return text + "".join(_messages(lines))


def _split(line: str) -> _Line:
    comment = _COMMENT.search(line)
    return _Line(_COMMENT.sub("", line).strip(), comment[1].strip() if comment else "")


def _messages(lines: list[_Line]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    values: list[tuple[str, ...]] = []
    said: list[str] = []
    for code, comment in lines:
        if not code and comment.startswith("----"):
            yield f"\n## {comment.strip('- ').capitalize()}\n"
            said = []
        elif not code:
            said = [*said, comment] if comment else []
        elif code.startswith("service"):
            yield f"\n## Service `{code.split()[1]}`\n"
        elif call := _CALL.match(code):
            asked, told = (f"{'a stream of ' if call[at] else ''}`{call[at + 1]}`" for at in (2, 4))
            yield f"\n### `{call[1]}`\n\n{asked} to {told}. {' '.join(said)}\n".replace(
                ". \n", ".\n"
            )
            said = []
        elif code.startswith("message"):
            yield f"\n### `{code.split()[1]}`\n\n" + (" ".join(said) + "\n\n" if said else "")
            rows, said = [], []
            if code.endswith("{}"):
                yield "No fields.\n"
        elif field := _FIELD.match(code):
            rows.append((field[3], f"`{field[2]}`", f"`{field[1]}`", comment))
        elif value := _VALUE.match(code):
            values.append((value[2], f"`{value[1]}`", comment))
        elif code == "}" and values:
            yield "Values of its codes:\n\n" + _table(("", "code", "meaning"), values) + "\n"
            values = []
        elif code == "}" and rows:
            yield _table(("", "field", "type", "meaning"), rows)
            rows = []


# ---- metrics

METRICS_HEAD = """\
# Metrics

A coordinator, a node and a relay serve these at `/metrics` of their admin port, for Prometheus. A
counter never falls while its process lives. Sizes are in bytes, losses in nats per token. The
bytes of transport overhead are there only where the kernel tells of them (Linux); the loss
appears with the first one. `docker compose --profile monitoring up` has dashboards and alerts
made of them.
"""


def metrics() -> str:
    """The page of the metrics."""
    text = MADE_FROM.format("the metrics that the processes register") + METRICS_HEAD
    for title, registry in (
        ("Coordinator", _coordinator_registry()),
        ("Node", _node_registry()),
        ("Relay", _relay_registry()),
    ):
        rows = [row for family in registry.collect() for row in _family(family)]
        text += f"\n## {title}\n\n" + _table(("name", "type", "labels", "meaning"), rows)
    return text


def _family(family: Any) -> Iterator[tuple[str, ...]]:
    values: dict[str, list[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            values.setdefault(label, []).append(value)
    labels = "; ".join(
        f"{label}: {', '.join(dict.fromkeys(found))}" for label, found in values.items()
    )
    name = family.name + ("_total" if family.type == "counter" else "")
    yield f"`{name}`", family.type, labels, family.documentation


def _coordinator_registry() -> CollectorRegistry:
    from coordinator.metrics import registry
    from coordinator.traffic import Traffic

    rounds = _module("coordinator.machine.rounds", "coordinator.rounds").Rounds(RunSpec(), "0" * 32)
    rounds.loss = 1.0
    return registry(rounds, Traffic(lambda up, down: (0, 0)))


def _node_registry() -> CollectorRegistry:
    module = _module("node.status", "node.progress")
    known = module.Progress("0" * 32, "node")
    known.loss = 1.0
    known.traffic = {"overhead_up_bytes": 0, "overhead_down_bytes": 0}
    made: CollectorRegistry = module.registry(known)
    return made


def _relay_registry() -> CollectorRegistry:
    module = _module("node.relay.metrics", "node.relay")
    collector = getattr(module, "RelayCollector", None) or module._Collector
    owners = ("payload", "catch_up", "control", "overhead")
    traffic = {f"{owner}_{way}_bytes": 0 for owner in owners for way in ("up", "down")}
    document = {"links": {}, "round": -1, "payloads": {"bytes": 0}, "traffic": traffic}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector(SimpleNamespace(status=lambda: document)))
    return registry


def _module(*names: str) -> Any:
    """The first of these modules that there is."""
    found = next(name for name in names if find_spec(name.rpartition(".")[0]) and find_spec(name))
    return import_module(found)


# ---- all of them


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


PAGES = {"run-file.md": run_file, "settings.md": settings, "wire.md": wire, "metrics.md": metrics}


def outdated() -> list[str]:
    """Names of the pages that are not what the code says."""
    known = ((name, REFERENCE / name, make()) for name, make in PAGES.items())
    return [name for name, path, text in known if not path.exists() or path.read_text() != text]


def main() -> int:
    """Write or compare; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    if not parser.parse_args().check:
        for name, make in PAGES.items():
            (REFERENCE / name).write_text(make())
        return 0
    for name in (names := outdated()):
        print(f"docs/reference/{name} is not what the code says; run: python docs/generate.py")
    return int(bool(names))


if __name__ == "__main__":
    sys.exit(main())

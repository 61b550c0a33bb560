"""`lockstep init`: a commented run file, made from the run file's own descriptions, bounds and
defaults.

Nothing is written twice: `protocol.runfile` documents each field where it is declared, and this
module lays those texts out as TOML comments. What it writes parses back to the `RunSpec` it was
given.
"""

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from lockstep.exit_codes import UsageError
from node.system.files import replacing_file
from protocol.runfile import RunSpec, parse_run_json

_EXISTS = "{path} exists already; --force replaces it, or choose another path"

COMMENT_COLUMNS = 100
"""Comments are wrapped to this width."""

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "must match {}",
    "const": "only {}",
}
"""JSON schema's words for a bound, in a person's."""

_HEADING = (
    "# A run file of Lockstep: what all parties of a run agree on. The coordinator reads it (`lockstep coordinator\n"
    "# FILE`), serves it, and every node checks it again. Fields that you delete take their defaults.\n"
)


def write_run_file(path: Path, spec: RunSpec, *, force: bool = False) -> None:
    """Writes a commented run file; `UsageError` when there is one already and `force` is not
    set.
    """
    if path.exists() and not force:
        raise UsageError(_EXISTS.format(path=path))
    with replacing_file(path) as temporary:
        temporary.write_text(run_file_text(spec), encoding="utf-8")


def run_file_text(spec: RunSpec) -> str:
    """The run file of `spec` as commented TOML, every field written out."""
    return _HEADING + "".join(_table(spec, type(spec)(), ""))


def _table(values: BaseModel, defaults: BaseModel, name: str) -> Iterator[str]:
    """Plain fields first, then sub-tables: in TOML what follows a table's header belongs to that
    table.
    """
    fields = type(values).model_json_schema()["properties"]
    tables = [field for field in fields if isinstance(getattr(values, field), BaseModel | dict)]
    if name:
        yield f"\n# {type(values).__doc__}\n[{name}]\n"
    for field in fields:
        if field not in tables:
            yield _comment(fields[field], getattr(defaults, field))
            yield f"{field} = {_toml(getattr(values, field))}\n"
    for field in tables:
        path = f"{name}.{field}" if name else field
        value = getattr(values, field)
        if isinstance(value, BaseModel):
            yield from _table(value, getattr(defaults, field), path)
        else:
            yield _comment(fields[field], None) + f"[{path}]\n"
            yield from (f"{_key(key)} = {_toml(item)}\n" for key, item in value.items())


def _comment(schema: Mapping[str, Any], default: object) -> str:
    facts = [words.format(schema[name]) for name, words in _BOUNDS.items() if name in schema]
    if "enum" in schema:
        facts.append("one of " + ", ".join(_toml(choice) for choice in schema["enum"]))
    if default is not None:
        facts.append(f"default {_toml(default)}")
    lines = textwrap.wrap(" ".join(schema.get("description", "").split()), COMMENT_COLUMNS - 2)
    return "\n" + "".join(
        f"# {line}\n" for line in [*lines, f"[{'; '.join(facts)}]"] if line != "[]"
    )


def _toml(value: object) -> str:
    """One value as TOML; JSON's strings, numbers, booleans and arrays are TOML's too."""
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("-", "_").isidentifier() else json.dumps(key)


def ask(path: Path, *, force: bool) -> RunSpec:
    """A run file from a few answers, the rest defaults; `UsageError` when there is nobody to
    answer.
    """
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to answer: `lockstep init --defaults` asks nothing")
    if path.exists() and not force:
        raise UsageError(_EXISTS.format(path=path))
    defaults = RunSpec()
    answers = {
        "name": typer.prompt("Name of the run", default=defaults.name),
        "schedule": {"steps": typer.prompt("Steps to train", default=defaults.schedule.steps)},
        "data": {"corpus": typer.prompt("Corpus", default=defaults.data.corpus)},
    }
    return parse_run_json(json.dumps(answers).encode(), "answers")

"""Run files on disk: reading one, and writing a commented one.

The comments are made from the descriptions, bounds and defaults that `protocol.runfile` declares
beside each field, so nothing is written twice. A written file parses back to the same `RunSpec`.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lockstep.exit_codes import UsageError
from node.system.files import replacing_file
from protocol.errors import SettingsError
from protocol.runfile import RunSpec, parse_run_file

COMMENT_COLUMNS = 100
"""Width of comments."""

PAGES = re.compile(r" \(docs/\S+\.md\)|, docs/\S+\.md(?=\))")
"""Pages of the documentation, as a docstring cites them."""

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "{} or more characters",
    "maxLength": "at most {} characters",
    "pattern": "must match {}",
    "const": "only {}",
}
"""Wording of each bound of a JSON schema."""

_HEADING = """\
# A run file of Lockstep: the settings that all parties of a run agree on. The coordinator reads it
# (`lockstep coordinator FILE`) and serves it, and every node checks it again. A field that you
# delete takes its default.
"""


def read_run_file(path: Path) -> RunSpec:
    """The run file at `path`.

    Raises `SettingsError` when it is missing or wrong, `VersionError` for another format.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"cannot read run file {path}: {error.strerror}; `lockstep init` writes one"
        ) from None
    return parse_run_file(text.decode("utf-8", errors="replace"), str(path))


def require_replaceable(path: Path, *, force: bool) -> None:
    """Raises `UsageError` when `path` exists and `force` is not set."""
    if path.exists() and not force:
        raise UsageError(f"{path} already exists; choose another path, or replace it with --force")


def write_run_file(path: Path, spec: RunSpec, *, force: bool = False) -> None:
    """Writes a commented run file; `UsageError` when the file exists and `force` is not set."""
    require_replaceable(path, force=force)
    with replacing_file(path) as temporary:
        temporary.write_text(run_file_text(spec), encoding="utf-8")


def run_file_text(spec: RunSpec) -> str:
    """The run file of `spec` as commented TOML, every field written out."""
    return _HEADING + "".join(_table(spec, type(spec)(), ""))


def _table(values: BaseModel, defaults: BaseModel, name: str) -> Iterator[str]:
    """Plain fields first, then sub-tables: in TOML a field after a table's header belongs to it."""
    fields = type(values).model_json_schema()["properties"]
    tables = [field for field in fields if isinstance(getattr(values, field), BaseModel | dict)]
    if name:
        yield f"\n{_wrapped(type(values).__doc__ or '')}[{name}]\n"
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
    bounds = f"# [{'; '.join(facts)}]\n" if facts else ""
    return "\n" + _wrapped(schema.get("description", "")) + bounds


def _wrapped(text: str) -> str:
    """A comment of any number of lines; line breaks in `text` count as spaces. An installed command
    has no pages, so none is named.
    """
    words = PAGES.sub("", " ".join(text.split()))
    lines = textwrap.wrap(words, COMMENT_COLUMNS - 2, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines)


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

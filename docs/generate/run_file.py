"""The page of the run file: docstrings, bounds and defaults of protocol/runfile.py."""

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from docs.generate.tables import made_from, number
from protocol.runfile import RunSpec

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
    "sums": "authors",
    "copies": "members",
    "neighbours": "peers",
    "overlap": "rounds",
    "audit": "rounds",
    "snapshot": "steps",
    "mean": "steps",
    "accumulate": "gradients",
    "critical": "updates",
    "checkpoint": "steps",
}
"""Unit of a number by a word of its field's name; the first word that is here decides."""

BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
"""JSON schema's names of bounds, in words."""

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
- With the `algorithm.name` demo `rounds.overlap` is 0.
- With the `algorithm.name` gossip-adam `membership.trust` is known, `membership.members_max` is at
  most 256 (64 with the topology complete), and of `[algorithm]` only `mixing` may be set; with any
  other name `mixing` may not.
- With the `algorithm.name` local_steps `rounds.batch_samples_max` and `membership.members_max` add
  up to at most 16,777,215: nodes weigh by their samples, and sums must stay
  [exact](../explain/equal-bits.md).
"""


def run_file() -> str:
    """The page of the run file."""
    text = made_from("protocol/runfile.py") + RUN_FILE_HEAD
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
    facts = [_measured(_kind(schema), unit(name, schema)), *_bounds(schema)]
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
    return next((UNITS[word] for word in name.split("_") if word in UNITS), "")


def _measured(kind: str, of: str) -> str:
    if kind != "whole number":
        return f"{kind} {of}".rstrip()
    return f"{kind} of {of}" if of else kind


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
        yield f"{number(least)} to {number(most)}"
        return
    for bound, words in BOUNDS.items():
        if bound in schema:
            yield f"{words} {number(schema[bound])}"
    if "maxLength" in schema:
        yield f"{schema.get('minLength', 0)} to {schema['maxLength']} characters"
    if "pattern" in schema:
        yield f"matches `{schema['pattern']}`"


def _prose(text: str) -> str:
    """A docstring as one paragraph, its paths to pages of results as links."""
    joined = " ".join(text.split())
    return re.sub(r"docs/([a-z]+)/([a-z-]+)\.md", r"[\1: \2](../\1/\2.md)", joined)

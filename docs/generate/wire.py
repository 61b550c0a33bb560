"""The page of the protobuf messages: protocol/wire.proto with its comments."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from docs.generate.tables import ROOT, made_from, table

WIRE_HEAD = """\
# The wire

The service `lockstep.v1.Coordinator` over gRPC, and the control frames of a link between two
peers. {}

The bytes of a commit and of a payload are no protobuf messages: they have canonical encodings of
their own, described in `protocol/codec/commits.py` and `protocol/codec/payload.py` and, in
short, in [equal bits](../explain/equal-bits.md). An empty field is zero, empty or false, as in
every proto3 message.
"""

_COMMENT = re.compile(r"//\s?(.*)$")
_FIELD = re.compile(r"((?:repeated |optional )?[\w.]+) (\w+) = (\d+);")
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
    text = made_from("protocol/wire.proto") + WIRE_HEAD.format(opening)
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
            yield "Values of its codes:\n\n" + table(("", "code", "meaning"), values) + "\n"
            values = []
        elif code == "}" and rows:
            yield table(("", "field", "type", "meaning"), rows)
            rows = []

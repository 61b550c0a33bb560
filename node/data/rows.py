"""Rows of JSON Lines, JSON arrays, CSV and Parquet files: each row's text is a document.

A text is a string, or a chat: a list of messages, each with `role` and `content` (or `from` and
`value`). A chat becomes a paragraph "role: content" for each message.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from typing import IO, Any

from node.data.text import UnreadableError

TEXT_COLUMN = "text"
"""Field of a row that holds its text, unless another is asked for."""

ROW_CHARACTERS_MAX = 2**24
"""Characters of a row of a table: an open quote makes one of the whole rest of a file."""

Row = tuple[int, Any]
"""A row's number in its file and its value: an object, a text, or an `UnreadableError`."""

_DELIMITERS = {".csv": ",;\t", ".tsv": "\t,;"}
"""Suffixes of tables, with the delimiters that they may have."""

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_OBJECTS = re.compile(r"\s*\[\s*\{")
_KINDS = "JSON Lines, a JSON array of objects, CSV, TSV or Parquet"


def text_rows(text: str, suffix: str, column: str, *, asked: bool) -> Iterator[Row] | None:
    """The rows of a text file, by its suffix and what it is; None where it is a text.

    asked: a person said that it has rows. Raises `UnreadableError` where it has none then.
    """
    if suffix in (".jsonl", ".ndjson"):
        return _json_lines(text)
    if delimiters := _DELIMITERS.get(suffix):
        return _table_rows(text, column, delimiters)
    if suffix == ".json" or asked:
        if _OBJECTS.match(text):
            return _json_array(text)
        beginning = [row for _, row in zip(range(2), _json_lines(text), strict=False)]
        if len(beginning) > (not asked) and all(isinstance(row, dict) for _, row in beginning):
            return _json_lines(text)
    if asked:
        raise UnreadableError(f"a file without rows, which are {_KINDS}")
    return None


def _json_lines(text: str) -> Iterator[Row]:
    """Rows of JSON Lines, blank lines left out."""
    for number, line in enumerate(text.split("\n")):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, UnreadableError("not JSON")


def _json_array(text: str) -> Iterator[Row]:
    try:
        yield from enumerate(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"a damaged JSON array: {error}; fetch it again") from error


def _table_rows(text: str, column: str, delimiters: str) -> Iterator[Row]:
    """Rows below the header line of a table, which tells the delimiter."""
    tables = [_records(text, delimiter) for delimiter in delimiters]
    headers = [[name.strip() for name in next(table, [])] for table in tables]
    header, table = max(
        zip(headers, tables, strict=True), key=lambda found: (column in found[0], len(found[0]))
    )
    if column not in header:
        raise UnreadableError(_no_text(column, header))
    for number, fields in enumerate(table):
        if len(fields) == len(header):
            yield number, dict(zip(header, fields, strict=True))
        else:
            yield number, UnreadableError("another number of fields than the header has")


def _records(text: str, delimiter: str) -> Iterator[list[str]]:
    """The fields of each record of a table; `UnreadableError` for a record that never ends."""
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for line in _LINE.finditer(text):
            read += line.end() - line.start()
            if read > ROW_CHARACTERS_MAX:
                raise UnreadableError(
                    f"a table with a row of more than {ROW_CHARACTERS_MAX:,} characters; perhaps a "
                    "quote is not closed"
                )
            yield line[0]

    csv.field_size_limit(ROW_CHARACTERS_MAX)
    try:
        for fields in csv.reader(lines(), delimiter=delimiter):
            read = 0
            if fields:
                yield fields
    except csv.Error as error:
        raise UnreadableError(f"a damaged table: {error}") from error


def parquet_rows(file: IO[bytes], column: str) -> Iterator[Row]:
    """Rows of a Parquet file, read by pyarrow, which comes with the datasets package."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UnreadableError(
            "a Parquet file, which needs the datasets package: pip install datasets"
        ) from None
    try:
        table = parquet.ParquetFile(file)
        columns = table.schema_arrow.names
        if column not in columns:
            raise UnreadableError(_no_text(column, columns))
        batches = table.iter_batches(columns=[column])
        yield from enumerate(row for batch in batches for row in batch.to_pylist())
    except (ArrowException, OSError) as error:
        raise UnreadableError(f"a damaged Parquet file: {' '.join(str(error).split())}") from error


def row_text(row: Any, column: str) -> tuple[str, str]:
    """The text of a row, and a remark on how it was made, mostly empty; `UnreadableError` for a row
    without text.
    """
    if isinstance(row, UnreadableError):
        raise row
    if isinstance(row, dict):
        if column not in row:
            raise UnreadableError(_no_text(column, row))
        value = row[column]
    else:
        value = row
    match value:
        case str() if value.strip():
            return value, ""
        case None | str() | []:
            raise UnreadableError(f"nothing in the column {column!r}")
        case [*messages]:
            return _chat(messages, column), 'a chat, read as paragraphs "role: content"'
    raise UnreadableError(f"no text in the column {column!r}: {type(value).__name__}")


def _chat(messages: list[Any], column: str) -> str:
    paragraphs = []
    for message in messages:
        match message:
            case {"role": str(who), "content": str(said)} | {"from": str(who), "value": str(said)}:
                paragraphs.append(f"{who}: {said}")
            case _:
                raise UnreadableError(
                    f"no text in the column {column!r}, but a list that is no chat: expected "
                    "messages with a role and a content, both text"
                )
    return "\n\n".join(paragraphs)


def _no_text(column: str, fields: Iterable[Any]) -> str:
    found = ", ".join(sorted(map(str, fields)))[:80] or "none"
    return f"no text in a column {column!r}, its columns are {found}; name one: rows:FILE:COLUMN"

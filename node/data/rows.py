"""Rows of JSON Lines, JSON arrays and Parquet files: each row's text is a document."""

import json
from collections.abc import Iterable, Iterator
from typing import IO, Any

from node.data.text import UnreadableError

TEXT_COLUMN = "text"
"""Field of a row that holds its text, unless another is asked for."""

Row = tuple[int, Any]
"""A row's number in its file and its value; None where the file holds no value."""


def json_lines(text: str) -> Iterator[Row]:
    """Rows of JSON Lines, blank lines left out."""
    for number, line in enumerate(text.split("\n")):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, None


def json_array(text: str, column: str) -> Iterator[Row] | None:
    """The rows of a JSON file that is an array of objects with text; None for any other JSON."""
    if not text.lstrip().startswith("["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    rows = all(isinstance(row, dict) for row in value) and any(column in row for row in value)
    return iter(enumerate(value)) if rows else None


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


def row_text(row: Any, column: str) -> str:
    """The text of a row: of an object its field `column`, a bare string as it is;
    `UnreadableError` for any other row.
    """
    text = row.get(column) if isinstance(row, dict) else row
    if isinstance(text, str):
        return text
    raise UnreadableError(_no_text(column, row) if isinstance(row, dict) else "not a JSON row")


def _no_text(column: str, fields: Iterable[Any]) -> str:
    found = ", ".join(sorted(map(str, fields)))[:80] or "none"
    return f"no text in a column {column!r}, its columns are {found}; name one: rows:FILE:COLUMN"

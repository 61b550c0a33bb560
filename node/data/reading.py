"""One file to its documents, by what the file is and not by what it is called.

Compressed files and archives are opened, rows of JSON Lines and Parquet give one document each,
everything else is text or refused by name. A document is named after its file; after its member or
row too, where the file has several.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from node.data.archives import Member, opened, opener, tar_members, without_suffix, zip_members
from node.data.rows import TEXT_COLUMN, Row, json_array, json_lines, parquet_rows, row_text
from node.data.text import UnreadableError, decoded
from protocol.errors import DataError

Document = tuple[str, str]
"""A document's name and its text."""

Report = Callable[[str, str], None]
"""Told the name of something that gives no text, or not all of it, and why."""

NESTING_MAX = 4
"""Compressed files and archives around a text: an archive can hold itself."""

_HEAD_BYTES = 512
"""Beginning of a file that tells its kind: a tar archive has its name at byte 257."""

_REFUSED = (
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it"),
    (b"Rar!\x1a\x07", "a RAR archive; unpack it"),
    (b"\x04\x22\x4d\x18", "compressed with lz4; decompress it"),
    (b"%PDF-", "a PDF; convert it to text"),
    (b"{\\rtf", "Rich Text Format; convert it to text"),
    (b"ARROW1", "an Arrow file; save it as Parquet or JSON Lines"),
)

_ZIP_SUFFIXES = ("", ".zip")
_ROW_SUFFIXES = (".jsonl", ".ndjson")

_REASONS_MAX = 1000
"""Rows without text that are remembered until a row has some."""


def file_documents(
    path: Path, name: str, report: Report, column: str = TEXT_COLUMN
) -> Iterator[Document]:
    """Documents of one file, under names that begin with `name`.

    Members and rows that give none are reported. Raises `UnreadableError` when the whole file gives
    none, `DataError` when it cannot be read.
    """
    with readable(path), path.open("rb") as file:
        yield from _File(report, column).documents(file, name, name)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Translates `OSError` into a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


class _File:
    """The facts that a file has in common with everything inside it."""

    def __init__(self, report: Report, column: str) -> None:
        self._report, self._column = report, column

    def documents(
        self, file: IO[bytes], name: str, kind: str, depth: int = 0
    ) -> Iterator[Document]:
        """Documents of an open file. kind: its own name, without suffixes of compression; depth:
        the number of files around it.
        """
        if depth > NESTING_MAX:
            raise UnreadableError(f"in more than {NESTING_MAX} compressed files or archives")
        head = file.read(_HEAD_BYTES)
        file.seek(0)
        suffix = PurePosixPath(kind).suffix.lower()
        _require_readable(head, suffix)
        if head.startswith(b"PAR1"):
            yield from self._rows(parquet_rows(file, self._column), name)
        elif head.startswith(b"PK\x03\x04"):
            yield from self._members(zip_members(file), name, depth)
        elif head[257:262] == b"ustar":
            yield from self._members(tar_members(file), name, depth)
        elif opens := opener(head):
            inside = io.BytesIO(opened(lambda: opens(file)))
            yield from self.documents(inside, name, without_suffix(kind), depth + 1)
        else:
            yield from self._text(file.read(), name, suffix)

    def _text(self, blob: bytes, name: str, suffix: str) -> Iterator[Document]:
        text, broken = decoded(blob)
        if broken:
            self._report(name, f"{broken:,} characters are not UTF-8, each becomes U+FFFD")
        if suffix in _ROW_SUFFIXES:
            yield from self._rows(json_lines(text), name)
        elif suffix == ".json" and (rows := json_array(text, self._column)):
            yield from self._rows(rows, name)
        else:
            yield name, text

    def _rows(self, rows: Iterable[Row], name: str) -> Iterator[Document]:
        """The text of each row; rows without are reported, and when there is none at all the first
        one's reason is raised.
        """
        reasons: list[tuple[str, UnreadableError]] = []
        given = False
        for number, row in rows:
            place = f"{name}/{number}"
            try:
                text = row_text(row, self._column)
            except UnreadableError as error:
                if given:
                    self._report(place, str(error))
                elif len(reasons) < _REASONS_MAX:
                    reasons.append((place, error))
                continue
            if not given:
                for earlier, reason in reasons:
                    self._report(earlier, str(reason))
            given = True
            yield place, text
        if not given:
            raise reasons[0][1] if reasons else UnreadableError("rows, but none with text")

    def _members(self, members: Iterable[Member], name: str, depth: int) -> Iterator[Document]:
        """Documents of an archive's members; hidden ones and those without text are reported."""
        given = False
        for inside, opens in members:
            place = f"{name}/{inside}"
            try:
                if any(part.startswith(".") for part in PurePosixPath(inside).parts):
                    raise UnreadableError("hidden")
                blob = io.BytesIO(opened(opens))
                for document in self.documents(blob, place, inside, depth + 1):
                    given = True
                    yield document
            except UnreadableError as error:
                self._report(place, str(error))
        if not given:
            raise UnreadableError("an archive without text")


def _require_readable(head: bytes, suffix: str) -> None:
    """Raises `UnreadableError` for kinds of files that are known and not opened."""
    if not head:
        raise UnreadableError("empty")
    for start, what in _REFUSED:
        if head.startswith(start):
            raise UnreadableError(what)
    if head.startswith(b"PK\x03\x04") and suffix not in _ZIP_SUFFIXES:
        raise UnreadableError(f"a {suffix} file, which is a zip of markup; convert it to text")

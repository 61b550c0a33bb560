"""One file to its documents, by what the file is and not by what it is called.

Compressed files and archives are opened, rows of JSON, tables and Parquet give one document each,
everything else is text or refused by name. A document is named after its file; after its member or
row too, where the file has several.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from node.data.archives import Member, opened, opener, tar_members, without_suffix, zip_members
from node.data.rows import TEXT_COLUMN, Row, parquet_rows, row_text, text_rows
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

_REASONS_MAX = 100
"""Reasons why rows of a file have no text that are told: the names of columns are in them."""


def file_documents(
    path: Path, name: str, report: Report, column: str | None = None
) -> Iterator[Document]:
    """Documents of one file, under names that begin with `name`. With a `column` it must be rows.

    Members and rows that give none are reported. Raises `UnreadableError` when the whole file gives
    none, `DataError` when it cannot be read.
    """
    with readable(path), path.open("rb") as file:
        yield from _File(report, column).documents(file, name, name)


def row_documents(
    rows: Iterable[Row], name: str, column: str, report: Report
) -> Iterator[Document]:
    """The text of each row, named after its number. Rows that are passed over, and chats, are told
    once for each reason, under the first one's name. Raises the first reason as `UnreadableError`
    when no row has text.
    """
    told: dict[str, list[int]] = {}  # a reason, its first row and their number
    given = False
    try:
        for number, row in rows:
            try:
                text, remark = row_text(row, column)
            except UnreadableError as error:
                text, remark = "", str(error)
            if remark and (remark in told or len(told) < _REASONS_MAX):
                told.setdefault(remark, [number, 0])[1] += 1
            if text:
                given = True
                yield f"{name}/{number}", text
        if not given:
            raise UnreadableError(next(iter(told), "rows, but none with text"))
    finally:
        for remark, (first, count) in told.items() if given else ():
            rows_text = f" ({count:,} rows)" if count > 1 else ""
            report(f"{name}/{first}", f"{remark}{rows_text}")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Translates `OSError` into a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


class _File:
    """The facts that a file has in common with everything inside it."""

    def __init__(self, report: Report, column: str | None) -> None:
        self._report = report
        self._column, self._asked = column or TEXT_COLUMN, column is not None

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
            rows = parquet_rows(file, self._column)
            yield from row_documents(rows, name, self._column, self._report)
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
        rows = text_rows(text, suffix, self._column, asked=self._asked)
        if rows is None:
            yield name, text
        else:
            yield from row_documents(rows, name, self._column, self._report)

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

"""Sources of text: files, the Python standard library, data sets of Hugging Face's hub.

A document is a name and a text. The order is the same on every machine that has the same sources,
and names do not depend on where a directory lies.
"""

import glob
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from node.data import hub
from node.data.reading import Document, Report, file_documents, readable
from node.data.text import UnreadableError
from protocol.errors import DataError

_ROWS = "rows:"

_SHOWN_MAX = 3
"""Reasons that an error repeats."""

_NOT_LIBRARY = {
    *("site-packages", "dist-packages", "test", "tests", "idle_test"),
    *("distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo", "venv"),
}
"""Folders that are not the library's own or that distributions leave out or package apart, tests
above all: with them two volunteers with one Python version would hold unlike corpora."""


@dataclass(slots=True)
class Remarks:
    """The cases that preparing has passed over or changed: all are counted, the first ones kept."""

    shown_max: int = 20
    """Cases that are kept with their reason."""

    shown: list[tuple[str, str]] = field(default_factory=list)
    """Names and reasons, in order."""

    count: int = 0
    """All cases."""

    def __call__(self, name: str, reason: str) -> None:
        """Takes one case; a `Report`."""
        self.count += 1
        if len(self.shown) < self.shown_max:
            self.shown.append((name, reason))


def documents(specs: Iterable[str], report: Report | None = None) -> Iterator[Document]:
    """Documents of files, directories (all files in them), globs, `rows:FILE:COLUMN` and
    `datasets:` (`node.data.hub`).

    Sorted by path within each. Hidden files and what holds no text are passed over in directories
    and globs, and told to `report`; a file that a person names must hold text. Raises `DataError`
    for a source that is not there or gives nothing.
    """
    report = report or (lambda name, reason: None)
    for spec in specs:
        root = Path(spec).expanduser()
        if spec.startswith(hub.PREFIX):
            yield from hub.hub_documents(spec, report)
        elif spec.startswith(_ROWS) and not root.exists():
            path, _, column = spec.removeprefix(_ROWS).rpartition(":")
            if not path or not column:
                raise DataError(f"{spec}: expected rows:FILE:COLUMN")
            yield from _named(Path(path).expanduser(), spec, report, column)
        elif root.is_dir() or not root.exists():
            yield from _found(spec, root, report)
        else:
            yield from _named(root, spec, report)


def library_documents(byte_limit: int | None = None) -> Iterator[Document]:
    """The Python standard library's own sources, about 12 MB, less what not every installation has.

    byte_limit: stop before the file that would exceed it.
    """
    root = Path(sysconfig.get_path("stdlib"))
    taken = 0
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        built_here = inside.name.startswith("_sysconfigdata") or inside.parts[0].startswith(
            "config-"
        )
        if built_here or _NOT_LIBRARY & set(inside.parts):
            continue
        taken += path.stat().st_size
        if byte_limit is not None and taken > byte_limit:
            return
        yield inside.as_posix(), _text(path)


def _named(path: Path, spec: str, report: Report, column: str | None = None) -> Iterator[Document]:
    """Documents of a file that a person named."""
    if not path.is_file():
        raise DataError(f"{spec}: expected a file, found none")
    try:
        yield from file_documents(path, path.name, report, column)
    except UnreadableError as error:
        raise DataError(f"{path}: expected text, found {error}") from error


def _found(spec: str, root: Path, report: Report) -> Iterator[Document]:
    """Documents of a directory or a glob."""
    refused = Remarks(_SHOWN_MAX)
    given = False
    for path, reason in _paths(root):
        name = (path.relative_to(root) if root.is_dir() else path).as_posix()
        try:
            if reason:
                raise UnreadableError(reason)
            for document in file_documents(path, name, report):
                given = True
                yield document
        except UnreadableError as error:
            report(name, str(error))
            refused(name, str(error))
    if not given:
        found = "; ".join(f"{name}: {reason}" for name, reason in refused.shown) or "none"
        raise DataError(
            f"{spec}: expected a text file, a directory or glob of them or {hub.PREFIX}NAME, "
            f"found {found}"
        )


def _paths(root: Path) -> list[tuple[Path, str]]:
    """The paths under a directory or of a glob, sorted, each with the reason why it is no text to
    read, empty for files. Of a hidden folder only the folder is named.
    """
    if not root.is_dir():
        matches = (Path(match) for match in glob.glob(str(root), recursive=True))
        return [(path, "") for path in sorted(matches) if path.is_file()]
    found: dict[Path, str] = {}
    for path in root.rglob("*"):
        inside = path.relative_to(root).parts
        hidden = next((place for place, part in enumerate(inside) if part.startswith(".")), None)
        if hidden is not None:
            found[root.joinpath(*inside[: hidden + 1])] = "hidden"
        elif path.is_file():
            found[path] = ""
        elif path.is_symlink():
            found[path] = "a link to a directory" if path.is_dir() else "a link to nothing"
        elif not path.is_dir():
            found[path] = "not a regular file"
    return sorted(found.items())


def _text(path: Path) -> str:
    with readable(path):
        return path.read_bytes().decode(errors="replace")

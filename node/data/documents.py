"""Sources of text: files, the Python standard library, data sets of Hugging Face's hub.

A document is a name and a text. The order is the same on every machine that has the same sources,
and names do not depend on where a directory lies.
"""

import glob
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import DataError

Document = tuple[str, str]
"""A document's name and its text."""

_NOT_LIBRARY = {
    *("site-packages", "dist-packages", "test", "tests", "idle_test"),
    *("distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo", "venv"),
}
"""Folders that are not the library's own or that distributions leave out or package apart, tests
above all: with them two volunteers with one Python version would hold unlike corpora."""

_BINARY_HEAD_BYTES = 8192
"""Bytes in which a NUL tells a binary file (as git does it)."""


def documents(specs: Iterable[str]) -> Iterator[Document]:
    """Documents of files, directories (all text files in them), globs, and
    `datasets:NAME[:SPLIT[:COLUMN]]`.

    Sorted by path within each. Directories and globs pass over hidden files and over binary ones,
    whose beginning holds a NUL byte. Broken UTF-8 becomes U+FFFD. Raises `DataError` for a source
    that is not there.
    """
    for spec in specs:
        root = Path(spec).expanduser()
        if spec.startswith("datasets:"):
            yield from _dataset_documents(*spec.split(":", 3)[1:])
        elif root.is_file():
            yield root.name, _text(root)
        elif paths := _text_files(root):
            for path in paths:
                yield (path.relative_to(root) if root.is_dir() else path).as_posix(), _text(path)
        else:
            raise DataError(
                f"{spec}: expected a text file, a directory or glob of them or datasets:NAME, "
                "found none"
            )


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


def _text_files(root: Path) -> list[Path]:
    """Visible files under a directory or matching a glob that do not look binary, sorted."""
    if root.is_dir():
        everything = ((path, path.relative_to(root).parts) for path in root.rglob("*"))
        found = [
            path for path, inside in everything if not any(part.startswith(".") for part in inside)
        ]
    else:
        found = [
            Path(match) for match in glob.glob(str(root), recursive=True)
        ]  # which passes over hidden files
    return sorted(path for path in found if path.is_file() and not _looks_binary(path))


def _looks_binary(path: Path) -> bool:
    with _readable(path), path.open("rb") as file:
        return b"\0" in file.read(_BINARY_HEAD_BYTES)


def _text(path: Path) -> str:
    with _readable(path):
        return path.read_bytes().decode(errors="replace")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Translates `OSError` into a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _dataset_documents(name: str, split: str = "train", column: str = "text") -> Iterator[Document]:
    """Rows of a data set of the hub, streamed."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"datasets:{name} needs the datasets package: pip install 'lockstep-train[datasets]'"
        ) from None
    try:
        for number, row in enumerate(datasets.load_dataset(name, split=split, streaming=True)):
            if column not in row:
                raise DataError(
                    f"datasets:{name}: expected a column {column!r}, found {', '.join(sorted(row))}"
                )
            yield f"{name}/{split}/{number}", str(row[column])
    except DataError:
        raise
    except (
        Exception
    ) as error:  # the hub, the network and the data set's own format fail in their own ways
        raise DataError(
            f"datasets:{name}: cannot be read: {' '.join(str(error).split())[:200]}"
        ) from error

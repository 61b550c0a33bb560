"""A file takes its place whole, or not at all.

It is written beside its place under a temporary name, forced to disk and renamed: neither a reader
nor a crash nor a full disk leaves half of one, and the version before survives every failure.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

MODE_FOR_ALL = 0o644
"""Mode of a file that other accounts of a shared machine may read."""

TEMPORARY = ".part-"
"""Between a file's name and eight random characters, in the name of one that is being written."""


@contextlib.contextmanager
def whole_file(path: Path, mode: int = MODE_FOR_ALL) -> Iterator[Path]:
    """Yields a temporary path to write; on success it becomes `path`, on any error it is removed.
    The file has `mode` when it appears under its name, and lets only its owner in before that.
    Raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f"{path.name}{TEMPORARY}", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        force_to_disk(temporary)
        temporary.chmod(mode)
        temporary.replace(path)
        force_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def force_to_disk(path: Path) -> None:
    """Force a file or directory to the disk; Windows has no fsync for directories, needs none."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

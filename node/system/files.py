"""Writes files and directories whole or not at all.

A file or directory is written beside its place under a temporary name, forced to disk and renamed:
neither a reader nor a crash nor a full disk leaves half of one, and the version before survives
every failure. The operating system's errors leave here as `StorageError` with the path and advice,
those that pass as `ShortageError`, which work for which `outlasting` stands waits out.
"""

import contextlib
import errno
import functools
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from border.files import MODE_FOR_ALL, TEMPORARY, force_to_disk, whole_file
from protocol.errors import StorageError
from protocol.shortage import Patience, shortages

_log = logging.getLogger(__name__)

MODE_FOR_OWNER = 0o600
"""Mode of a file with a secret."""

DIRECTORY_FOR_OWNER = 0o700
"""Mode of a directory with secrets."""

LEFTOVER_S = 600
"""Age from which on a temporary file counts as left by a killed process: a second process that
somebody starts in the same directory must not take the first one's."""

_LEFTOVER = re.compile(r".+\.part-[a-z0-9_]{8}")
_REPLACED = ".replaced"
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_patience = Patience(
    time.sleep,
    lambda reason: _log.warning("waits for descriptors or memory", extra={"reason": reason}),
)


def outlasting(work: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Makes disk work for a thread, which leaves nothing half done, wait for as long as it fails
    with `ShortageError`.
    """

    @functools.wraps(work)
    def patient(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        return _patience.outlast(lambda: work(*arguments, **named))

    return patient


@contextlib.contextmanager
def storage_errors(
    path: Path, bytes_needed: int | None = None, doing: str = "use"
) -> Iterator[None]:
    """Translates `OSError` into a `StorageError` that names `path` and, when known, the bytes it
    needs: "cannot `doing` `path`: ..."; into a `ShortageError` where it passes.
    """
    try:
        with shortages(f"{doing} {path}"):
            yield
    except OSError as error:
        needed = "" if bytes_needed is None else f", which needs {bytes_needed:,} bytes"
        if error.errno in _FULL:
            raise StorageError(
                f"the disk is full: cannot write {path}{needed}; "
                "free some space there or choose another directory"
            ) from error
        reason = error.strerror or error
        raise StorageError(f"cannot {doing} {path}{needed}: {reason}") from error


def read_range(path: Path, offset: int, count: int) -> bytes | None:
    """At most `count` bytes of a file from `offset` on; None when it is not there. `StorageError`
    and `ShortageError` as from `storage_errors`.
    """
    with storage_errors(path, doing="read"):
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(count)
        except FileNotFoundError:
            return None


@contextlib.contextmanager
def replacing_file(
    path: Path, bytes_needed: int | None = None, mode: int = MODE_FOR_ALL
) -> Iterator[Path]:
    """As `border.files.whole_file`, but raises `StorageError` when the disk refuses."""
    with storage_errors(path, bytes_needed), whole_file(path, mode) as temporary:
        yield temporary


@contextlib.contextmanager
def replacing_directory(path: Path, bytes_needed: int | None = None) -> Iterator[Path]:
    """As `replacing_file`, for a directory of files (without sub-directories).

    POSIX cannot exchange two directories in one portable call: between the two renames the old one
    lies beside the new one, and `whole_directory` finds it there after a crash between them.
    """
    with storage_errors(path, bytes_needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{path.name}{TEMPORARY}", dir=path.parent))
        try:
            yield temporary
            for file in temporary.iterdir():
                force_to_disk(file)
            force_to_disk(temporary)
            temporary.chmod(0o755)
            _take_the_place_of(path, temporary)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def sweep(directory: Path) -> None:
    """Removes the temporary files and directories that a killed process left in its directory:
    those that nothing has written to for `LEFTOVER_S`. Raises `StorageError`.
    """
    with storage_errors(directory):
        for path in directory.iterdir() if directory.is_dir() else ():
            if not _LEFTOVER.fullmatch(path.name):
                continue
            if time.time() - path.stat().st_mtime < LEFTOVER_S:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def whole_directory(path: Path) -> Path:
    """`path`, or the directory that `replacing_directory` had moved aside when it was killed
    between its two renames.
    """
    aside = path.with_name(path.name + _REPLACED)
    return aside if aside.exists() and not path.exists() else path


def _take_the_place_of(path: Path, temporary: Path) -> None:
    aside = path.with_name(path.name + _REPLACED)
    if path.exists():
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
    temporary.rename(path)
    force_to_disk(path.parent)
    shutil.rmtree(aside, ignore_errors=True)

"""The journal as a file: opened, locked, closed to other accounts, and its errors translated."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from protocol.codec.decoding import UNREADABLE
from protocol.errors import RemoteProtocolError, StorageError
from protocol.shortage import shortages

MODE_FOR_OWNER = 0o600
"""Mode of the journal; SQLite gives it to the files that it writes beside it too."""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""Primary codes of SQLite for a damaged file; an error without a code is about its values."""


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raises `StorageError` for a disk or a file that fails, `ShortageError` for a lack that
    passes.
    """
    try:
        yield
    except (sqlite3.Error, OSError, MemoryError, *UNREADABLE) as error:
        with suppress(OSError), shortages(f"use the journal {path}"):
            _raise_cause(error, path)
        remedy = "free space or repair the disk: no commit that a node was told is lost"
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if not isinstance(error, OSError) and code in _DAMAGED:
            remedy = "the file is damaged: put the directory back from its newest copy"
        raise StorageError(f"cannot use the journal {path}: {error}; {remedy}") from error


def _raise_cause(error: BaseException, path: Path) -> None:
    """Raise the error of the operating system behind one of SQLite, which does not tell it, if
    there still is one.
    """
    if isinstance(error, OSError):
        raise error
    if isinstance(error, MemoryError):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CANTOPEN:
        os.close(os.open(path.parent, os.O_RDONLY))


def close_to_others(path: Path) -> None:
    """Make the file for its owner alone before SQLite would make it, and take one of an earlier
    release, with what lies beside it, from other accounts.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, MODE_FOR_OWNER))
    for part in (path, *(path.with_name(f"{path.name}-{each}") for each in ("wal", "shm"))):
        with suppress(FileNotFoundError):
            if part.stat().st_mode & 0o077:
                part.chmod(MODE_FOR_OWNER)


def locked(path: Path) -> sqlite3.Connection:
    """An open transaction on a file beside the journal, so that two coordinators never decide
    rounds in one directory. The lock ends with this process, even if the process is killed.
    """
    lock = connected(path.with_name(path.name + "-lock"), wait_s=0)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        lock.close()
        if "locked" not in str(error):
            raise
        raise StorageError(
            f"another coordinator runs in {path.parent}; stop it first, or use another --directory"
        ) from None
    return lock


def connected(path: Path, wait_s: float = 5.0) -> sqlite3.Connection:
    """A connection for any thread, without implicit transactions. `wait_s`: longest wait for
    another connection's transaction, in seconds.
    """
    return sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)


@contextmanager
def reading(journal: Path) -> Iterator[sqlite3.Connection]:
    """A journal for those that only read it, beside a coordinator at work too. Raises
    `StorageError` where there is none, or none that can be read.
    """
    if not journal.is_file():
        raise StorageError(f"expected the journal of a coordinator at {journal}, found none")
    try:
        with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as file:
            yield file
    except (sqlite3.Error, RemoteProtocolError, *UNREADABLE) as error:
        raise StorageError(
            f"cannot read the journal {journal}: {error}; if it is damaged, put the directory "
            "back from its newest copy"
        ) from None

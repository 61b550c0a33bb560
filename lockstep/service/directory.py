"""The directory of a process: which process it belongs to, and that only one works in it.

    owner.json    role and run of the directory; the first start writes it
    lock          held while a process works here; the kernel releases it when the process ends

A directory belongs to one process of one run for good. A second process, another role (the same
LOCKSTEP_DIRECTORY for a coordinator and a node) and another run are refused before anything in the
directory changes.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from node.system.files import DIRECTORY_FOR_OWNER, replacing_file, storage_errors
from protocol.codec.decoding import UNREADABLE
from protocol.errors import SettingsError, StorageError

HAS_LOCKS = os.name == "posix"
"""Whether the system has locks that end with their process. Windows' own are mandatory: a status
command could not read the file."""

OWNER_NAME = "owner.json"
"""Name of the file that tells the role and the run of a directory."""

LOCK_NAME = "lock"
"""Name of the file that the process at work holds locked; it holds the process's id."""

_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT}
"""Errors of a place in which this account cannot write, whatever room there is."""


class Owner(msgspec.Struct, frozen=True):
    """The process that a directory belongs to; `run_id` is empty where it is not known."""

    role: str
    run_id: str = ""
    run: str = ""
    """Name of the run, for people."""

    def __str__(self) -> str:
        name = f"{self.run} " if self.run else ""
        return f"a {self.role} of run {name}({self.run_id or 'unknown'})"


@contextlib.contextmanager
def claimed(directory: Path, owner: Owner) -> Iterator[None]:
    """Makes the directory the owner's while the block runs; a new one is closed to other accounts.

    Raises `SettingsError` when it is of another role or run, `StorageError` when another process
    works in it.
    """
    require_writable(directory)
    with storage_errors(directory):
        directory.mkdir(DIRECTORY_FOR_OWNER, parents=True, exist_ok=True)
    with _locked(directory, owner.role):
        found = owner_of(directory)
        if found and found.role != owner.role:
            raise SettingsError(
                f"{directory} belongs to {found}; give this {owner.role} a directory of its own "
                "(--directory; LOCKSTEP_DIRECTORY is for one process)"
            )
        if found and found.run_id and owner.run_id and found.run_id != owner.run_id:
            raise SettingsError(
                f"{directory} belongs to {found}, this is run {owner.run} ({owner.run_id}); "
                "nothing was changed: give this run another --directory"
            )
        if found is None or (owner.run_id and not found.run_id):
            with replacing_file(directory / OWNER_NAME) as temporary:
                temporary.write_bytes(msgspec.json.encode(owner))
        yield


def require_writable(directory: Path) -> None:
    """Raises `StorageError`, which says what to do, where no process could work in the directory or
    make it. Tried for real, since rights tell little of read-only and of made up file systems, and
    nothing is left behind.
    """
    place = directory
    with storage_errors(directory):
        try:
            while not (place.exists() or place.is_symlink()):
                place = place.parent
            tempfile.TemporaryDirectory(dir=place).cleanup()
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            doing = f"write in {place}" if place == directory else f"make {directory} in {place}"
            raise StorageError(
                f"cannot {doing}: {error.strerror}; let this account write there, or name another "
                "place: --directory (a volunteer: or --home)"
            ) from error


def owner_of(directory: Path) -> Owner | None:
    """The owner of the directory; None for one that nobody has used."""
    try:
        return msgspec.json.decode((directory / OWNER_NAME).read_bytes(), type=Owner)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        raise StorageError(
            f"{directory / OWNER_NAME} cannot be read: {error}; put it back from a copy, or choose "
            "another --directory"
        ) from None


def pid_at_work(directory: Path) -> int | None:
    """The id of the process that works in the directory; None when there is none."""
    path = directory / LOCK_NAME
    if not HAS_LOCKS or not path.exists():
        return None
    with storage_errors(path), path.open("rb") as file:
        if _take(file):
            return None
        words = file.read(20).decode("ascii", "replace").strip()
    return int(words) if words.isdecimal() else 0


@contextlib.contextmanager
def _locked(directory: Path, role: str) -> Iterator[None]:
    path = directory / LOCK_NAME
    with contextlib.ExitStack() as open_files:
        with storage_errors(path):
            # Without a buffer: one that a full disk refused is written again when the file closes.
            file = open_files.enter_context(path.open("a+b", buffering=0))
        if not _take(file):
            file.seek(0)
            pid = file.read(20).decode("ascii", "replace").strip() or "unknown"
            raise StorageError(
                f"another process ({pid}) is at work in {directory}; stop it first, or give this "
                f"{role} a --directory of its own"
            )
        with storage_errors(path):
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        yield


def _take(file: IO[bytes]) -> bool:
    """Locks the file until it is closed; False when another process has it."""
    if not HAS_LOCKS:
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # a file system without locks: as on Windows
        return not isinstance(error, BlockingIOError)
    return True

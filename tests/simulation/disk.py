"""Disks in memory that look like directories to the code under test, and fail as real ones do.

    full        every write fails with ENOSPC, after it has written a part
    a kill      in the middle of a write leaves a part of it; between two operations it leaves the
                first of them done
    power cut   as a kill, and recent files that were not forced to the disk are cut short
    rot         a file has other bytes than were written

`DiskPath` has the methods of `pathlib.Path` that the payload log and the snapshots use.
"""

import contextlib
import errno
import hashlib
import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from node.system.files import storage_errors
from tests.simulation.world import Killed

RECENT_FILES = 8
"""Recent files that a power cut can cut short."""


class Disk:
    """Files by directory and name. `steps_left` operations from now its process dies."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.directories: dict[str, dict[str, bytes]] = {"": {}}
        self.full = False
        self.failures = 0
        self.steps_left: int | None = None
        self._recent: list[tuple[str, str]] = []

    def copied(self) -> "Disk":
        """Another disk with the same files."""
        copy = Disk(self._chance)
        copy.directories = {name: dict(files) for name, files in self.directories.items()}
        return copy

    def path(self, name: str) -> "DiskPath":
        """A path from the root."""
        return DiskPath(self, "", name)

    def step(self, path: "DiskPath | None" = None, torn: bytes = b"") -> None:
        """One operation happens now, unless the process dies first."""
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.steps_left = None
                if path is not None:
                    self._write(path, torn[: self._chance.randint(0, len(torn))])
                raise Killed

    def store(self, path: "DiskPath", blob: bytes) -> None:
        """Write a file."""
        self.step(path, blob)
        if self.full:
            self.failures += 1
            self._write(path, blob[: len(blob) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        self._write(path, blob)
        self._recent = [*self._recent[1 - RECENT_FILES :], (path.directory, path.name)]

    def rename(self, source: "DiskPath", target: "DiskPath") -> None:
        """Give a file another name."""
        self.step()
        blob = source.read_bytes()
        del self.directories[source.directory][source.name]
        self._write(target, blob)
        moved = (source.directory, source.name)
        self._recent = [
            (target.directory, target.name) if place == moved else place for place in self._recent
        ]

    def store_whole(self, name: str, blob: bytes) -> None:
        """Write a file of the root beside its place, force it to the disk and rename it: there
        whole or not at all.
        """
        with storage_errors(self.path(name)):  # type: ignore[arg-type]
            with replacing_file(self.path(name)) as temporary:
                temporary.write_bytes(blob)
            self._recent.clear()

    def _write(self, path: "DiskPath", blob: bytes) -> None:
        if path.directory not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        self.directories[path.directory][path.name] = blob

    def cut_power(self, spare: Callable[[str], bool]) -> int:
        """Recent files whose name is `spare` lose their end; returns their number."""
        cut = 0
        for directory, name in self._recent:
            blob = self.directories.get(directory, {}).get(name)
            if blob and spare(name) and self._chance.random() < 0.5:
                self.directories[directory][name] = blob[: self._chance.randint(0, len(blob) - 1)]
                cut += 1
        self._recent.clear()
        return cut

    def rot(self, directory_prefix: str, spare: Callable[[str], bool]) -> str:
        """A byte changes in one file below a directory whose name is `spare`. Returns its path; ""
        when there is none.
        """
        files = [
            (directory, name)
            for directory, entries in sorted(self.directories.items())
            for name in sorted(entries)
            if directory.startswith(directory_prefix) and entries[name] and spare(name)
        ]
        if not files:
            return ""
        directory, name = self._chance.choice(files)
        self.directories[directory][name] = spoiled(self.directories[directory][name], self._chance)
        return f"{directory}/{name}"

    def holds(self, name: str) -> bool:
        """Whether the payload log has the whole payload of this name."""
        log = (files[name] for directory, files in self.directories.items()
               if directory.startswith("/payloads/") and name in files)  # fmt: skip
        return any(hashlib.sha256(blob).hexdigest() == name for blob in log)


def spoiled(blob: bytes, chance: random.Random) -> bytes:
    """The bytes with one of them changed."""
    place = chance.randrange(len(blob))
    return blob[:place] + bytes([blob[place] ^ chance.randint(1, 255)]) + blob[place + 1 :]


@dataclass(frozen=True, slots=True, order=True)
class DiskPath:
    """A file or directory on a disk."""

    disk: Disk = field(compare=False, repr=False)
    directory: str
    name: str

    def __str__(self) -> str:
        return f"{self.directory}/{self.name}"

    def __truediv__(self, name: str) -> "DiskPath":
        return DiskPath(self.disk, str(self), name)

    @property
    def parent(self) -> "DiskPath":
        directory, _, name = self.directory.rpartition("/")
        return DiskPath(self.disk, directory, name)

    @property
    def suffix(self) -> str:
        stem, dot, suffix = self.name.rpartition(".")
        return dot + suffix if stem else ""

    @property
    def stem(self) -> str:
        return self.name.removesuffix(self.suffix)

    def with_suffix(self, suffix: str) -> "DiskPath":
        return DiskPath(self.disk, self.directory, self.stem + suffix)

    def with_name(self, name: str) -> "DiskPath":
        return DiskPath(self.disk, self.directory, name)

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        self.disk.directories.setdefault(str(self), {})

    def rmdir(self) -> None:
        del self.disk.directories[str(self)]

    def iterdir(self) -> Iterator["DiskPath"]:
        own = str(self)
        below = [name.rpartition("/") for name in self.disk.directories]
        names = [name for directory, _, name in below if directory == own and name]
        yield from [
            DiskPath(self.disk, own, name) for name in (*names, *self.disk.directories[own])
        ]

    def is_dir(self) -> bool:
        return str(self) in self.disk.directories

    def is_file(self) -> bool:
        return self.name in self.disk.directories.get(self.directory, {})

    def exists(self) -> bool:
        return self.is_dir() or self.is_file()

    def read_bytes(self) -> bytes:
        try:
            return self.disk.directories[self.directory][self.name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self)) from None

    def write_bytes(self, blob: bytes | bytearray) -> None:
        self.disk.store(self, bytes(blob))

    def open(self, mode: str) -> "DiskFile":
        return DiskFile(self, mode)

    def stat(self) -> Any:
        return SimpleNamespace(st_size=len(self.read_bytes()))

    def unlink(self, missing_ok: bool = False) -> None:
        self.disk.step()
        if (
            self.disk.directories.get(self.directory, {}).pop(self.name, None) is None
            and not missing_ok
        ):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))


class DiskFile(io.BytesIO):
    """An open file; the written bytes get to the disk when it is closed."""

    def __init__(self, path: DiskPath, mode: str) -> None:
        super().__init__(b"" if "w" in mode else path.read_bytes())
        self._path, self._writes = path, mode != "rb"

    def close(self) -> None:
        if self._writes and not self.closed:
            self._writes = False
            self._path.disk.store(self._path, self.getvalue())
        super().close()


def replace(source: DiskPath, target: DiskPath) -> None:
    """As `os.replace`."""
    source.disk.rename(source, target)


def truncate(path: DiskPath, size: int) -> None:
    """As `os.truncate`."""
    path.disk.store(path, path.read_bytes()[:size].ljust(size, b"\0"))


@contextlib.contextmanager
def replacing_file(path: DiskPath, bytes_needed: int | None = None) -> Iterator[DiskPath]:
    """As `node.system.files.replacing_file`."""
    temporary = path.with_name(path.name + ".part-0")
    with storage_errors(path, bytes_needed):  # type: ignore[arg-type]
        try:
            yield temporary
            replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

"""Ranges on disk, named by their SHA-256: a bounded number of bytes, the least recently used go.

    <directory>/3f/3fc9...    one range; the time of its last change is that of its last use

What is read is verified, so a torn or damaged file is as good as none; it is fetched again.
"""

import hashlib
import os
import re
import threading
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from node.system.files import outlasting, storage_errors

_NAME = re.compile(r"[0-9a-f]{64}")


class _Files(LRUCache[str, int]):
    """Sizes of files by name; a file leaves the disk with its entry."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        super().__init__(bytes_max, getsizeof=lambda size: size)
        self._directory = directory

    def path(self, name: str) -> Path:
        return self._directory / name[:2] / name

    def popitem(self) -> Any:
        name, size = super().popitem()
        self.path(name).unlink(missing_ok=True)
        return name, size


class RangeCache:
    """The ranges in a directory, at most `bytes_max` of them. Threads may share it.

    Raises `StorageError` when the disk refuses.
    """

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory, self.bytes_max = directory, bytes_max
        self._lock = threading.Lock()
        self._files = _Files(directory, bytes_max)
        with storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._find()

    @property
    def held_bytes(self) -> int:
        """Bytes of all ranges that are kept."""
        return int(self._files.currsize)

    def __contains__(self, sha256: bytes) -> bool:
        with self._lock:
            return sha256.hex() in self._files

    @outlasting
    def get(self, sha256: bytes) -> bytes | None:
        """The range of this digest; None when it is not here or damaged."""
        name = sha256.hex()
        with self._lock:
            if self._files.get(name) is None:  # counts as a use
                return None
            path = self._files.path(name)
        with storage_errors(path):
            try:
                blob = path.read_bytes()
                os.utime(path)
            except FileNotFoundError:
                blob = b""
        if hashlib.sha256(blob).digest() == sha256:
            return blob
        with self._lock:
            self._files.pop(name, None)
            path.unlink(missing_ok=True)
        return None

    @outlasting
    def put(self, sha256: bytes, blob: bytes) -> None:
        """Keep a range, unless it alone is more than the cache may hold."""
        name = sha256.hex()
        if len(blob) > self.bytes_max:
            return
        path = self._files.path(name)
        with storage_errors(path, len(blob)), self._lock:
            path.parent.mkdir(exist_ok=True)
            # Renamed, but not forced to disk: a range that a power cut damages is fetched again.
            written = path.with_suffix(".new")
            written.write_bytes(blob)
            written.replace(path)
            self._files[name] = len(blob)

    def _find(self) -> None:
        """Takes in what is in the directory, the longest unused first."""
        found: list[tuple[float, str, int]] = []
        for path in self._directory.glob("[0-9a-f][0-9a-f]/*"):
            if _NAME.fullmatch(path.name):
                about = path.stat()
                found.append((about.st_mtime, path.name, about.st_size))
            else:  # of a process that was killed
                path.unlink(missing_ok=True)
        for _, name, size in sorted(found):
            if size > self.bytes_max:
                self._files.path(name).unlink(missing_ok=True)
            else:
                self._files[name] = size

"""The checkpoints in a coordinator's directory, and the one that comes part by part.

    checkpoints/incoming/     the files of the member that was asked, as they come
    checkpoints/ROUND-SHA256/ one that is complete and checked
    checkpoints/progress      when the one that is awaited came on last; only while one is

Blocks; every method raises `StorageError` for a disk that fails, `ShortageError` where descriptors
or memory are short, and `RemoteProtocolError` for parts and files that a member must not send.
"""

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from border.files import force_to_disk, whole_file
from coordinator.checkpoints.parameters import digests_of, directory_bytes
from coordinator.machine.events.effects import directory_name
from protocol.border.checkpoint_files import (
    CARD_NAME,
    FILES_MAX,
    is_configuration,
    is_parameters,
    require_name,
    require_size,
)
from protocol.codec.decoding import UNREADABLE
from protocol.errors import RemoteProtocolError, StorageError
from protocol.ids import Digest, PeerId
from protocol.shortage import shortages

INCOMING = "incoming"

PROGRESS = "progress"

RUNS_CODE = "auto_map"
"""Field of a configuration that names a program to load."""


class Progress(msgspec.Struct, frozen=True):
    """How a checkpoint comes on that a member was asked for."""

    round: int
    writer: PeerId
    moved_ms: int
    """The newest sign of it, by the run's clock, which goes on after a restart."""


class CheckpointStore:
    """The checkpoints below `directory`, which is made when the first comes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._incoming = directory / INCOMING
        self._room_bytes = 0

    def begin(self, room_bytes: int) -> None:
        """Expect the files of a checkpoint, and forget one that was not completed."""
        self._room_bytes = room_bytes
        with _storage_errors(self._incoming):
            shutil.rmtree(self._incoming, ignore_errors=True)
            self._incoming.mkdir(parents=True)

    def put(self, name: str, offset: int, data: bytes) -> None:
        """Append a part to a file."""
        path = self._incoming / require_name(name)
        with _storage_errors(path):
            size = path.stat().st_size if path.exists() else 0
            if offset + len(data) == size:
                return  # sent again: the reply was lost
            if offset != size:
                raise RemoteProtocolError(
                    f"{name}: expected the part at {size}, got one at {offset}"
                )
            require_size(name, size + len(data))
            if directory_bytes(self._incoming) + len(data) > self._room_bytes:
                raise RemoteProtocolError(
                    f"expected at most {self._room_bytes:,} bytes in all, got more"
                )
            if not path.exists() and len(list(self._incoming.iterdir())) >= FILES_MAX:
                raise RemoteProtocolError(f"expected at most {FILES_MAX} files, got more")
            with path.open("ab") as file:
                file.write(data)

    def complete(self, round: int) -> tuple[int, Digest, int]:
        """Check the files and give them their place; returns state digest, SHA-256 and bytes."""
        with _storage_errors(self._incoming):
            paths = sorted(self._incoming.iterdir()) if self._incoming.is_dir() else []
            names = {path.name for path in paths}
            if missing := {"config.json", "tokenizer.json", CARD_NAME} - names:
                raise RemoteProtocolError(f"expected {sorted(missing)} too, got {sorted(names)}")
            for path in paths:
                if is_configuration(path.name):
                    _require_harmless(path)
            state_digest, sha256 = digests_of(path for path in paths if is_parameters(path.name))
            file_bytes = directory_bytes(self._incoming)
            for path in paths:
                force_to_disk(path)
            target = self.directory / directory_name(round, sha256)
            shutil.rmtree(target, ignore_errors=True)
            self._incoming.rename(target)
        return state_digest, sha256, file_bytes

    def remember(self, progress: Progress) -> None:
        """Keep this over a restart."""
        path = self.directory / PROGRESS
        with _storage_errors(path), whole_file(path) as part:
            part.write_bytes(msgspec.json.encode(progress))

    def forget(self) -> None:
        """Nothing is awaited: remove what was kept of it."""
        with _storage_errors(self.directory):
            for path in self.directory.glob(f"{PROGRESS}*"):
                path.unlink(missing_ok=True)

    def remembered(self) -> Progress | None:
        """What was kept last; None for nothing that can be read."""
        with suppress(OSError, *UNREADABLE):
            return msgspec.json.decode((self.directory / PROGRESS).read_bytes(), type=Progress)
        return None

    def keep(self, names: Collection[str]) -> None:
        """Remove all complete checkpoints but these."""
        if not self.directory.is_dir():
            return
        with _storage_errors(self.directory):
            for path in self.directory.iterdir():
                if path.name not in names and path.name != INCOMING and path.is_dir():
                    shutil.rmtree(path)


def _require_harmless(path: Path) -> None:
    """`RemoteProtocolError` for a configuration that loads programs. Other files of JSON name none,
    and are not parsed: a parser of megabytes holds up everything that the coordinator does.
    """
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{path.name}: expected JSON: {error}") from None
    if isinstance(found, dict) and RUNS_CODE in found:
        raise RemoteProtocolError(f"{path.name}: expected no {RUNS_CODE}, which loads programs")


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        with shortages(f"use {path}"):
            yield
    except OSError as error:
        raise StorageError(f"cannot use {path}: {error.strerror or error}") from error

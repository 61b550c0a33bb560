"""Payloads on disk, by digest: what this node offers, serves and replays.

    <directory>/<round>/<digest in hexadecimal>

The file's name says what must be in it, so nothing else has to be trusted or synced: a file torn by
a crash, a full disk or a bad sector is noticed by its digest, deleted, and fetched again from a
peer. Files appear by renaming, the index is rebuilt by listing. Bytes that are handed out were
verified once since the process started.

Rounds are decided in order: what is newer than the last settled round is undecided and is never
pruned. Nobody who replays the log, or will with the snapshot that it fetches, is outrun: beyond
their number rounds stay while there is room for their bytes and somebody needs them. All methods
may be called from any thread. Every method that touches the disk raises `StorageError` when the
disk fails."""

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import RemoteProtocolError, StorageError
from protocol.ids import Digest, sha256

CACHE_BYTES_MAX = 64 * 1024 * 1024
"""Recent payloads kept in memory too: they are offered on and applied within seconds of their
arrival."""

READ_SECONDS = 60
"""A peer that has read of the older half of the log so lately replays it, and will need the rounds
after that."""

_PART_SUFFIX = ".part"


@dataclass(slots=True)
class _Entry:
    round: int
    size: int
    verified: bool


class PayloadLog:
    """Payloads of the last `rounds_max` settled rounds, of those that somebody needs, and of all
    undecided ones, in at most `bytes_max` bytes unless the undecided ones alone need more. Opening
    it lists what an earlier process left.

    `needed_after()`: those who fetch a snapshot will need the rounds after this one; None when
    nobody does."""

    def __init__(
        self,
        directory: Path,
        rounds_max: int,
        bytes_max: int,
        needed_after: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._rounds_max = rounds_max
        self._bytes_max = bytes_max
        self._entries: dict[Digest, _Entry] = {}
        self._cache: OrderedDict[Digest, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._needed_after = needed_after
        self._read_seconds: dict[int, float] = {}  # when a peer has last read of an old round
        self._settled = -1
        self._index = threading.Lock()  # held for moments: the event loop takes it too
        self._disk = threading.Lock()  # held while files appear or vanish
        with _translated(self._directory, "open"):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._scan()

    def put(self, round: int, blob: bytes | bytearray, expected: Digest | None = None) -> Digest:
        """Keep a payload and return its digest.

        Raises `RemoteProtocolError`, and writes nothing, when the digest is not the `expected`
        one."""
        digest = sha256(blob)
        if expected is not None and digest != expected:
            raise RemoteProtocolError(
                f"expected bytes with digest {expected.hex()[:16]}, got {digest.hex()[:16]}"
            )
        with self._disk:
            with self._index:
                known = self._entries.get(digest)
            if known is None or not known.verified:
                self._write(self._path(round, digest), blob)
                with self._index:
                    self._entries[digest] = _Entry(round, len(blob), verified=True)
                    self._remember(digest, bytes(blob))
        return digest

    def get(self, digest: Digest) -> bytes | None:
        """The payload, verified, or None when it is not here; a damaged file is deleted."""
        with self._index:
            if digest in self._cache:
                self._cache.move_to_end(digest)
                return self._cache[digest]
            entry = self._entries.get(digest)
        if entry is None:
            return None
        path = self._path(entry.round, digest)
        with _translated(path, "read"):
            try:
                blob = path.read_bytes()
            except FileNotFoundError:
                blob = b""
        if sha256(blob) != digest:
            self._delete([digest])
            return None
        with self._index:
            if digest in self._entries:  # else it was pruned since
                self._entries[digest].verified = True
                self._remember(digest, blob)
        return blob

    def size(self, digest: Digest) -> int | None:
        """Bytes of a payload that is here, or None."""
        with self._index:
            entry = self._entries.get(digest)
        return None if entry is None else entry.size

    @property
    def held_bytes(self) -> int:
        """Bytes of all that is here."""
        with self._index:
            return sum(entry.size for entry in self._entries.values())

    def digests(self, round: int) -> list[Digest]:
        """What is here of a round, sorted."""
        with self._index:
            return sorted(digest for digest, entry in self._entries.items() if entry.round == round)

    def read(self, digest: Digest, offset: int, count: int) -> bytes | None:
        """At most `count` bytes from `offset` on, or None when the payload is not here (any
        more)."""
        with self._index:
            entry, blob = self._entries.get(digest), self._cache.get(digest)
            if entry is not None and entry.round <= self._settled - self._rounds_max // 2:
                self._read_seconds[entry.round] = time.monotonic()
        if entry is not None and blob is None and not entry.verified:
            blob = self.get(digest)  # once per process: our name is on what we serve
            entry = entry if blob is not None else None
        if entry is None or blob is not None:
            return None if blob is None else blob[offset : offset + count]
        path = self._path(entry.round, digest)
        with _translated(path, "read"):
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    return file.read(count)
            except FileNotFoundError:
                return None  # pruned since

    def settle(self, round: int, kept: Iterable[Digest]) -> None:
        """The round is decided: remove what was not committed, then prune."""
        keep = set(kept)
        with self._index:
            self._settled = max(self._settled, round)
        self._delete(digest for digest in self.digests(round) if digest not in keep)
        self.prune()

    def prune(self) -> None:
        """Remove the oldest settled rounds until both bounds hold, as far as nobody needs them."""
        with self._index:
            entries = list(self._entries.items())
            needed = self._needed_from()
        total = sum(entry.size for _, entry in entries)
        settled = sorted({entry.round for _, entry in entries if entry.round <= self._settled})
        while settled and (
            total > self._bytes_max or (len(settled) > self._rounds_max and settled[0] < needed)
        ):
            oldest = settled.pop(0)
            total -= sum(entry.size for _, entry in entries if entry.round == oldest)
            self._delete(digest for digest, entry in entries if entry.round == oldest)
            with self._disk, _translated(self._directory, "prune"):
                _remove_empty(self._directory / str(oldest))

    def _needed_from(self) -> float:
        """The first round that somebody who is behind needs."""
        since = time.monotonic() - READ_SECONDS
        self._read_seconds = {round: at for round, at in self._read_seconds.items() if at > since}
        after = self._needed_after()
        return min([*self._read_seconds, *([] if after is None else [after + 1])], default=math.inf)

    def _path(self, round: int, digest: Digest) -> Path:
        return self._directory / str(round) / digest.hex()

    def _write(self, path: Path, blob: bytes | bytearray) -> None:
        part = path.with_suffix(_PART_SUFFIX)
        with _translated(path, f"write {len(blob)} bytes to"):
            path.parent.mkdir(exist_ok=True)
            try:
                part.write_bytes(blob)
                os.replace(part, path)
            except OSError:
                part.unlink(missing_ok=True)
                raise

    def _delete(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            with self._index:
                entry = self._entries.pop(digest, None)
                self._cached_bytes -= len(self._cache.pop(digest, b""))
            if entry is not None:
                path = self._path(entry.round, digest)
                with self._disk, _translated(path, "delete"):
                    path.unlink(missing_ok=True)

    def _remember(self, digest: Digest, blob: bytes) -> None:
        self._cached_bytes += len(blob) - len(self._cache.pop(digest, b""))
        self._cache[digest] = blob
        while self._cached_bytes > CACHE_BYTES_MAX:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])

    def _scan(self) -> None:
        for directory in self._directory.iterdir():
            if not (directory.name.isascii() and directory.name.isdigit() and directory.is_dir()):
                continue  # not ours
            for path in directory.iterdir():
                if path.suffix == _PART_SUFFIX:
                    path.unlink()  # its writer was killed
                elif (digest := _digest_of(path.name)) is not None:
                    self._entries[digest] = _Entry(
                        int(directory.name), path.stat().st_size, verified=False
                    )


def _digest_of(name: str) -> Digest | None:
    try:
        digest = Digest(bytes.fromhex(name))
    except ValueError:
        return None
    return digest if len(digest) == 32 and digest.hex() == name else None


def _remove_empty(directory: Path) -> None:
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()


@contextmanager
def _translated(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {doing} {path}: {error.strerror or error}") from error

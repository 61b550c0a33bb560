"""Payloads on disk, by digest: those that this node offers, serves and replays.

    <directory>/<round>/<digest in hexadecimal>

A file's name is the digest of its bytes, so nothing else has to be trusted or synced: a file torn
by a crash, a full disk or a bad sector is noticed by its digest, deleted, and fetched again from a
peer. Files appear by renaming, the index is rebuilt by listing. Bytes that are handed out were
verified once since the process started; reading a damaged file deletes it.

Rounds are decided in order: rounds after the last settled one are undecided and are never pruned. A
peer that replays the log, or will do so after the snapshot that it fetches, is not outrun: rounds
beyond `rounds_max` stay while their bytes fit and such a peer needs them.

All methods may be called from any thread. Every method that touches the disk raises `StorageError`
when the disk fails, and waits where descriptors or memory are short.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cachetools import LRUCache, TTLCache

from node.system.files import outlasting, read_range, storage_errors
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, sha256

CACHE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of recent payloads that are kept in memory too: they are offered on and applied within
seconds of their arrival."""

READ_S = 60
"""Seconds for which a peer that read of the older half of the log counts as replaying it, so that
it needs the rounds after that one."""

_PART_SUFFIX = ".part"


@dataclass(slots=True)
class _Entry:
    round: int
    size: int
    verified: bool


class PayloadLog:
    """Payloads of the last `rounds_max` settled rounds, of older ones that a peer needs, and of all
    undecided ones, in at most `bytes_max` bytes unless the undecided ones alone need more. Opening
    it lists the files that an earlier process left.

    `needed_after()` is the round of the oldest snapshot that peers are fetching, after which they
    will need all rounds; None when no peer fetches one.
    """

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
        self._cache: LRUCache[Digest, bytes] = LRUCache(CACHE_BYTES_MAX, getsizeof=len)
        self._needed_after = needed_after
        # Old rounds that a peer read of lately; no more of them than the log has rounds.
        self._read: TTLCache[int, None] = TTLCache(math.inf, READ_S, timer=time.monotonic)
        self._settled = -1
        self.rounds_dropped = 0
        """Rounds that were removed because of `bytes_max`, since the log was opened."""
        self._index = threading.Lock()  # held for moments: the event loop takes it too
        self._disk = threading.Lock()  # held while files appear or vanish
        with storage_errors(self._directory, doing="open"):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._scan()

    @outlasting
    def put(self, round: int, blob: bytes | bytearray, expected: Digest | None = None) -> Digest:
        """Keep a payload and return its digest.

        Raises `RemoteProtocolError`, and writes nothing, when the digest is not the `expected`
        one.
        """
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

    @outlasting
    def get(self, digest: Digest) -> bytes | None:
        """The payload, verified, or None when it is not here.

        A damaged file is deleted, so that the payload is fetched again.
        """
        with self._index:
            if digest in self._cache:
                return self._cache[digest]
            entry = self._entries.get(digest)
        if entry is None:
            return None
        path = self._path(entry.round, digest)
        with storage_errors(path, doing="read"):
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
        """Bytes of all payloads that are here."""
        with self._index:
            return sum(entry.size for entry in self._entries.values())

    @property
    def first_round(self) -> int | None:
        """The oldest round with payloads here; None without any."""
        with self._index:
            return min((entry.round for entry in self._entries.values()), default=None)

    def digests(self, round: int) -> list[Digest]:
        """Payloads of a round that are here, sorted."""
        with self._index:
            return sorted(digest for digest, entry in self._entries.items() if entry.round == round)

    @outlasting
    def read(self, digest: Digest, offset: int, count: int) -> bytes | None:
        """At most `count` bytes from `offset` on, or None when the payload is not here (any more).

        A damaged file is deleted. Reading of an old round keeps it and those after it for
        `READ_S`.
        """
        with self._index:
            entry, blob = self._entries.get(digest), self._cache.get(digest)
            if entry is not None and entry.round <= self._settled - self._rounds_max // 2:
                self._read[entry.round] = None
        if entry is not None and blob is None and not entry.verified:
            blob = self.get(digest)  # once per process: served bytes are verified
            entry = entry if blob is not None else None
        if entry is None or blob is not None:
            return None if blob is None else blob[offset : offset + count]
        path = self._path(entry.round, digest)
        return read_range(path, offset, count)  # None: pruned since

    def settle(self, round: int, kept: Iterable[Digest] | None) -> None:
        """The round is decided: remove payloads that were not committed, where `kept` names those
        that were, then prune.
        """
        with self._index:
            self._settled = max(self._settled, round)
        if kept is not None:
            keep = set(kept)
            self._delete(digest for digest in self.digests(round) if digest not in keep)
        self.prune()

    def prune(self) -> None:
        """Remove the oldest settled rounds until both bounds hold. Rounds that a peer needs stay
        beyond `rounds_max`, while their bytes fit.
        """
        with self._index:
            entries = list(self._entries.items())
            needed = self._needed_from()
        total = sum(entry.size for _, entry in entries)
        settled = sorted({entry.round for _, entry in entries if entry.round <= self._settled})
        while settled and (
            total > self._bytes_max or (len(settled) > self._rounds_max and settled[0] < needed)
        ):
            oldest = settled.pop(0)
            self.rounds_dropped += total > self._bytes_max
            total -= sum(entry.size for _, entry in entries if entry.round == oldest)
            self._delete(digest for digest, entry in entries if entry.round == oldest)
            self._remove_empty(self._directory / str(oldest))

    def _needed_from(self) -> float:
        """The first round that a peer which is behind needs."""
        self._read.expire()
        after = self._needed_after()
        return min([*self._read, *([] if after is None else [after + 1])], default=math.inf)

    def _path(self, round: int, digest: Digest) -> Path:
        return self._directory / str(round) / digest.hex()

    def _write(self, path: Path, blob: bytes | bytearray) -> None:
        part = path.with_suffix(_PART_SUFFIX)
        with storage_errors(path, len(blob), doing="write"):
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
                self._cache.pop(digest, None)
            if entry is not None:
                path = self._path(entry.round, digest)
                with self._disk, storage_errors(path, doing="delete"):
                    path.unlink(missing_ok=True)

    @outlasting
    def _remove_empty(self, directory: Path) -> None:
        with self._disk, storage_errors(directory, doing="prune"):
            if directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()

    def _remember(self, digest: Digest, blob: bytes) -> None:
        if len(blob) <= self._cache.maxsize:
            self._cache[digest] = blob

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

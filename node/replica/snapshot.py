"""Snapshots: the committed parameters in canonical bytes, named by their SHA-256.

    <directory>/<round>-<SHA-256 in hex>        a snapshot; <round> is its last commit's
    <directory>/<SHA-256 in hex>.part, .map     one on its way here: bytes, and a map of its ranges
    <directory>/aside                           a member's parameters, where nodes differ

The bytes are those of `node.replica.canonical`. A node knows names and shapes from the run file, so
it knows the size of a snapshot before it takes memory or disk for one, and every header before it
reads it. Files appear by renaming; the newest `SNAPSHOTS_KEPT` stay, and a few older ones for as
long as somebody fetches them. Bytes that are handed out were verified once since the process
started.

Reading and writing goes strip by strip: the extra memory does not grow with the model. Everything
that touches the disk raises `StorageError` when the disk fails, waits where descriptors or memory
are short, and may be called from any thread, one snapshot at a time.
"""

import hashlib
import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from node.replica.canonical import STRIP_WORDS, canonical_bytes, canonical_size, strips
from node.replica.share import filled, shapes_of
from node.system.files import outlasting, read_range, replacing_file, storage_errors, sweep
from protocol.codec.state_hash import parameter_header
from protocol.errors import StorageError
from protocol.ids import Digest
from protocol.limits import PART_BYTES

SNAPSHOTS_KEPT = 2
"""Snapshots that stay: the newest, and the one before it for peers that have just heard of it."""

SNAPSHOTS_HELD_MAX = 2
"""Older ones that stay because somebody fetches them: with a run that makes a snapshot every few
seconds, a late joiner would otherwise never see the end of one. With the newest, that is all the
disk that snapshots take."""

HELD_SECONDS = 60
"""Time after its last read in which a snapshot counts as being fetched: longer than any deadline of
a link, and a pause for breath."""

HELD_SECONDS_MAX = 4 * 3600
"""Longest time after its first read for which a snapshot is held: nobody may occupy the disk by
reading a byte a minute."""

RANGE_BYTES = 8 * PART_BYTES
"""Bytes asked of one peer at a time, and lost with a broken connection: seconds of a thin
uplink."""

_HASH_BYTES = 1 << 20
_NEW_NAME = "new"
_ASIDE_NAME = "aside"
_NAME = re.compile(r"([0-9]{1,18})-([0-9a-f]{64})")
_PARTIAL_SUFFIXES = (".part", ".map")


@outlasting
def read_snapshot(path: Path, parameters: Mapping[str, Tensor]) -> None:
    """Take over the parameters in a file of canonical bytes, in place.

    Raises `StorageError` for a file of other parameters, some of which may have been taken over by
    then.
    """
    with storage_errors(path), path.open("rb") as file, torch.no_grad():
        if (size := path.stat().st_size) != (expected := canonical_size(parameters)):
            raise StorageError(f"{path}: expected a snapshot of {expected} bytes, got {size}")
        for name, shape in sorted(shapes_of(parameters).items()):
            before = parameter_header(name, shape)
            if file.read(len(before)) != before:
                raise StorageError(
                    f"{path}: expected the parameter {name} of this run's model, got another"
                )
            with filled(parameters, name) as tensor:
                for strip in strips(tensor.detach().view(-1), STRIP_WORDS):
                    values = np.frombuffer(bytearray(file.read(4 * len(strip))), dtype="<f4")
                    strip.copy_(torch.from_numpy(values.astype(np.float32, copy=False)))


@outlasting
def file_sha256(path: Path) -> Digest:
    """SHA-256 of a file, piece by piece."""
    hasher = hashlib.sha256()
    with storage_errors(path), path.open("rb") as file:
        while piece := file.read(_HASH_BYTES):
            hasher.update(piece)
    return Digest(hasher.digest())


def _round_of(path: Path) -> int:
    return int(path.name.partition("-")[0])


class Snapshots:
    """The snapshots of one node."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._verified: set[Digest] = set()
        self._paths: dict[Digest, Path] = {}
        self._read_seconds: dict[
            Digest, tuple[float, float]
        ] = {}  # the first and the last time that a peer read it
        with storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            sweep(directory)
            for path in sorted(directory.iterdir()):
                if match := _NAME.fullmatch(path.name):
                    self._paths[Digest(bytes.fromhex(match[2]))] = path

    @outlasting
    def write(self, round: int, parameters: Mapping[str, Tensor]) -> Digest:
        """Keep a snapshot of the state after `round`; returns its SHA-256."""
        hasher = hashlib.sha256()
        new = self._directory / _NEW_NAME
        with (
            replacing_file(new, canonical_size(parameters)) as temporary,
            temporary.open("wb") as file,
        ):
            for piece in canonical_bytes(parameters):
                hasher.update(piece)
                file.write(piece)
        digest = Digest(hasher.digest())
        self._take(new, round, digest)
        return digest

    def keep(self, round: int, parameters: Mapping[str, Tensor]) -> Digest:
        """Keep a state from elsewhere, also when two newer snapshots are here: the oldest of these
        goes in its place. Returns its SHA-256.
        """
        newer = sorted(_round_of(path) for path in self._paths.values() if _round_of(path) > round)
        return self.write(newer[-1] if len(newer) >= SNAPSHOTS_KEPT else round, parameters)

    @outlasting
    def put_aside(self, parameters: Mapping[str, Tensor]) -> Path:
        """Write parameters that are no snapshot of the run; the next ones take their place."""
        path = self._directory / _ASIDE_NAME
        with (
            replacing_file(path, canonical_size(parameters)) as temporary,
            temporary.open("wb") as file,
        ):
            file.writelines(canonical_bytes(parameters))
        return path

    @outlasting
    def partial(self, digest: Digest, size: int) -> "Partial":
        """The snapshot of this SHA-256 as far as it has come; what has come of any other one is
        thrown away.
        """
        with storage_errors(self._directory):
            for path in self._directory.iterdir():
                if path.suffix in _PARTIAL_SUFFIXES and path.stem != digest.hex():
                    path.unlink()
        return Partial(self._directory, digest, size)

    @outlasting
    def begun(self, digest: Digest) -> bool:
        """Has some of this snapshot come, and not all?"""
        path = self._directory / (digest.hex() + _PARTIAL_SUFFIXES[1])
        with storage_errors(path):
            return path.is_file() and any(path.read_bytes())

    def adopt(self, partial: "Partial", round: int) -> bool:
        """Keep a partial that has all its bytes as the snapshot of `round`; False when its SHA-256
        is another.
        """
        if file_sha256(partial.path) != partial.digest:
            return False
        self._take(partial.path, round, partial.digest)
        partial.clear()
        return True

    def path(self, digest: Digest) -> Path | None:
        """The path of the snapshot of this SHA-256, verified; None when it is not here. A damaged
        file is deleted.
        """
        path = self._paths.get(digest)
        if path is None or digest in self._verified:
            return path
        if not path.is_file() or file_sha256(path) != digest:
            self._forget(digest)
            return None
        self._verified.add(digest)
        return path

    def size(self, digest: Digest) -> int | None:
        """Bytes of a snapshot that is here, or None."""
        path = self._paths.get(digest)
        try:
            return path.stat().st_size if path else None
        except FileNotFoundError:
            return None

    @outlasting
    def read(self, digest: Digest, offset: int, count: int) -> bytes | None:
        """At most `count` bytes from `offset` on, or None when the snapshot is not here (any
        more).
        """
        path = self.path(digest)
        if path is None:
            return None
        now = time.monotonic()
        self._read_seconds[digest] = (self._read_seconds.get(digest, (now, now))[0], now)
        return read_range(path, offset, count)  # None: a newer one took its place

    def held_round(self) -> int | None:
        """The round of the oldest snapshot that is being fetched: its reader needs the payloads
        from there on.
        """
        return min(
            (
                _round_of(path)
                for digest, path in list(self._paths.items())
                if self._is_held(digest)
            ),
            default=None,
        )

    def _take(self, source: Path, round: int, digest: Digest) -> None:
        """Give a whole and verified file its name, and let the oldest go."""
        path = self._directory / f"{round}-{digest.hex()}"
        with storage_errors(path):
            os.replace(source, path)
        if self._paths.get(digest, path) != path:
            self._forget(digest)  # the same parameters after an earlier round
        self._paths[digest] = path
        self._verified.add(digest)
        by_age = sorted(self._paths, key=lambda each: _round_of(self._paths[each]))
        old = by_age[:-SNAPSHOTS_KEPT]
        held = [each for each in old if self._is_held(each)][:SNAPSHOTS_HELD_MAX]
        for each in old:
            if each not in held:
                self._forget(each)

    def _is_held(self, digest: Digest) -> bool:
        first, last = self._read_seconds.get(digest, (-math.inf, -math.inf))
        now = time.monotonic()
        return now - last < HELD_SECONDS and now - first < HELD_SECONDS_MAX

    def _forget(self, digest: Digest) -> None:
        path = self._paths.pop(digest)
        self._verified.discard(digest)
        self._read_seconds.pop(digest, None)
        with storage_errors(path):
            path.unlink(missing_ok=True)


class Partial:
    """A snapshot on its way here, in ranges that arrive in any order. Survives a restart of the
    process.

    The map holds one byte per range. It is written after the range but not forced to disk: what a
    power cut mixes up is noticed by the SHA-256 of the whole.
    """

    def __init__(self, directory: Path, digest: Digest, size: int) -> None:
        self.digest, self.size = digest, size
        self.path, self._map_path = (
            directory / (digest.hex() + suffix) for suffix in _PARTIAL_SUFFIXES
        )
        ranges = -(-size // RANGE_BYTES)
        with storage_errors(self.path, size):
            fits = (
                self.path.is_file()
                and self._map_path.is_file()
                and self.path.stat().st_size == size
            )
            self._have = bytearray(self._map_path.read_bytes()) if fits else bytearray()
            if len(self._have) != ranges:
                self._have = bytearray(ranges)
                self.path.write_bytes(b"")
                os.truncate(self.path, size)
                self._map_path.write_bytes(self._have)

    @property
    def missing(self) -> list[int]:
        """Offsets of the ranges that are not here yet, ascending."""
        return [number * RANGE_BYTES for number, have in enumerate(self._have) if not have]

    def length(self, offset: int) -> int:
        """Bytes of the range that starts at `offset`."""
        return min(RANGE_BYTES, self.size - offset)

    @outlasting
    def put(self, offset: int, blob: bytes | bytearray) -> None:
        """Keep the range that starts at `offset`."""
        number = offset // RANGE_BYTES
        with storage_errors(self.path, self.size):
            for path, at, piece in ((self.path, offset, blob), (self._map_path, number, b"\x01")):
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(piece)
        self._have[number] = 1

    def clear(self) -> None:
        """Throw away what has arrived."""
        with storage_errors(self.path):
            self.path.unlink(missing_ok=True)
            self._map_path.unlink(missing_ok=True)

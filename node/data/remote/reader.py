"""Tokens of a published corpus: only the ranges that samples lie in are fetched.

    manifest    --digest of the run file-->   SHA-256 of each shard's list of digests
    list        --SHA-256 of the manifest-->  SHA-256 of each range
    range       --SHA-256 of the list-->      tokens

The samples of a round are known when it opens, so their ranges are fetched in that order while the
first ones are trained on; after them those of the next round, whose place is guessed
(`node.data.guess`).
"""

import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cachetools import LRUCache

from node.data.corpus import Corpus, Int64s, Places
from node.data.manifest import (
    DIGEST_BYTES,
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    Manifest,
    Shard,
)
from node.data.remote.cache import RangeCache
from node.data.remote.fetcher import Piece, RangeFetcher
from node.data.remote.source import Source, source_of
from node.system.downlink import Downlink
from node.system.files import replacing_file
from protocol.errors import DataError, UnavailableError
from protocol.ids import sha256

log = logging.getLogger("lockstep.node")

PATIENCE_S = 10
"""Longest wait for samples that no round's bell limits: a node that measures the validation loss
waits in front of a round."""

LISTS_S = 60
"""Longest wait for lists of digests for what is fetched beforehand."""

LISTS_BYTES_MAX = 64 * 1024**2
"""Bytes of lists of digests in memory, and of one list."""

Expected = tuple[Places, Places, int]


def open_published(
    url: str,
    manifest_sha256: str,
    directory: Path,
    cache_bytes: int,
    *,
    downlink: Downlink | None = None,
) -> Corpus:
    """The corpus published at `url`, whose manifest must have this digest if one is given. Its
    ranges are kept in `directory`, at most `cache_bytes` of them, and come no faster than
    `downlink` allows.

    Raises `AwayError` when the server does not answer, `DataError` when it has other data, none, or
    cannot be used.
    """
    source = source_of(url, downlink)
    manifest = _kept(directory / MANIFEST_NAME, manifest_sha256)
    if manifest is None:
        blob = source.whole(MANIFEST_NAME, MANIFEST_BYTES_MAX)
        manifest = _judged(blob, manifest_sha256, url)
        source.read(manifest.splits["train"][0].file, 1, 2)  # does it know ranges?
        with replacing_file(directory / MANIFEST_NAME, len(blob)) as temporary:
            temporary.write_bytes(blob)
    cache = RangeCache(directory, cache_bytes)
    return Corpus(url, manifest, FetchedShards(source, manifest, cache))


def _kept(path: Path, manifest_sha256: str) -> Manifest | None:
    """The manifest of an earlier start, if it is the one: the server may be away."""
    if not manifest_sha256:
        return None
    try:
        with path.open("rb") as file:
            return _judged(file.read(MANIFEST_BYTES_MAX + 1), manifest_sha256, str(path))
    except (OSError, DataError):
        return None


def _judged(blob: bytes, manifest_sha256: str, url: str) -> Manifest:
    """The manifest in the bytes of a published one, which are those that its digest is of: they are
    parsed only if they have it.
    """
    if manifest_sha256 and (found := sha256(blob).hex()) != manifest_sha256:
        raise DataError(
            f"{url}: expected the data with manifest {manifest_sha256}, got {found}: others than "
            "the run's, or not put there by `lockstep data publish`"
        )
    manifest = Manifest.from_json(blob, f"{url}/{MANIFEST_NAME}")
    for shard in (shard for split in manifest.splits.values() for shard in split):
        if _ranges(shard, manifest.range_tokens) * DIGEST_BYTES > LISTS_BYTES_MAX:
            raise DataError(
                f"{url}/{shard.digests_file}: expected at most {LISTS_BYTES_MAX:,} bytes of "
                f"digests, got {shard.tokens:,} tokens in ranges of {manifest.range_tokens}"
            )
    return manifest


def _ranges(shard: Shard, range_tokens: int) -> int:
    return -(-shard.tokens // range_tokens)


class FetchedShards:
    """Reads the shards at a source; a `node.data.corpus.TokenReader`."""

    def __init__(self, source: Source, manifest: Manifest, cache: RangeCache) -> None:
        self._source, self._manifest = source, manifest
        self._fetcher = RangeFetcher(source, cache)
        self._item_bytes = np.dtype(manifest.dtype).itemsize
        self._lists: LRUCache[str, bytes] = LRUCache(LISTS_BYTES_MAX, getsizeof=len)
        self._lock = threading.Lock()
        self._until_s: float | None = None
        self._expected: queue.SimpleQueue[Expected | None] = queue.SimpleQueue()
        self._planner: threading.Thread | None = None
        self.ranges_ready = self.ranges_awaited = 0
        """Ranges that were here when they were needed, and others."""

    def read(self, split: str, shards: Int64s, starts: Int64s, tokens: int) -> Int64s:
        until_s = self._until_s if split == "train" else None
        if until_s is None:
            until_s = time.monotonic() + PATIENCE_S
        rows = list(self._pieces(split, (shards, starts), tokens, until_s))
        wanted = list(dict.fromkeys(piece for row in rows for piece in row))
        ready = sum(piece.sha256 in self._fetcher.cache for piece in wanted)
        self.ranges_ready += ready
        self.ranges_awaited += len(wanted) - ready
        blobs = dict(zip(wanted, self._fetcher.get(wanted, until_s), strict=True))
        windows = np.empty((len(rows), tokens), dtype=np.int64)
        for number, (row, start) in enumerate(zip(rows, starts.tolist(), strict=True)):
            found = np.frombuffer(b"".join(blobs[piece] for piece in row), self._manifest.dtype)
            skipped = start % self._manifest.range_tokens
            windows[number] = found[skipped : skipped + tokens]
        return windows

    def expect(self, now: Places, later: Places, tokens: int, limit_s: float) -> None:
        self._until_s = time.monotonic() + limit_s
        self._expected.put((now, later, tokens))
        if self._planner is None:
            self._planner = threading.Thread(target=self._plan, name="data-ahead", daemon=True)
            self._planner.start()

    def document(self) -> dict[str, Any]:
        return {
            "from": self._source.url,
            "waits": self._fetcher.waits,
            "fetched_bytes": self._fetcher.fetched_bytes,
            "cached_bytes": self._fetcher.cache.held_bytes,
            "cached_bytes_max": self._fetcher.cache.bytes_max,
            "ranges_ready": self.ranges_ready,
            "ranges_awaited": self.ranges_awaited,
        }

    def close(self) -> None:
        self._expected.put(None)
        self._fetcher.close()

    def _plan(self) -> None:
        """In a thread: pass on what is expected, once the lists of digests are here."""
        while expected := self._expected.get():
            now, later, tokens = expected
            try:
                until_s = time.monotonic() + LISTS_S
                rows = [
                    piece
                    for places in (now, later)
                    for row in self._pieces("train", places, tokens, until_s)
                    for piece in row
                ]
            except (DataError, UnavailableError) as error:  # the read that needs it will say so
                log.debug("nothing is fetched beforehand", extra={"reason": str(error)})
                continue
            if self._expected.empty():
                self._fetcher.prefetch(dict.fromkeys(rows))

    def _pieces(
        self, split: str, places: Places, tokens: int, until_s: float
    ) -> Iterator[list[Piece]]:
        """The ranges that hold the tokens of each place."""
        shards = self._manifest.splits[split]
        digests = self._digests([shards[number] for number in np.unique(places[0])], until_s)
        size = self._manifest.range_tokens
        for number, start in zip(places[0].tolist(), places[1].tolist(), strict=True):
            shard = shards[number]
            numbers = range(start // size, (start + tokens - 1) // size + 1)
            yield [self._piece(shard, each, digests[shard.file]) for each in numbers]

    def _piece(self, shard: Shard, number: int, digests: bytes) -> Piece:
        size = self._manifest.range_tokens
        stop = min((number + 1) * size, shard.tokens)
        digest = digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
        return Piece(shard.file, number * size * self._item_bytes, stop * self._item_bytes, digest)

    def _digests(self, shards: Iterable[Shard], until_s: float) -> dict[str, bytes]:
        """The digests of all ranges of shards, by the shards' names."""
        with self._lock:
            found = {shard.file: self._lists.get(shard.file) for shard in shards}
        missing = [shard for shard in shards if found[shard.file] is None]
        pieces = [
            Piece(
                shard.digests_file,
                0,
                _ranges(shard, self._manifest.range_tokens) * DIGEST_BYTES,
                bytes.fromhex(shard.ranges_sha256),
            )
            for shard in missing
        ]
        for shard, blob in zip(missing, self._fetcher.get(pieces, until_s), strict=True):
            found[shard.file] = blob
            with self._lock:
                self._lists[shard.file] = blob
        return {name: blob for name, blob in found.items() if blob is not None}

"""Prepared data: the samples in the shards that a manifest names.

A corpus directory holds shards, files of raw little-endian tokens, and a manifest, which is written
last and says what they are (`node.data.manifest`). A sample is a window of sequence_length + 1
tokens; windows start every sequence_length tokens, so each token but a shard's first is a target
once, and none crosses a shard. Sample numbers run through the shards in order; which sample comes
when is `protocol.shuffle`'s business.

Shards of this machine are memory-mapped: a corpus may be far larger than memory. Those of a server
are read range by range (`node.data.remote`).
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from node.data.guess import Span, next_spans
from node.data.manifest import MANIFEST_NAME, SPLITS, Manifest, Shard, read_manifest, readable
from node.data.tokenizer import Tokenizer, tokenizer_from_json
from protocol.errors import DataError
from protocol.shuffle import samples_of

_READ_BYTES = 1 << 20

Int64s = npt.NDArray[np.int64]

Places = tuple[Int64s, Int64s]
"""Shards and first tokens, one of each for every place."""


class TokenReader(Protocol):
    """Reads tokens of a corpus, wherever its shards lie. Its methods block."""

    def read(self, split: str, shards: Int64s, starts: Int64s, tokens: int) -> Int64s:
        """`tokens` tokens of each place, [places, tokens]; a place is a shard of the split and its
        first token there.
        """

    def expect(self, now: Places, later: Places, tokens: int, limit_s: float) -> None:
        """Places of the training split that will be read within `limit_s` seconds, in order, and
        those that may be read after that.
        """

    def document(self) -> dict[str, Any]:
        """Where the shards lie, and what reading them has taken, for people."""

    def close(self) -> None:
        """End what runs in the background. A `read` that waits ends with `UnavailableError`."""


class Corpus:
    """Samples of prepared data, read only. `Corpus.open` makes one of a directory.

    `origin` is the directory or URL of the data, for messages.
    """

    def __init__(self, origin: str, manifest: Manifest, reader: TokenReader) -> None:
        self.origin = origin
        self.manifest = manifest
        self._reader = reader
        self._spans: Sequence[Span] = ()
        """Those of the newest round."""

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        verify: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """The corpus in `directory`. Sizes are always checked, SHA-256 when `verify` is set.

        `progress` is told the bytes hashed so far and in all. Raises `DataError` naming the file,
        what was expected and what was found.
        """
        manifest = read_manifest(directory)
        corpus = cls(str(directory), manifest, MappedShards(directory, manifest))
        if verify:
            _verify(directory, manifest, progress or (lambda done, total: None))
        return corpus

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens."""
        return tokenizer_from_json(self.manifest.tokenizer, f"{self.origin}/{MANIFEST_NAME}")

    def samples(self, sequence_length: int, split: str = "train") -> int:
        """Windows of sequence_length + 1 tokens in a split; `DataError` when there is none."""
        samples = int(self._ends(sequence_length, split)[-1])
        if samples == 0:
            longest = max(shard.tokens for shard in self.manifest.splits[split])
            raise DataError(
                f"{self.origin}: expected a shard of at least {sequence_length + 1} tokens in "
                f"the {split} split "
                f"for sequence_length {sequence_length}, the longest has {longest}; prepare more "
                "text"
            )
        return samples

    def batch(
        self, first: int, count: int, sequence_length: int, seed: int
    ) -> npt.NDArray[np.int64]:
        """Training samples at positions first .. first + count - 1 of the run's endless data order.

        Returns int64 [count, sequence_length + 1]. Raises `DataError` for a token outside the
        vocabulary or damaged data, `UnavailableError` when a server does not give the data in time.
        """
        return self._gather(self._places([(first, count)], sequence_length, seed), sequence_length)

    def expect(self, spans: Sequence[Span], length: int, seed: int, *, limit_s: float) -> None:
        """Tell which samples a round will read within `limit_s` seconds, in order: a corpus on a
        server fetches them beforehand, and after them those of the round after it by a guess.
        """
        later = next_spans(self._spans, spans)
        self._spans = spans
        places = self._places(spans, length, seed), self._places(later, length, seed)
        self._reader.expect(*places, length + 1, limit_s)

    def validation(self, count: int, sequence_length: int) -> npt.NDArray[np.int64]:
        """At most `count` windows of the validation split, evenly spaced and always the same.

        Returns int64 [min(count, windows there are), sequence_length + 1].
        """
        windows = self.samples(sequence_length, "validation")
        chosen = min(count, windows)
        numbers = np.arange(chosen, dtype=np.int64) * windows // chosen
        places = self._placed(numbers, sequence_length, "validation")
        return self._gather(places, sequence_length, "validation")

    def document(self) -> dict[str, Any]:
        """Where the data lie, and what reading them has taken, for people."""
        return self._reader.document()

    def close(self) -> None:
        """End what runs in the background, and every wait for data."""
        self._reader.close()

    def _places(self, spans: Iterable[Span], sequence_length: int, seed: int) -> Places:
        """Places of the training samples in spans of the data order."""
        samples = self.samples(sequence_length)
        numbers = [samples_of(first, count, samples, seed) for first, count in spans]
        return self._placed(
            np.concatenate([np.empty(0, np.int64), *numbers]), sequence_length, "train"
        )

    def _placed(self, numbers: Int64s, sequence_length: int, split: str) -> Places:
        """Places of samples by their numbers."""
        ends = self._ends(sequence_length, split)
        shards = np.searchsorted(ends, numbers, side="right")
        return shards, (numbers - np.concatenate([[0], ends])[shards]) * sequence_length

    def _ends(self, sequence_length: int, split: str) -> Int64s:
        """Samples in all shards up to and including each: int64 [shards]."""
        windows = [(shard.tokens - 1) // sequence_length for shard in self.manifest.splits[split]]
        return np.cumsum(windows, dtype=np.int64)

    def _gather(self, places: Places, sequence_length: int, split: str = "train") -> Int64s:
        """Windows at places: int64 [places, sequence_length + 1]."""
        windows = self._reader.read(split, *places, sequence_length + 1)
        for shard, window in zip(places[0].tolist(), windows, strict=True):
            self._require_known_tokens(window, split, shard)
        return windows

    def _require_known_tokens(self, window: npt.NDArray[np.int64], split: str, shard: int) -> None:
        """A token beyond the vocabulary would end in an unexplained device fault inside the
        model.
        """
        if (largest := int(window.max())) >= self.manifest.vocabulary_size:
            raise DataError(
                f"{self.origin}/{self.manifest.splits[split][shard].file}: expected tokens below "
                f"{self.manifest.vocabulary_size}, got {largest}; the file is damaged, prepare the "
                "data again"
            )


class MappedShards:
    """Reads the shards of a directory of this machine."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory = directory
        self._shards = {
            split: [_mapped(directory, manifest, shard) for shard in manifest.splits[split]]
            for split in SPLITS
        }

    def read(self, split: str, shards: Int64s, starts: Int64s, tokens: int) -> Int64s:
        windows = np.empty((len(starts), tokens), dtype=np.int64)
        for row, (shard, start) in enumerate(zip(shards.tolist(), starts.tolist(), strict=True)):
            windows[row] = self._shards[split][shard][start : start + tokens]
        return windows

    def expect(self, now: Places, later: Places, tokens: int, limit_s: float) -> None:
        """Nothing to do: the operating system reads ahead."""

    def document(self) -> dict[str, Any]:
        return {"from": str(self._directory), "waits": ""}

    def close(self) -> None:
        """Nothing runs in the background."""


def _mapped(directory: Path, manifest: Manifest, shard: Shard) -> npt.NDArray[Any]:
    """Tokens of a shard, memory-mapped, once its size is right."""
    path, dtype = directory / shard.file, np.dtype(manifest.dtype)
    expected = shard.tokens * dtype.itemsize
    with readable(path):
        found = path.stat().st_size
        if found != expected:
            raise DataError(
                f"{path}: expected {expected:,} bytes, got {found:,}; prepare the data again"
            )
        return np.memmap(path, dtype=dtype, mode="r")


def _verify(directory: Path, manifest: Manifest, progress: Callable[[int, int], None]) -> None:
    shards = [shard for split in SPLITS for shard in manifest.splits[split]]
    total = sum(shard.tokens for shard in shards) * np.dtype(manifest.dtype).itemsize
    done = 0
    for shard in shards:
        path, hasher = directory / shard.file, hashlib.sha256()
        with readable(path), path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                hasher.update(piece)
                done += len(piece)
                progress(done, total)
        if hasher.hexdigest() != shard.sha256:
            raise DataError(
                f"{path}: expected SHA-256 {shard.sha256}, got {hasher.hexdigest()}; "
                "the file is damaged, prepare the data again"
            )

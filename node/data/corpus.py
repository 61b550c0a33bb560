"""Prepared data: what a manifest says, and the samples in the shards it names.

A corpus directory holds shards, files of raw little-endian tokens, and `manifest.json`, which is
written last and says what they are. A sample is a window of sequence_length + 1 tokens; windows
start every sequence_length tokens, so each token but a shard's first is a target once, and none
crosses a shard. Sample numbers run through the shards in order; which sample comes when is
`protocol.shuffle`'s business.

Shards are memory-mapped: a corpus may be far larger than memory.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from node.data.tokenizer import Tokenizer, tokenizer_from_json
from protocol.errors import DataError, VersionError
from protocol.ids import Digest, sha256
from protocol.shuffle import samples_of

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1

MANIFEST_BYTES_MAX = 256 * 1024**2
"""A vocabulary of 2**22 tokens and a hundred thousand shards still fit."""

SPLITS = ("train", "validation")

_DTYPES = ("<u2", "<u4")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of tokens."""

    file: str
    """Name inside the corpus directory."""

    tokens: int
    """Tokens in it, at least one."""

    sha256: str
    """SHA-256 of its bytes, hexadecimal."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a corpus directory."""

    source: str
    """Origin of the text, in words."""

    tokenizer: dict[str, Any]
    """The tokenizer, as `to_json` gave it."""

    vocabulary_size: int
    """Every token is in [0, vocabulary_size)."""

    dtype: str
    """Type of a token in the shards as NumPy writes it: "<u2" or "<u4"."""

    documents: dict[str, int]
    """Documents of each split."""

    splits: dict[str, tuple[Shard, ...]]
    """Shards of each split, in order."""

    def to_json(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces, ASCII."""
        value = {"version": MANIFEST_VERSION, **asdict(self)}
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> Digest:
        """SHA-256 of the canonical JSON without the source, which may be a path on somebody's
        machine: two corpora have one digest exactly if they hold the same tokens in the same
        shards.
        """
        return sha256(replace(self, source="").to_json())

    def tokens(self, split: str) -> int:
        """Tokens in all shards of a split."""
        return sum(shard.tokens for shard in self.splits[split])

    @classmethod
    def from_json(cls, blob: bytes, origin: str) -> Self:
        """The manifest in `blob`; `DataError` (or `VersionError`) naming `origin`, expected and
        got.
        """
        try:
            value = json.loads(blob)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{origin}: expected JSON: {error}; prepare the data again") from error
        if not isinstance(value, dict):
            raise DataError(f"{origin}: expected an object, got {type(value).__name__}")
        if value.get("version") != MANIFEST_VERSION:
            raise VersionError(
                f"{origin}: expected version {MANIFEST_VERSION}, got {value.get('version')!r}"
            )
        match value:
            case {
                "source": str(source),
                "tokenizer": dict(tokenizer),
                "vocabulary_size": int(vocabulary_size),
                "dtype": str(dtype),
                "documents": dict(documents),
                "splits": dict(splits),
            } if dtype in _DTYPES and vocabulary_size > 0 and sorted(splits) == sorted(SPLITS):
                shards = {
                    name: tuple(_shard(entry, origin) for entry in splits[name] or ())
                    for name in SPLITS
                }
                if not all(shards.values()):
                    raise DataError(
                        f"{origin}: expected at least one shard in each split; prepare the data "
                        "again"
                    )
                return cls(source, tokenizer, vocabulary_size, dtype, documents, shards)
        raise DataError(
            f"{origin}: expected the fields of a manifest, got {str(value)[:160]}; prepare the "
            "data again"
        )


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a prepared directory; `DataError` when there is none or it is damaged."""
    path = directory / MANIFEST_NAME
    if not path.exists():
        raise DataError(
            f"{directory}: expected a prepared corpus with a {MANIFEST_NAME}, found none; "
            "prepare it with `lockstep data prepare`"
        )
    with _readable(path):
        size = path.stat().st_size
        if size > MANIFEST_BYTES_MAX:
            raise DataError(f"{path}: expected at most {MANIFEST_BYTES_MAX:,} bytes, got {size:,}")
        return Manifest.from_json(path.read_bytes(), str(path))


class Corpus:
    """Samples of a prepared directory, read only. Made by `Corpus.open`."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.manifest = manifest
        self._shards = {
            split: [_mapped(directory, manifest, shard) for shard in manifest.splits[split]]
            for split in SPLITS
        }

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
        corpus = cls(directory, manifest)
        if verify:
            _verify(directory, manifest, progress or (lambda done, total: None))
        return corpus

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens."""
        return tokenizer_from_json(self.manifest.tokenizer, str(self.directory / MANIFEST_NAME))

    def samples(self, sequence_length: int, split: str = "train") -> int:
        """Windows of sequence_length + 1 tokens in a split; `DataError` when there is none."""
        samples = int(self._ends(sequence_length, split)[-1])
        if samples == 0:
            longest = max(shard.tokens for shard in self.manifest.splits[split])
            raise DataError(
                f"{self.directory}: expected a shard of at least {sequence_length + 1} tokens in "
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
        vocabulary.
        """
        numbers = samples_of(first, count, self.samples(sequence_length), seed)
        return self._gather(numbers, sequence_length, "train")

    def validation(self, count: int, sequence_length: int) -> npt.NDArray[np.int64]:
        """At most `count` windows of the validation split, evenly spaced and always the same.

        Returns int64 [min(count, windows there are), sequence_length + 1].
        """
        windows = self.samples(sequence_length, "validation")
        chosen = min(count, windows)
        return self._gather(
            np.arange(chosen, dtype=np.int64) * windows // chosen, sequence_length, "validation"
        )

    def _ends(self, sequence_length: int, split: str) -> npt.NDArray[np.int64]:
        """Samples in all shards up to and including each: int64 [shards]."""
        windows = [(shard.tokens - 1) // sequence_length for shard in self.manifest.splits[split]]
        return np.cumsum(windows, dtype=np.int64)

    def _gather(
        self, numbers: npt.NDArray[np.int64], sequence_length: int, split: str
    ) -> npt.NDArray[np.int64]:
        """Windows by sample number: int64 [len(numbers), sequence_length + 1]."""
        ends = self._ends(sequence_length, split)
        shards = np.searchsorted(ends, numbers, side="right")
        starts = (numbers - np.concatenate([[0], ends])[shards]) * sequence_length
        windows = np.empty((len(numbers), sequence_length + 1), dtype=np.int64)
        for row, (shard, start) in enumerate(zip(shards.tolist(), starts.tolist(), strict=True)):
            windows[row] = self._shards[split][shard][start : start + sequence_length + 1]
            self._require_known_tokens(windows[row], split, shard)
        return windows

    def _require_known_tokens(self, window: npt.NDArray[np.int64], split: str, shard: int) -> None:
        """A token beyond the vocabulary would end in an unexplained device fault inside the
        model.
        """
        if (largest := int(window.max())) >= self.manifest.vocabulary_size:
            raise DataError(
                f"{self.directory / self.manifest.splits[split][shard].file}: expected tokens "
                "below "
                f"{self.manifest.vocabulary_size}, got {largest}; the file is damaged, prepare the "
                "data again"
            )


def _shard(entry: Any, origin: str) -> Shard:
    """A shard from JSON. Its name stays inside the directory: a manifest may come from a
    stranger.
    """
    match entry:
        case {"file": str(file), "tokens": int(tokens), "sha256": str(digest)} if (
            tokens > 0 and len(digest) == 64 and re.fullmatch(r"[a-z]+-[0-9]+\.bin", file)
        ):
            return Shard(file, tokens, digest)
    raise DataError(
        f"{origin}: expected a shard's file name, tokens and sha256, got {str(entry)[:160]}"
    )


def _mapped(directory: Path, manifest: Manifest, shard: Shard) -> npt.NDArray[Any]:
    """Tokens of a shard, memory-mapped, once its size is right."""
    path, dtype = directory / shard.file, np.dtype(manifest.dtype)
    expected = shard.tokens * dtype.itemsize
    with _readable(path):
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
        with _readable(path), path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                hasher.update(piece)
                done += len(piece)
                progress(done, total)
        if hasher.hexdigest() != shard.sha256:
            raise DataError(
                f"{path}: expected SHA-256 {shard.sha256}, got {hasher.hexdigest()}; "
                "the file is damaged, prepare the data again"
            )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Translates `OSError` into a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}; prepare the data again"
        ) from error

"""Text to shards: preparing a corpus that `node.data.corpus` reads.

Documents become tokens, each followed by the tokenizer's document end. A document belongs to the
validation split when the hash of its NAME falls into one part in fifty, whatever stands before or
after it: no document is in both, and adding text later moves nothing across. (If none falls there,
the one with the least hash does: a small corpus needs one too.) Texts longer than
`DOCUMENT_CHARACTERS_MAX` are cut and count as several.

Preparing happens once: processes that start together queue for a lock that the operating system
frees when its holder dies. `manifest.json` appears last and at once; without it a directory counts
for nothing and is prepared anew, with it the work is done.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from node.data.builtin import builtin_documents
from node.data.documents import documents, library_documents
from node.data.manifest import (
    MANIFEST_NAME,
    RANGE_TOKENS,
    Manifest,
    Shard,
    range_digests,
    read_manifest,
)
from node.data.reading import Document, Report
from node.data.tokenizer import ByteTokenizer, Learning, Tokenizer, tokenizer_for
from node.system.files import replacing_file, storage_errors
from protocol.errors import DataError, SettingsError
from protocol.limits import TOKENIZER_BYTES_MAX

SHARD_TOKENS_MAX = 2**24
"""Tokens of one shard unless asked otherwise: 32 MiB, held in memory while it fills."""

DOCUMENT_CHARACTERS_MAX = 2**16
"""A longer text is cut at line ends, so that one big file still has a validation split."""

VALIDATION_PARTS = 50
"""One document in this many is validation."""

_LOCK_NAME = ".lock"
_OTHER_PLACE = "choose another directory or remove that one"

Progress = Callable[[int, int], None]
"""Told the documents and tokens written so far."""


def prepare(
    sources: Iterable[Document],
    out_dir: Path,
    tokenizer: Tokenizer,
    *,
    source: str,
    shard_tokens_max: int = SHARD_TOKENS_MAX,
    progress: Progress | None = None,
) -> Manifest:
    """Writes a corpus of `sources` into `out_dir`, unless it is there already, and returns its
    manifest.

    sources: names and texts, read only if needed; `source` says in words what they are and must be
    what an existing manifest says. Raises `DataError` for fewer than two documents or another
    corpus in `out_dir`, `StorageError` for a disk that is full or refuses.
    """

    def write() -> Manifest:
        writer = _Writer(
            out_dir, tokenizer, shard_tokens_max, progress or (lambda documents, tokens: None)
        )
        return writer.write(sources, source)

    manifest = _once(out_dir, source, write)
    if manifest.tokenizer != tokenizer.to_json():
        raise DataError(
            f"{out_dir}: prepared with another tokenizer than the one asked for; {_OTHER_PLACE}"
        )
    return manifest


def prepare_from(
    specs: Sequence[str],
    out_dir: Path,
    tokenizer_choice: str = "bytes",
    *,
    shard_tokens_max: int = SHARD_TOKENS_MAX,
    progress: Progress | None = None,
    learning: Learning | None = None,
    report: Report | None = None,
) -> Manifest:
    """`prepare` as a person asks for it: `specs` as `documents` takes them, tokenizer as
    `tokenizer_for`, which tells `learning` how far it is. `report` is told what was passed over.
    """
    named = " ".join(specs).encode(errors="replace").decode()  # a path may be no UTF-8
    source = f"{named}; tokenizer {tokenizer_choice}"

    def write() -> Manifest:
        tokenizer = tokenizer_for(
            tokenizer_choice, lambda: (text for _, text in documents(specs)), learning
        )
        writer = _Writer(
            out_dir, tokenizer, shard_tokens_max, progress or (lambda documents, tokens: None)
        )
        return writer.write(documents(specs, report), source)

    return _once(out_dir, source, write)


def prepare_builtin(
    out_dir: Path, *, byte_limit: int | None = None, progress: Progress | None = None
) -> Manifest:
    """Lockstep's own text (`node.data.builtin`) as bytes: the same on every machine.

    byte_limit: only the first documents that fit into this many bytes.
    """
    part = "" if byte_limit is None else f", the first {byte_limit:,} bytes"
    return prepare(
        builtin_documents(byte_limit),
        out_dir,
        ByteTokenizer(),
        source=f"Lockstep's own text{part}",
        progress=progress,
    )


def prepare_library(
    out_dir: Path, *, byte_limit: int | None = None, progress: Progress | None = None
) -> Manifest:
    """The Python standard library's own sources as bytes: about 12 MB of good text on every
    machine.

    byte_limit: only the first files that fit into this many bytes. Python versions differ in their
    sources, so the manifest's digest is equal between nodes of one version only.
    """
    part = "" if byte_limit is None else f", the first {byte_limit:,} bytes"
    source = f"the Python standard library's sources{part}"
    return prepare(
        library_documents(byte_limit), out_dir, ByteTokenizer(), source=source, progress=progress
    )


@dataclass(slots=True)
class _Split:
    """One split while it is written."""

    documents: int = 0
    waiting: list[npt.NDArray[Any]] = field(default_factory=list)
    waiting_tokens: int = 0
    shards: list[Shard] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens in shards and waiting for one."""
        return sum(shard.tokens for shard in self.shards) + self.waiting_tokens


class _Writer:
    """Writes one corpus. It keeps back the document with the least hash seen so far: if no document
    falls into the validation part of all hashes, that one does.
    """

    def __init__(
        self, out_dir: Path, tokenizer: Tokenizer, shard_tokens_max: int, progress: Progress
    ) -> None:
        if shard_tokens_max < 1:
            raise SettingsError(f"shard_tokens_max: expected at least 1, got {shard_tokens_max}")
        if (size := len(tokenizer.to_json().get("file", ""))) > TOKENIZER_BYTES_MAX:
            raise SettingsError(
                f"tokenizer: expected at most {TOKENIZER_BYTES_MAX:,} characters, got {size:,}"
            )
        self._out_dir = out_dir
        self._tokenizer = tokenizer
        self._shard_tokens_max = shard_tokens_max
        self._progress = progress
        self._dtype = "<u2" if tokenizer.vocabulary_size <= 2**16 else "<u4"
        self._splits = {"train": _Split(), "validation": _Split()}

    def write(self, sources: Iterable[Document], source: str) -> Manifest:
        """The whole work: shards, then the manifest."""
        self._remove_leftovers()
        least: tuple[int, npt.NDArray[Any]] | None = None
        for name, text in _pieces(sources):
            newest = _name_hash(name), self._tokens(text)
            if least is None:
                least = newest
                continue
            other, least = (newest, least) if newest[0] >= least[0] else (least, newest)
            self._add("validation" if _is_validation(other[0]) else "train", other[1])
        if least is not None:
            short = self._splits["validation"].documents == 0
            self._add("validation" if short or _is_validation(least[0]) else "train", least[1])
        if not all(split.documents for split in self._splits.values()):
            raise DataError(
                f"{source}: expected at least two documents with text, one for each split"
            )
        for name in self._splits:
            self._flush(name)
        return self._finish(source)

    def _remove_leftovers(self) -> None:
        """Shards of a preparer that died."""
        with storage_errors(self._out_dir):
            for name in self._splits:
                for kind in ("bin", "sha"):
                    for stale in self._out_dir.glob(f"{name}-[0-9][0-9][0-9][0-9][0-9].{kind}*"):
                        stale.unlink()

    def _tokens(self, text: str) -> npt.NDArray[Any]:
        return np.append(self._tokenizer.encode(text), self._tokenizer.document_end).astype(
            self._dtype
        )

    def _add(self, name: str, tokens: npt.NDArray[Any]) -> None:
        """Puts one document behind the others of its split; full shards go to disk."""
        split = self._splits[name]
        split.documents += 1
        while len(tokens):
            if split.waiting_tokens == self._shard_tokens_max:
                self._flush(name)
            piece, tokens = np.split(tokens, [self._shard_tokens_max - split.waiting_tokens])
            split.waiting.append(piece)
            split.waiting_tokens += len(piece)
        both = self._splits.values()
        self._progress(sum(split.documents for split in both), sum(split.tokens for split in both))

    def _flush(self, name: str) -> None:
        """Writes the waiting tokens of a split as its next shard."""
        split = self._splits[name]
        tokens = np.concatenate(split.waiting).data.cast("B")
        digests = range_digests(tokens, RANGE_TOKENS * np.dtype(self._dtype).itemsize)
        shard = Shard(
            f"{name}-{len(split.shards):05d}.bin",
            split.waiting_tokens,
            hashlib.sha256(tokens).hexdigest(),
            hashlib.sha256(digests).hexdigest(),
        )
        for file, blob in ((shard.file, tokens), (shard.digests_file, digests)):
            with replacing_file(self._out_dir / file, len(blob)) as temporary:
                temporary.write_bytes(blob)
        split.shards.append(shard)
        split.waiting.clear()
        split.waiting_tokens = 0

    def _finish(self, source: str) -> Manifest:
        manifest = Manifest(
            source=source,
            tokenizer=self._tokenizer.to_json(),
            vocabulary_size=self._tokenizer.vocabulary_size,
            dtype=self._dtype,
            documents={name: split.documents for name, split in self._splits.items()},
            splits={name: tuple(split.shards) for name, split in self._splits.items()},
            range_tokens=RANGE_TOKENS,
        )
        blob = manifest.to_json()
        with replacing_file(self._out_dir / MANIFEST_NAME, len(blob)) as temporary:
            temporary.write_bytes(blob)
        return manifest


def _once(out_dir: Path, source: str, write: Callable[[], Manifest]) -> Manifest:
    """The manifest in `out_dir`, written under the lock if there is none. A finished corpus needs
    no lock, so it may lie on a read-only disk.
    """
    if not (out_dir / MANIFEST_NAME).exists():
        with storage_errors(out_dir):
            out_dir.mkdir(parents=True, exist_ok=True)
            lock = FileLock(out_dir / _LOCK_NAME).acquire()
        with lock:
            if not (out_dir / MANIFEST_NAME).exists():
                return write()
    manifest = read_manifest(out_dir)
    if manifest.source != source:
        raise DataError(
            f"{out_dir}: expected a corpus of {source!r}, found one of {manifest.source!r}; "
            f"{_OTHER_PLACE}"
        )
    return manifest


def _name_hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode(errors="replace")).digest()[:8], "little")


def _is_validation(name_hash: int) -> bool:
    return name_hash % VALIDATION_PARTS == 0


def _pieces(sources: Iterable[Document]) -> Iterator[Document]:
    """Documents that are not blank, long ones cut at the last line end that fits; pieces are
    numbered.
    """
    for name, text in sources:
        if not text.strip():
            continue
        if len(text) <= DOCUMENT_CHARACTERS_MAX:
            yield name, text
            continue
        start = number = 0
        while start < len(text):
            end = start + DOCUMENT_CHARACTERS_MAX
            if end < len(text):
                end = text.rfind("\n", start, end) + 1 or end
            yield f"{name}#{number}", text[start:end]
            start, number = end, number + 1

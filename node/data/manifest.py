"""The manifest of a corpus directory, which says what its prepared data are.

    manifest.json      SHA-256 of every shard, and of every list of digests
    train-00000.bin    tokens                            range 0 | range 1 | ... | range n
    train-00000.sha    SHA-256 of each range, 32 bytes   digest 0, digest 1, ... digest n

So the digest of the manifest, which a run file names, vouches for each range by itself: one that
comes from a server is judged without the rest of its shard (`node.data.remote`).
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from protocol.errors import DataError, VersionError
from protocol.ids import Digest, sha256

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 2

MANIFEST_VERSIONS = (1, MANIFEST_VERSION)
"""Versions that are read; the first names no digests of ranges."""

MANIFEST_BYTES_MAX = 256 * 1024**2
"""A vocabulary of 2**22 tokens and a hundred thousand shards still fit."""

SPLITS = ("train", "validation")

SHARD_TOKENS_LIMIT = 2**32
"""Tokens of one shard at most."""

RANGE_TOKENS = 2**13
"""Tokens of a range: 16 or 32 KiB. Samples are drawn from the whole corpus, so most often a range
is fetched for one sample: smaller ranges would mean longer lists of digests, larger ones more bytes
for nothing."""

RANGE_TOKENS_MAX = 2**20
"""Tokens of a range at most: what a node fetches for one sample."""

DIGEST_BYTES = 32

_DTYPES = ("<u2", "<u4")


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of tokens."""

    file: str
    """Name inside the corpus directory."""

    tokens: int
    """Tokens in it, at least one."""

    sha256: str
    """SHA-256 of its bytes, hexadecimal."""

    ranges_sha256: str = ""
    """SHA-256 of the file with the digests of its ranges; empty in a manifest of version 1."""

    @property
    def digests_file(self) -> str:
        """Name of the file with the digests of its ranges."""
        return self.file.removesuffix(".bin") + ".sha"


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

    range_tokens: int = 0
    """Tokens of each range of a shard, except for its last one; 0 in a manifest of version 1."""

    def to_json(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces, ASCII."""
        value = {"version": MANIFEST_VERSION, **asdict(self)}
        if not self.range_tokens:
            del value["range_tokens"]
            value["version"] = 1
            for shard in (shard for split in value["splits"].values() for shard in split):
                del shard["ranges_sha256"]
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
        if (version := value.get("version")) not in MANIFEST_VERSIONS:
            raise VersionError(
                f"{origin}: expected version 1 or {MANIFEST_VERSION}, got {version!r}"
            )
        range_tokens = value.get("range_tokens", 0) if version != 1 else 0
        match value:
            case {
                "source": str(source),
                "tokenizer": dict(tokenizer),
                "vocabulary_size": int(vocabulary_size),
                "dtype": str(dtype),
                "documents": dict(documents),
                "splits": dict(splits),
            } if (
                dtype in _DTYPES
                and vocabulary_size > 0
                and sorted(splits) == sorted(SPLITS)
                and (version == 1 or _is_number(range_tokens, 1, RANGE_TOKENS_MAX))
            ):
                shards = {
                    name: tuple(_shard(entry, version, origin) for entry in splits[name] or ())
                    for name in SPLITS
                }
                if not all(shards.values()):
                    raise DataError(
                        f"{origin}: expected at least one shard in each split; prepare the data "
                        "again"
                    )
                return cls(
                    source, tokenizer, vocabulary_size, dtype, documents, shards, range_tokens
                )
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
    with readable(path):
        size = path.stat().st_size
        if size > MANIFEST_BYTES_MAX:
            raise DataError(f"{path}: expected at most {MANIFEST_BYTES_MAX:,} bytes, got {size:,}")
        return Manifest.from_json(path.read_bytes(), str(path))


def range_digests(shard: memoryview, range_bytes: int) -> bytes:
    """SHA-256 of each range of a shard's bytes, one after the other."""
    starts = range(0, len(shard), range_bytes)
    return b"".join(hashlib.sha256(shard[start : start + range_bytes]).digest() for start in starts)


def _is_number(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _shard(entry: Any, version: int, origin: str) -> Shard:
    """A shard from JSON. Its name stays inside the directory: a manifest may come from a
    stranger.
    """
    match entry:
        case {"file": str(file), "tokens": int(tokens), "sha256": str(digest)} if _is_number(
            tokens, 1, SHARD_TOKENS_LIMIT
        ) and re.fullmatch(r"[a-z]{1,16}-[0-9]{1,9}\.bin", file):
            ranges = entry.get("ranges_sha256", "") if version != 1 else "0" * 64
            if all(_is_sha256(each) for each in (digest, ranges)):
                return Shard(file, tokens, digest, ranges if version != 1 else "")
    raise DataError(
        f"{origin}: expected a shard's file name, tokens and sha256, got {str(entry)[:160]}"
    )


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Translates `OSError` into a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}; prepare the data again"
        ) from error

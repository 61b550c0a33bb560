"""The manifest of a corpus directory, which says what its prepared data are.

    manifest.json      SHA-256 of every shard, and of every list of digests
    train-00000.bin    tokens                            range 0 | range 1 | ... | range n
    train-00000.sha    SHA-256 of each range, 32 bytes   digest 0, digest 1, ... digest n

So the digest of the manifest, which a run file names, vouches for each range by itself: one that
comes from a server is judged without the rest of its shard (`node.data.remote`).
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Self, TypedDict

import msgspec
from msgspec import Meta

from protocol.codec.decoding import UNREADABLE
from protocol.errors import DataError, VersionError
from protocol.ids import Digest, sha256
from protocol.limits import TOKENIZER_BYTES_MAX

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 2

MANIFEST_BYTES_MAX = 64 * 1024**2
"""Longest manifest: the largest published tokenizers, of some 20 MB, and a hundred thousand shards.
A node reads one of a stranger's server."""

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


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of tokens."""

    file: Annotated[str, Meta(pattern=r"^[a-z]{1,16}-[0-9]{1,9}\.bin\Z")]
    """Name inside the corpus directory, and never outside: a manifest may come from a stranger."""

    tokens: Annotated[int, Meta(ge=1, le=SHARD_TOKENS_LIMIT)]
    """Tokens in it, at least one."""

    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """SHA-256 of its bytes, hexadecimal."""

    ranges_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """SHA-256 of the file with the digests of its ranges."""

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

    range_tokens: int
    """Tokens of each range of a shard, except for its last one."""

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
        got. Fields that no manifest has take no memory.
        """
        if len(blob) > MANIFEST_BYTES_MAX:
            raise DataError(
                f"{origin}: expected at most {MANIFEST_BYTES_MAX:,} bytes, got {len(blob):,}"
            )
        try:
            version = msgspec.json.decode(blob, type=_Version).version
            if version != MANIFEST_VERSION:
                raise VersionError(
                    f"{origin}: expected version {MANIFEST_VERSION}, got {version}; prepare the "
                    "data again"
                )
            read = msgspec.json.decode(blob, type=_Fields)
        except UNREADABLE as error:
            raise DataError(
                f"{origin}: expected the fields of a manifest: {error}; prepare the data again"
            ) from None
        return cls(
            read.source,
            {**read.tokenizer},
            read.vocabulary_size,
            read.dtype,
            {"train": read.documents["train"], "validation": read.documents["validation"]},
            {"train": read.splits["train"], "validation": read.splits["validation"]},
            read.range_tokens,
        )


_Shards = Annotated[tuple[Shard, ...], Meta(min_length=1)]


class _Version(msgspec.Struct):
    version: int


class TokenizerFields(TypedDict):
    """What `to_json` of a tokenizer gives."""

    kind: str
    document_end: NotRequired[str]
    file: NotRequired[Annotated[str, Meta(max_length=TOKENIZER_BYTES_MAX)]]


class _Documents(TypedDict):
    train: int
    validation: int


class _Splits(TypedDict):
    train: _Shards
    validation: _Shards


class _Fields(msgspec.Struct):
    """A manifest as it is read: without an open dictionary, which a stranger could fill."""

    source: str
    tokenizer: TokenizerFields
    vocabulary_size: Annotated[int, Meta(ge=1)]
    dtype: Literal["<u2", "<u4"]
    documents: _Documents
    splits: _Splits
    range_tokens: Annotated[int, Meta(ge=1, le=RANGE_TOKENS_MAX)]


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a prepared directory; `DataError` when there is none or it is damaged."""
    path = directory / MANIFEST_NAME
    if not path.exists():
        raise DataError(
            f"{directory}: expected a prepared corpus with a {MANIFEST_NAME}, found none; "
            "prepare it with `lockstep data prepare`"
        )
    with readable(path), path.open("rb") as file:
        return Manifest.from_json(file.read(MANIFEST_BYTES_MAX + 1), str(path))


def range_digests(shard: memoryview, range_bytes: int) -> bytes:
    """SHA-256 of each range of a shard's bytes, one after the other."""
    starts = range(0, len(shard), range_bytes)
    return b"".join(hashlib.sha256(shard[start : start + range_bytes]).digest() for start in starts)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Translates `OSError` into a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}; prepare the data again"
        ) from error

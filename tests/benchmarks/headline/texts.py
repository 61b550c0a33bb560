"""The two texts of the headline, each split by document into train, validation and test.

    library    the sources of the Python standard library, as bytes
    manual     this machine's English manual pages as they are written (troff), in subwords: a
               byte-pair encoding of 1024 tokens, learnt from the training documents alone

A document belongs to a split by the hash of its name, and counts with its first 32 KiB at most, so
no single document is a large part of a split. Documents of equal text are one. Choices are made on
the validation split; the test split lies in a corpus of its own, which only `look` opens.
"""

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from node.data.corpus import Corpus
from node.data.documents import library_documents
from node.data.manifest import MANIFEST_NAME, RANGE_TOKENS, Manifest, Shard, range_digests
from node.data.reading import Document
from node.data.tokenizer import ByteTokenizer, SubwordTokenizer, Tokenizer
from node.system.files import replacing_file
from protocol.errors import DataError

TextName = Literal["library", "manual"]
Split = Literal["train", "validation", "test"]

DOCUMENT_BYTES_MAX = 32 * 1024
"""Part of a document that counts: one of 757 KB would be a tenth of the library's sources."""

DOCUMENT_BYTES_MIN = 512
"""Shorter documents say little but "see there"."""

SPLIT_BYTES_MIN, SPLIT_DOCUMENTS_MIN = 1_000_000, 100
"""Text of a validation and of a test split at least."""

SUBWORDS = 1024

MANUAL = Path("/usr/share/man")

_GENERATED = "gcloud"
"""Beginning of the names of ten thousand pages that one program wrote from one pattern."""

_PARTS: dict[int, Split] = {0: "validation", 1: "test"}
"""Splits by the hash of a name modulo four; the others are train."""


SOURCES: dict[TextName, Callable[[], Iterator[Document]]] = {}
"""Documents of each text, in an order that is always the same."""


def open_text(name: TextName, directory: Path) -> Corpus:
    """Train and validation of a text, prepared in `directory` if it is not yet there."""
    if not (directory / name / MANIFEST_NAME).exists():
        prepare_text(name, SOURCES[name](), directory, subwords=name == "manual")
    return Corpus.open(directory / name)


def open_test(name: str, directory: Path) -> Corpus:
    """The test split of a prepared text, as both splits of a corpus."""
    return Corpus.open(_test_directory(name, directory))


def prepare_text(
    name: str,
    documents: Iterable[Document],
    directory: Path,
    *,
    subwords: bool,
    bytes_min: int = SPLIT_BYTES_MIN,
    documents_min: int = SPLIT_DOCUMENTS_MIN,
) -> None:
    """Write both corpora of a text. `DataError` if there is too little text to choose and to judge
    by.
    """
    splits = split_by_document(documents)
    for split in ("validation", "test"):
        found = sum(len(text.encode()) for text in splits[split])
        if found < bytes_min or len(splits[split]) < documents_min:
            raise DataError(
                f"{name}: expected {split} text of at least {bytes_min:,} bytes in "
                f"{documents_min} documents, got {found:,} in {len(splits[split])}"
            )
    tokenizer: Tokenizer = (
        SubwordTokenizer.trained(splits["train"], SUBWORDS) if subwords else ByteTokenizer()
    )
    test = _test_directory(name, directory)
    _write(test, f"{name}, test", tokenizer, dict.fromkeys(("train", "validation"), splits["test"]))
    chosen = {"train": splits["train"], "validation": splits["validation"]}
    _write(directory / name, name, tokenizer, chosen)


def split_by_document(documents: Iterable[Document]) -> dict[Split, list[str]]:
    """The texts of each split, shortened, in the order of their names' hashes: train mixes all
    kinds.
    """
    ordered: list[tuple[int, str]] = []
    seen: set[bytes] = set()
    for name, text in documents:
        beginning = text.encode(errors="replace")[:DOCUMENT_BYTES_MAX]
        digest = hashlib.sha256(beginning).digest()
        if len(beginning) >= DOCUMENT_BYTES_MIN and digest not in seen:
            seen.add(digest)
            named = hashlib.sha256(name.encode(errors="replace")).digest()
            place = int.from_bytes(named[:8], "little")
            ordered.append((place, beginning.decode(errors="ignore")))
    splits: dict[Split, list[str]] = {"train": [], "validation": [], "test": []}
    for place, text in sorted(ordered):
        splits[_PARTS.get(place % 4, "train")].append(text)
    return splits


def token_bytes(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Bytes of each token, [vocabulary]. Both kinds of tokenizer write a byte as one character."""
    pieces = json.loads(tokenizer.to_library()[0])["model"]["vocab"]
    sizes = np.zeros(tokenizer.vocabulary_size, np.int64)
    for piece, token in pieces.items():
        sizes[token] = len(piece)
    sizes[tokenizer.document_end] = 0
    return sizes


def manual_documents() -> Iterator[Document]:
    """English manual pages of this machine, less those that were generated by the thousand."""
    for path in sorted(MANUAL.glob("man[1-8]/*.gz")):
        if path.is_file() and not path.is_symlink() and not path.name.startswith(_GENERATED):
            yield path.name, gzip.decompress(path.read_bytes()).decode(errors="replace")


def _test_directory(name: str, directory: Path) -> Path:
    return directory / f"{name}-test"


def _write(
    directory: Path, source: str, tokenizer: Tokenizer, splits: dict[str, list[str]]
) -> None:
    """One shard for each split, then the manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    shards: dict[str, tuple[Shard, ...]] = {}
    for split, texts in splits.items():
        pieces = [
            np.append(tokenizer.encode(text), tokenizer.document_end).astype("<u2")
            for text in texts
        ]
        blob = np.concatenate(pieces).tobytes()
        file = f"{split}-00000.bin"
        with replacing_file(directory / file, len(blob)) as temporary:
            temporary.write_bytes(blob)
        digests = hashlib.sha256(range_digests(memoryview(blob), 2 * RANGE_TOKENS)).hexdigest()
        shards[split] = (Shard(file, len(blob) // 2, hashlib.sha256(blob).hexdigest(), digests),)
    manifest = Manifest(
        source=source,
        tokenizer=tokenizer.to_json(),
        vocabulary_size=tokenizer.vocabulary_size,
        dtype="<u2",
        range_tokens=RANGE_TOKENS,
        documents={split: len(texts) for split, texts in splits.items()},
        splits=shards,
    ).to_json()
    with replacing_file(directory / MANIFEST_NAME, len(manifest)) as temporary:
        temporary.write_bytes(manifest)


SOURCES.update(library=library_documents, manual=manual_documents)

"""Puts a prepared corpus at a URL, from which nodes fetch the ranges that they need."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from node.data.corpus import Corpus
from node.data.manifest import MANIFEST_NAME, Manifest, readable
from node.system.urls import file_system
from protocol.border.text import clean
from protocol.errors import DataError, StorageError


def publish(
    directory: Path, url: str, progress: Callable[[int, int], None] | None = None
) -> Manifest:
    """Copy the corpus in `directory` to a URL of fsspec, the manifest last, and return its
    manifest, which does not say where the text came from. `progress` is told the files copied and
    all.

    Raises `DataError` for a corpus that is damaged, `SettingsError` for
    a URL of no kind that is known here, `StorageError` when it cannot be written to.
    """
    manifest = _verified(directory)
    files = [
        file
        for shards in manifest.splits.values()
        for shard in shards
        for file in (shard.file, shard.digests_file)
    ]
    system, root = file_system(url, "expected a directory or a URL that fsspec can write here")
    try:
        system.makedirs(root, exist_ok=True)
        for number, file in enumerate(files, 1):
            system.put_file(str(directory / file), f"{root}/{file}")
            if progress:
                progress(number, len(files))
        system.pipe_file(f"{root}/{MANIFEST_NAME}", manifest.to_json())
    except Exception as error:  # each backend raises errors of its own
        raise StorageError(
            f"cannot publish to {url}: {type(error).__name__}: {clean(str(error))}"
        ) from error
    return manifest


def _verified(directory: Path) -> Manifest:
    """The manifest of an undamaged corpus, without its source."""
    manifest = Corpus.open(directory, verify=True).manifest
    for shard in (shard for shards in manifest.splits.values() for shard in shards):
        path = directory / shard.digests_file
        with readable(path):
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != shard.ranges_sha256:
            raise DataError(
                f"{path}: expected SHA-256 {shard.ranges_sha256}, got {found}; the file is "
                "damaged, prepare the data again"
            )
    return replace(manifest, source="")

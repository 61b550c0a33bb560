"""Copies a checkpoint's files to a directory or to any URL that fsspec knows.

A local directory is replaced as a whole, so it must hold a checkpoint of ours and nothing else, or
nothing. Elsewhere the files are written one after the other, and `lockstep.json`, the mark of ours,
comes last; older shards of ours that the new checkpoint does not have are removed. Credentials are
those of the environment, as each fsspec backend reads them.
"""

import shutil
from pathlib import Path
from typing import Any

from node.model.checkpoint import ABOUT_NAME
from node.system.files import replacing_directory, storage_errors
from node.system.urls import file_system
from protocol.border.checkpoint_files import is_checkpoint_file, is_parameters
from protocol.border.text import clean
from protocol.errors import SettingsError, StorageError

EXPECTED = "publish: expected a directory or a URL that fsspec can write here"


def local_path(url: str) -> Path | None:
    """The directory on this machine that the address names; None for one elsewhere.

    Raises `SettingsError` for an address that no installed backend of fsspec knows, and for a
    directory that is not ours to replace.
    """
    import fsspec.implementations.local

    system, path = file_system(url, EXPECTED)
    local = isinstance(system, fsspec.implementations.local.LocalFileSystem)
    if not local:
        return None
    _require_ours(Path(path))
    return Path(path)


def _require_ours(directory: Path) -> None:
    if not directory.exists():
        return
    with storage_errors(directory):
        found = {path.name for path in directory.iterdir()} if directory.is_dir() else None
    foreign = sorted(name for name in found or () if not is_checkpoint_file(name))
    if found is None:
        fault = "is a file"
    elif foreign:
        fault = f"has {foreign[0]!a} in it"
    elif found and ABOUT_NAME not in found:
        fault = f"has no {ABOUT_NAME}"
    else:
        return
    raise SettingsError(
        "publish: expected a new or empty directory, or one with a checkpoint of Lockstep and "
        f"nothing else, because each checkpoint replaces it as a whole; {directory} {fault}: name "
        "another directory, such as a new one inside it"
    )


def publish_directory(directory: Path, url: str) -> None:
    """Put all files of `directory` at `url`; `StorageError` when that fails."""
    files = sorted(directory.iterdir(), key=lambda path: (path.name == ABOUT_NAME, path.name))
    if target := local_path(url):
        with replacing_directory(target, sum(path.stat().st_size for path in files)) as temporary:
            for path in files:
                shutil.copyfile(path, temporary / path.name)
        return
    system, root = file_system(url, EXPECTED)
    try:
        system.makedirs(root, exist_ok=True)
        before = _names_at(system, root)
        for path in files:
            system.put_file(str(path), f"{root}/{path.name}")
        older = before - {path.name for path in files} if ABOUT_NAME in before else set()
        for name in sorted(filter(is_parameters, older)):
            system.rm_file(f"{root}/{name}")
    except Exception as error:  # each backend raises errors of its own
        raise StorageError(
            f"cannot publish to {url}: {type(error).__name__}: {clean(str(error))}"
        ) from error


def _names_at(system: Any, root: str) -> set[str]:
    """Names of the files that are there; a bucket knows no place without files."""
    system.invalidate_cache(root)
    try:
        return {str(found).rpartition("/")[2] for found in system.ls(root, detail=False)}
    except FileNotFoundError:
        return set()

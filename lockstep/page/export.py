"""The public page as files, for any web server: the same that `lockstep.page.public` serves.

The documents are asked of the coordinator at work, at its admin port on this machine.
"""

import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import msgspec

from border.files import MODE_FOR_ALL
from lockstep.page.site import KEPT_S, Site
from node.system.files import replacing_file, storage_errors
from protocol.errors import UnavailableError

TIMEOUT_S = 10.0
"""Longest wait for a document; the coordinator is on this machine."""

DOCUMENT_BYTES_MAX = 8_000_000
"""Bytes of a document: some times that of a run with the most contributors."""


def export(admin: str, checkpoints: Path, directory: Path) -> int:
    """Writes the page of the coordinator with this admin URL and folder of checkpoints; returns the
    bytes without the model's. A web server may read the directory meanwhile: each file is replaced
    as a whole, the documents last.

    Raises `UnavailableError` where the coordinator does not answer, `StorageError` where nothing
    can be written.
    """
    documents = {f"{part}.json": _document(f"{admin}/{part}.json") for part in KEPT_S}
    model = msgspec.json.decode(documents["run.json"])["model"]
    newest = model["newest"]["name"] if model and model["newest"] else ""
    if newest:
        with storage_errors(directory):
            _copy_model(checkpoints / newest, directory / "model" / newest)
    fixed = {path: answer.body for path, answer in Site(lambda _: {}).files.items()}
    for path, body in (fixed | documents).items():
        with replacing_file(directory / path) as temporary:
            temporary.write_bytes(body)
    for old in (directory / "model").glob("*"):
        if old.name != newest:
            shutil.rmtree(old, ignore_errors=True)
    return sum(map(len, (fixed | documents).values()))


def _document(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
            return bytes(reply.read(DOCUMENT_BYTES_MAX))
    except (OSError, urllib.error.URLError) as error:
        raise UnavailableError(
            f"{url}: expected the page of a coordinator at work, got {error}"
        ) from None


def _copy_model(source: Path, target: Path) -> None:
    """Copies a checkpoint, unless it is there; without copying bytes on the same disk."""
    for file in source.iterdir():
        place = target / file.name
        if place.exists():
            continue
        target.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, place)
        except OSError:  # another disk
            with replacing_file(place) as temporary:
                shutil.copyfile(file, temporary)
        place.chmod(MODE_FOR_ALL)

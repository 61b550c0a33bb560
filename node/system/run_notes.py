"""Small files of JSON that a process keeps about one run, from one start to the next."""

import logging
from pathlib import Path
from typing import TypeVar

import msgspec

from node.system.files import outlasting, replacing_file, storage_errors
from protocol.codec.decoding import UNREADABLE
from protocol.ids import RunId


class RunNote(msgspec.Struct):
    """The content of such a file; subclasses add fields."""

    run_id: RunId


Note = TypeVar("Note", bound=RunNote)


@outlasting
def read_note(path: Path, fresh: Note, log: logging.Logger, unusable: str) -> Note:
    """The note of an earlier start on the run of `fresh`; else `fresh`. `log` is told in
    the words `unusable` of a file that is damaged.

    Raises `StorageError` for a file that is there and cannot be read.
    """
    with storage_errors(path, doing="read"):
        if not path.exists():
            return fresh
        blob = path.read_bytes()
    try:
        note = msgspec.json.decode(blob, type=type(fresh))
    except UNREADABLE as error:
        log.warning(unusable, extra={"path": str(path), "reason": str(error)})
        return fresh
    return note if note.run_id == fresh.run_id else fresh


@outlasting
def write_note(path: Path, note: RunNote) -> None:
    """Replace the file; `StorageError` leaves the older one. Blocks."""
    with replacing_file(path) as temporary:
        temporary.write_bytes(msgspec.json.encode(note))

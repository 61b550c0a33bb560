"""Files with one JSON document per line, compressed where the name ends in `.xz`."""

import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from node.system.files import replacing_file, storage_errors
from protocol.errors import DataError

COMPRESSED = ".xz"


def read_records(path: Path) -> list[Any]:
    """The documents of a file, in order; none if it does not exist. `DataError` names the line."""
    if not path.exists():
        return []
    with storage_errors(path):
        blob = path.read_bytes()
    try:
        text = (lzma.decompress(blob) if path.suffix == COMPRESSED else blob).decode()
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected text, got {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: expected JSON, got {error}") from error
    return found


def write_records(path: Path, documents: Iterable[Any]) -> None:
    """Write the whole file or nothing; every float as the shortest text that reads back equal."""
    lines = [json.dumps(document, separators=(",", ":")) + "\n" for document in documents]
    blob = "".join(lines).encode()
    if path.suffix == COMPRESSED:
        blob = lzma.compress(blob, preset=lzma.PRESET_EXTREME | 9)
    with replacing_file(path, len(blob)) as temporary:
        temporary.write_bytes(blob)


def add_record(path: Path, document: Any) -> None:
    """Add one to the end of a file that is not compressed."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(document) + "\n")

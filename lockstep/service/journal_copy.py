"""A coordinator's journal for those that only read it. SQLite writes beside a journal even then, so
one on a disk that cannot be written, or of another account, is read from a copy.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from node.system.files import storage_errors


@contextmanager
def readable_journal(path: Path) -> Iterator[Path]:
    """The journal of a stopped coordinator, or a copy of it that goes when the block ends.

    Raises `StorageError` where it cannot be copied.
    """
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        yield path
        return
    with TemporaryDirectory(prefix="lockstep-journal-") as place:
        for part in (path, path.with_name(f"{path.name}-wal")):
            if part.is_file():
                with storage_errors(part, doing="read"):
                    shutil.copyfile(part, Path(place) / part.name)
        yield Path(place) / path.name

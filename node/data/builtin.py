"""The text that every machine has: Lockstep's own sources and pages as they were in November 2026.

It lies beside this module and never changes, whatever Lockstep or Python runs here, so that all
nodes of a run hold the same samples. A newer text would be another corpus, with a name of its own.
"""

import lzma
from collections.abc import Iterator
from pathlib import Path

from node.data.archives import opened, tar_members
from node.data.reading import Document

BUILTIN_CORPUS = "lockstep-2026"
"""Its name in run files."""

BUILTIN_SHA256 = "d4bde86ce1dd407726abc667463ff9180931b306c94cca47deef3f6a9e8534e1"
"""Digest of its manifest once it is prepared."""

_ARCHIVE = Path(__file__).with_name("builtin.tar.xz")


def builtin_documents(byte_limit: int | None = None) -> Iterator[Document]:
    """The files, in the order of their names, about 5.5 MB.

    byte_limit: stop before the file that would exceed it.
    """
    taken = 0
    with lzma.open(_ARCHIVE) as archive:
        for name, opens in tar_members(archive):
            blob = opened(opens)
            taken += len(blob)
            if byte_limit is not None and taken > byte_limit:
                return
            yield name, blob.decode()

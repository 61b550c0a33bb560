"""Compressed files and archives, opened with the standard library.

Nothing is written anywhere: members are read where they are, in the order of their names.
"""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import IO, Any

from node.data.text import UnreadableError

OPENED_BYTES_MAX = 4 * 1024**3
"""Bytes of one compressed file or member once it is open: a small file can hold a million times its
size."""

Member = tuple[str, Callable[[], IO[bytes]]]
"""A member's name in its archive, and what opens it."""

_Opens = Callable[[IO[bytes]], Any]

_BZIP2_BLOCKS = (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90")
"""The bytes after "BZh" and a digit in every bzip2 file, and in no text."""

_ZSTD_PIECE_BYTES = 4096
"""Bytes that zstd is given at once: they can hold 128 MB."""

_DAMAGE = (EOFError, OSError, zlib.error, ValueError, zipfile.BadZipFile, tarfile.TarError)


def _gzip(file: IO[bytes]) -> Any:
    return gzip.GzipFile(fileobj=file)


def _zstandard(file: IO[bytes]) -> Any:
    try:
        import zstandard
    except ImportError:
        raise UnreadableError(
            "compressed with zstd: pip install zstandard, or decompress it with zstd -d"
        ) from None
    text = io.BytesIO()
    frame, begun = zstandard.ZstdDecompressor().decompressobj(), False
    while piece := file.read(_ZSTD_PIECE_BYTES):
        while piece and text.tell() <= OPENED_BYTES_MAX:
            begun = True
            text.write(frame.decompress(piece))
            piece = frame.unused_data
            if frame.eof:
                frame, begun = zstandard.ZstdDecompressor().decompressobj(), False
    if begun:  # the library itself takes a torn file for a short one
        raise EOFError("it ends within a frame")
    text.seek(0)
    return text


_COMPRESSED: tuple[tuple[bytes, str, _Opens], ...] = (
    (b"\x1f\x8b\x08", ".gz", _gzip),
    (b"BZh", ".bz2", bz2.BZ2File),
    (b"\xfd7zXZ\0", ".xz", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", ".zst", _zstandard),
)
"""Beginnings of compressed files, with the name of each form and its opener."""


def opener(head: bytes) -> _Opens | None:
    """The opener of a compressed file that begins with `head`; None if it is not compressed."""
    for start, _, opens in _COMPRESSED:
        if head.startswith(start) and (start != b"BZh" or head[4:10] in _BZIP2_BLOCKS):
            return opens
    return None


def without_suffix(name: str) -> str:
    """A file's name without the suffix of its compression."""
    path = PurePosixPath(name)
    compressed = path.suffix.lower() in {suffix for _, suffix, _ in _COMPRESSED}
    return str(path.with_suffix("")) if compressed else name


def opened(opens: Callable[[], IO[bytes]]) -> bytes:
    """All bytes of a compressed file or member; `UnreadableError` for a damaged or too large
    one.
    """
    try:
        with opens() as stream:
            blob = stream.read(OPENED_BYTES_MAX + 1)
    except (UnreadableError, MemoryError):
        raise
    except (RuntimeError, NotImplementedError) as error:  # zipfile: a password, another method
        raise UnreadableError(f"cannot be opened: {error}") from error
    except Exception as error:  # every format fails in types of its own
        raise UnreadableError(f"damaged: {error}; fetch it again") from error
    if len(blob) > OPENED_BYTES_MAX:
        raise UnreadableError(f"more than {OPENED_BYTES_MAX:,} bytes once opened; split it")
    return blob


def zip_members(file: IO[bytes]) -> Iterator[Member]:
    """Files of a zip archive."""
    try:
        with zipfile.ZipFile(file) as archive:
            for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
                if not entry.is_dir():
                    yield entry.filename, partial(archive.open, entry)
    except _DAMAGE as error:
        raise UnreadableError(f"a damaged zip archive: {error}; fetch it again") from error


def tar_members(file: IO[bytes]) -> Iterator[Member]:
    """Regular files of a tar archive."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for entry in sorted(archive.getmembers(), key=lambda entry: entry.name):
                if entry.isfile():
                    yield entry.name, partial(_extracted, archive, entry)
    except _DAMAGE as error:
        raise UnreadableError(f"a damaged tar archive: {error}; fetch it again") from error


def _extracted(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(entry)
    if stream is None:
        raise UnreadableError("not a regular file")
    return stream

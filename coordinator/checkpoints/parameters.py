"""The digests of the parameters in a checkpoint's files, without torch.

A safetensors file is the length of its header (u64), the header as JSON, and the tensors' bytes:
{"NAME": {"dtype": "F32", "shape": [..], "data_offsets": [first, last]}, ..}. The files come from a
stranger: everything that the header says is checked against the file.
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.border.checkpoint_files import run_name
from protocol.codec.decoding import UNREADABLE
from protocol.codec.state_hash import ROW_WORDS, StateHash
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest

HEADERS_BYTES_MAX = 4 * 1024**2
"""Bytes of all headers: thirty thousand tensors. The worst of that length holds the coordinator up
for a fifth of a second."""

DIMENSIONS_MAX = 8

STRIP_BYTES = 4 * ROW_WORDS * 256
"""Bytes that are read at once: 4 MiB, whole rows of the hash."""


_Size = Annotated[int, Meta(ge=0, lt=2**48)]


class _Entry(msgspec.Struct, gc=False):
    """What a header says of one tensor; nothing of what is no tensor."""

    dtype: str = ""
    shape: Annotated[tuple[_Size, ...], Meta(max_length=DIMENSIONS_MAX)] = ()
    data_offsets: tuple[_Size, _Size] = (0, 0)


@dataclass(frozen=True, slots=True)
class _Tensor:
    path: Path
    shape: tuple[int, ...]
    first: int
    """Place of its first byte in the file."""

    @property
    def length(self) -> int:
        """Length in bytes."""
        return 4 * math.prod(self.shape)


def digests_of(paths: Iterable[Path]) -> tuple[int, Digest]:
    """State digest and canonical SHA-256 of all tensors in safetensors files, by a run's names.

    Raises `RemoteProtocolError` for a file that is none, and for tensors that are not float32.
    """
    tensors: dict[str, _Tensor] = {}
    room = HEADERS_BYTES_MAX
    for path in paths:
        header = _header(path, room)
        room -= len(header)
        for name, tensor in _tensors(path, header).items():
            if name in tensors:
                raise RemoteProtocolError(f"{path.name}: expected {name[:64]!a} once")
            tensors[name] = tensor
    found = StateHash()
    named = {run_name(name, tensors): tensor for name, tensor in tensors.items()}
    if len(named) != len(tensors):
        raise RemoteProtocolError("expected one embedding that stands for the output, got two")
    for name in sorted(named):
        tensor = named[name]
        found.begin(name, tensor.shape)
        with tensor.path.open("rb") as file:
            file.seek(tensor.first)
            left = tensor.length
            while left:
                strip = file.read(min(left, STRIP_BYTES))
                if not strip:
                    raise RemoteProtocolError(f"{tensor.path.name}: it ended in {name[:64]!a}")
                found.take(strip)
                left -= len(strip)
    return found.state_digest, found.sha256


def _header(path: Path, bytes_max: int) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise RemoteProtocolError(f"{path.name}: expected a safetensors file, got another")
        if length > bytes_max:
            raise RemoteProtocolError(
                f"{path.name}: expected headers of at most {HEADERS_BYTES_MAX:,} bytes in all "
                "files, got more"
            )
        return file.read(length)


def _tensors(path: Path, header: bytes) -> dict[str, _Tensor]:
    try:
        entries = msgspec.json.decode(header, type=dict[str, _Entry])
    except UNREADABLE as error:
        raise RemoteProtocolError(
            f"{path.name}: expected a header of float32 parameters: {error}"
        ) from None
    entries.pop("__metadata__", None)
    begin, size = 8 + len(header), path.stat().st_size
    found = {name: _tensor(path, name, entry, begin) for name, entry in entries.items()}
    ends = [begin, *(tensor.first + tensor.length for tensor in found.values())]
    if max(ends) != size or sum(each.length for each in found.values()) != size - begin:
        raise RemoteProtocolError(f"{path.name}: expected tensors that fill the file")
    return found


def _tensor(path: Path, name: str, entry: _Entry, begin: int) -> _Tensor:
    first, last = entry.data_offsets
    tensor = _Tensor(path, entry.shape, begin + first)
    if entry.dtype != "F32" or tensor.length != last - first:
        raise RemoteProtocolError(
            f"{path.name}: expected float32 parameters, got {name[:64]!a} of {entry.dtype[:8]!a} "
            f"and {entry.shape} in {last - first:,} bytes"
        )
    return tensor


def directory_bytes(directory: Path) -> int:
    """Bytes of the files in a directory; 0 when there is none."""
    if not directory.is_dir():
        return 0
    with os.scandir(directory) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())

"""The digests of the parameters in a checkpoint's files, without torch.

A safetensors file is the length of its header (u64), the header as JSON, and the tensors' bytes:
{"NAME": {"dtype": "F32", "shape": [..], "data_offsets": [first, last]}, ..}. The files come from a
stranger: everything that the header says is checked against the file.
"""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.border.checkpoint_files import run_name
from protocol.codec.state_hash import ROW_WORDS, StateHash
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest

HEADER_BYTES_MAX = 16 * 1024**2
"""Longest header: some hundred thousand tensors."""

DIMENSIONS_MAX = 8

STRIP_BYTES = 4 * ROW_WORDS * 256
"""Bytes that are read at once: 4 MiB, whole rows of the hash."""


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
    for path in paths:
        for name, tensor in _tensors(path).items():
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


def _tensors(path: Path) -> dict[str, _Tensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(HEADER_BYTES_MAX, size - 8):
            raise RemoteProtocolError(f"{path.name}: expected a safetensors file, got another")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"{path.name}: expected a header in JSON: {error}") from None
    if not isinstance(header, dict):
        raise RemoteProtocolError(f"{path.name}: expected a header with tensors, got none")
    header.pop("__metadata__", None)
    begin = 8 + length
    found = {name: _tensor(path, name, about, begin) for name, about in header.items()}
    ends = [begin, *(tensor.first + tensor.length for tensor in found.values())]
    if max(ends) != size or sum(each.length for each in found.values()) != size - begin:
        raise RemoteProtocolError(f"{path.name}: expected tensors that fill the file")
    return found


def _tensor(path: Path, name: str, about: Any, begin: int) -> _Tensor:
    match about:
        case {"dtype": "F32", "shape": list(shape), "data_offsets": [int(first), int(last)]}:
            sizes = [each for each in shape if type(each) is int and 0 <= each < 2**40]
            tensor = _Tensor(path, tuple(sizes), begin + first)
            whole = len(sizes) == len(shape) <= DIMENSIONS_MAX
            if whole and first >= 0 and tensor.length == last - first < 2**48:
                return tensor
    raise RemoteProtocolError(
        f"{path.name}: expected float32 parameters, got {name[:64]!a} as "
        f"{json.dumps(about, default=str)[:120]}"
    )


def directory_bytes(directory: Path) -> int:
    """Bytes of the files in a directory; 0 when there is none."""
    if not directory.is_dir():
        return 0
    with os.scandir(directory) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())

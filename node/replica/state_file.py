"""Tensors and a few JSON values in one safetensors file: what a node keeps of its state.

The file appears whole or not at all, and an older one survives every failure. Reading one runs no
code that it holds. Tensors are written and read one at a time, so that they may come from
elsewhere, as the parameters of many ranks do.
"""

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from node.replica.share import SpreadParameters
from node.system.files import outlasting, replacing_file, storage_errors
from protocol.errors import StorageError

_METADATA_KEY = "lockstep"

_TYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
}
"""safetensors' names of the types that are kept."""


@outlasting
def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Replaces the file `path` by `tensors` and JSON values `metadata`, forced to disk.

    Raises `StorageError` when the disk is full; the older file is still there then.
    """
    kinds = _kinds(tensors)
    header: dict[str, Any] = {
        "__metadata__": {_METADATA_KEY: json.dumps(dict(metadata), sort_keys=True)}
    }
    end = 0
    for name, (kind, shape) in kinds.items():
        first, end = end, end + kind.itemsize * prod(shape)
        header[name] = {"dtype": _TYPES[kind], "shape": shape, "data_offsets": [first, end]}
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    with replacing_file(path, end) as temporary, temporary.open("wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        for name in kinds:
            held = tensors[name].detach().cpu().contiguous()
            file.write(held.view(-1).view(torch.uint8).numpy().data)


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, list[int]]]:
    """Type and shape of each; the widest type first, so that each lies at a multiple of its own."""
    if isinstance(tensors, SpreadParameters):
        return {name: (torch.float32, list(shape)) for name, shape in tensors.shapes.items()}
    ordered = sorted(tensors.items(), key=lambda each: (-each[1].dtype.itemsize, each[0]))
    return {name: (tensor.dtype, list(tensor.shape)) for name, tensor in ordered}


@outlasting
def load_tensors(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
    """The tensors and values that `save_tensors` wrote; each tensor is read when it is asked for.

    Raises `StorageError` when the file is missing or damaged.
    """
    if not path.is_file():
        raise StorageError(f"expected saved parameters in {path}, found none")
    with storage_errors(path, doing="read"):
        path.open("rb").close()  # safetensors says of no failure why
    try:
        saved = _SavedTensors(path, device)
        return saved, json.loads(saved.metadata[_METADATA_KEY])
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise StorageError(f"{path} is damaged: expected saved parameters: {error!r}") from error


class _SavedTensors(Mapping[str, Tensor]):
    """The tensors of a file, which is open as long as this is there."""

    def __init__(self, path: Path, device: torch.device | str) -> None:
        opened: Any = safe_open
        self._file = opened(path, framework="pt", device=str(device))
        self._names: list[str] = self._file.keys()
        self.metadata: dict[str, str] = self._file.metadata() or {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        found: Tensor = self._file.get_tensor(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

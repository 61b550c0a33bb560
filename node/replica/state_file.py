"""Tensors and a few JSON values in one safetensors file: what a node keeps of its state.

The file appears whole or not at all, and an older one survives every failure. Reading one runs no
code that it holds.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from node.model.checkpoint import safetensors_errors
from node.system.files import outlasting, replacing_file, storage_errors
from protocol.errors import StorageError

_METADATA_KEY = "lockstep"


@outlasting
def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Replaces the file `path` by `tensors` of any dtype and JSON values `metadata`, forced to
    disk.

    Raises `StorageError` when the disk is full; the older file is still there then.
    """
    bytes_needed = sum(tensor.nbytes for tensor in tensors.values())
    with replacing_file(path, bytes_needed) as temporary, safetensors_errors(path, bytes_needed):
        save_file(
            _apart(tensors), temporary, {_METADATA_KEY: json.dumps(dict(metadata), sort_keys=True)}
        )


@outlasting
def load_tensors(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and values that `save_tensors` wrote.

    Raises `StorageError` when the file is missing or damaged.
    """
    if not path.is_file():
        raise StorageError(f"expected saved parameters in {path}, found none")
    with storage_errors(path, doing="read"):
        path.open("rb").close()  # safetensors says of no failure why
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = json.loads((file.metadata() or {})[_METADATA_KEY])
            names = file.keys()  # the file is no dict
            return {name: file.get_tensor(name) for name in names}, metadata
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise StorageError(f"{path} is damaged: expected saved parameters: {error!r}") from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors of which no two share memory, which safetensors refuses; most are not
    copied.
    """
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        held = tensor.detach().contiguous()
        storage = held.untyped_storage().data_ptr()
        apart[name] = held.clone() if storage in storages else held
        storages.add(storage)
    return apart

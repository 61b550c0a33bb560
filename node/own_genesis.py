"""The published checkpoint from which a run begins, where its run file names one.

    genesis = "URL or path"    --files--> parameters --canonical bytes--> genesis_sha256
    <directory>/0-<SHA-256>    the snapshot, verified each time before it is used

A node fetches the files once. Any of the layouts of Hugging Face with safetensors will do: the
parameters' names and shapes must be those of the run's model; other precisions become float32. A
path is one of this machine; others than the listed kinds of URL are not opened, whatever the run
file says.

The source need not be trusted, nor the way to it, so http without TLS is permitted: the run file
names the SHA-256 of what must come out. That is of the parameters, which may lie in many files, so
two things are parsed before it is compared: an index, and the headers of the files. Both are
bounded by the number of the model's parameters, and the files by their size.
"""

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from node.data.remote.source import MissingError, Source, source_of
from node.model.build import build_model, named_parameters_once
from node.replica.canonical import canonical_size
from node.replica.snapshot import Snapshots, file_sha256
from protocol.border.checkpoint_files import FILES_MAX, is_parameters, require_name
from protocol.codec.decoding import UNREADABLE
from protocol.errors import DataError, RemoteProtocolError, UnavailableError
from protocol.runfile import RunSpec

SCHEMES = frozenset({"http", "https", "hf", "s3", "gs"})
"""Kinds of URL that are opened on the word of a run file."""

ROOM_FACTOR = 4
"""Bytes that are fetched at most, as a multiple of the parameters': float64, and some headers."""

TEXT_BYTES, TENSOR_BYTES = 64 * 1024, 512
"""Bytes of an index, and of a file's header, that are parsed at most: this, and this for each
parameter of the run's model. An entry has some 150."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

ANOTHER_MODEL = "it is of another model than the run file's"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    """The file of each tensor."""


def genesis_of(spec: RunSpec, directory: Path) -> Path | None:
    """The snapshot from which the run begins, fetched into `directory` if it is not there; None for
    a run that begins from its seed.

    Raises `DataError` when it cannot be read or is not what the run file says, `StorageError` for
    this machine's disk.
    """
    if not spec.genesis:
        return None
    path = directory / f"0-{spec.genesis_sha256}"
    if path.is_file() and file_sha256(path).hex() == spec.genesis_sha256:
        return path
    model = build_model(spec.model.type, spec.model.config)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as place:
        try:
            _fill(model, _fetched(spec.genesis, Path(place), named_parameters_once(model)))
        except (DataError, RemoteProtocolError, UnavailableError) as error:
            raise DataError(f"genesis {spec.genesis}: {error}") from None
    snapshots = Snapshots(directory)
    found = snapshots.write(0, named_parameters_once(model))
    written = snapshots.path(found)
    if found.hex() != spec.genesis_sha256 or written is None:
        shutil.rmtree(directory, ignore_errors=True)
        raise DataError(
            f"genesis {spec.genesis}: expected parameters with SHA-256 {spec.genesis_sha256}, got "
            f"{found.hex()}: it is damaged, or another checkpoint than the run file means"
        )
    return written


def _fetched(source: str, place: Path, parameters: Mapping[str, Tensor]) -> list[Path]:
    """The files with parameters, copied to `place`."""
    scheme = source.partition("://")[0] if "://" in source else ""
    if "::" in source or (scheme and scheme not in SCHEMES):
        raise DataError(f"expected a directory or a URL of {', '.join(sorted(SCHEMES))}")
    remote, room = source_of(source), ROOM_FACTOR * canonical_size(parameters)
    text_bytes_max = TEXT_BYTES + TENSOR_BYTES * len(parameters)
    try:
        files = [_saved(remote, SINGLE, place, room + text_bytes_max)]
    except MissingError:
        files = []
        for name in _shards(remote.whole(INDEX, text_bytes_max)):
            files.append(_saved(remote, name, place, room + text_bytes_max))
            room -= files[-1].stat().st_size
    for path in files:
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > text_bytes_max:
            raise DataError(
                f"{path.name}: expected a header of at most {text_bytes_max:,} bytes, got "
                f"{header:,}: it is damaged, or of another model than the run file's"
            )
    return files


def _saved(remote: Source, name: str, place: Path, bytes_max: int) -> Path:
    with (place / name).open("wb") as file:
        remote.save(name, file, bytes_max)
    return place / name


def _shards(index: bytes) -> list[str]:
    """The files with parameters that an index names."""
    try:
        named = msgspec.json.decode(index, type=_Index).weight_map.values()
    except UNREADABLE as error:
        raise DataError(f"{INDEX}: expected the files of all tensors: {error}") from None
    names = sorted({require_name(name) for name in named if is_parameters(name)})
    if len(names) > FILES_MAX:
        raise DataError(f"{INDEX}: expected at most {FILES_MAX} files, got {len(names):,}")
    return names


def _fill(model: nn.Module, files: Iterable[Path]) -> None:
    """Put the tensors of the files into the model's parameters."""
    every = model.named_parameters(remove_duplicate=False)
    by_name = {name: parameter for name, parameter in every if parameter.requires_grad}
    missing = {id(parameter): name for name, parameter in named_parameters_once(model).items()}
    for path in files:
        try:
            with safe_open(path, framework="pt") as opened:
                for name in sorted(by_name.keys() & set(opened.keys())):
                    _take(name, by_name[name], opened.get_tensor(name))
                    missing.pop(id(by_name[name]), None)
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path.name} is damaged: {error}") from None
    for name in sorted(missing.values()):
        raise DataError(f"expected the parameter {name}, got none: {ANOTHER_MODEL}")


def _take(name: str, parameter: Tensor, found: Tensor) -> None:
    if found.shape != parameter.shape or not found.is_floating_point():
        raise DataError(
            f"expected the parameter {name} of {tuple(parameter.shape)}, got {found.dtype} of "
            f"{tuple(found.shape)}: {ANOTHER_MODEL}"
        )
    with torch.no_grad():
        parameter.copy_(found)

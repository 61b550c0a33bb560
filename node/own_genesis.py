"""The published checkpoint from which a run begins, where its run file names one.

    genesis = "URL or path"    --files--> parameters --canonical bytes--> genesis_sha256
    <directory>/0-<SHA-256>    the snapshot, verified each time before it is used

A node fetches the files once. Any of the layouts of Hugging Face with safetensors will do: the
parameters' names and shapes must be those of the run's model; other precisions become float32. The
source need not be trusted: the run file names the SHA-256 of what must come out. A path is one of
this machine; others than the listed kinds of URL are not opened, whatever the run file says.
"""

import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from node.model.build import build_model, named_parameters_once
from node.replica.canonical import canonical_size
from node.replica.snapshot import Snapshots, file_sha256
from protocol.border.checkpoint_files import is_parameters, require_name
from protocol.border.text import clean
from protocol.errors import DataError, RemoteProtocolError
from protocol.runfile import RunSpec

SCHEMES = frozenset({"http", "https", "hf", "s3", "gs"})
"""Kinds of URL that are opened on the word of a run file."""

ROOM_FACTOR = 4
"""Bytes that are fetched at most, as a multiple of the parameters': float64, and some headers."""

INDEX_BYTES_MAX = 64 * 1024**2
"""Longest index of shards."""

PIECE_BYTES = 4 * 1024**2

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


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
    room = ROOM_FACTOR * canonical_size(named_parameters_once(model)) + INDEX_BYTES_MAX
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as place:
        files = _fetched(spec.genesis, Path(place), room)
        _fill(model, files, spec.genesis)
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


def _fetched(source: str, place: Path, room: int) -> list[Path]:
    """The files with parameters, copied to `place`."""
    from fsspec.core import url_to_fs

    scheme = source.partition("://")[0] if "://" in source else ""
    if "::" in source or (scheme and scheme not in SCHEMES):
        raise DataError(
            f"genesis {source[:80]!r}: expected a directory or a URL of "
            f"{', '.join(sorted(SCHEMES))}"
        )
    try:
        system, root = url_to_fs(source)
        names = [SINGLE]
        if not system.exists(f"{root}/{SINGLE}"):
            with system.open(f"{root}/{INDEX}", "rb") as file:
                index = json.loads(file.read(INDEX_BYTES_MAX))
            names = sorted({require_name(str(name)) for name in index["weight_map"].values()})
        for name in names:
            with system.open(f"{root}/{name}", "rb") as remote, (place / name).open("wb") as local:
                while piece := remote.read(PIECE_BYTES):
                    room -= len(piece)
                    if room < 0:
                        raise RemoteProtocolError("it is larger than the run's model can be")
                    local.write(piece)
    except Exception as error:  # each backend raises errors of its own
        reason = f"{type(error).__name__}: {clean(str(error))}"
        raise DataError(f"genesis {source}: cannot fetch it: {reason}") from None
    return [place / name for name in names if is_parameters(name)]


def _fill(model: nn.Module, files: Iterable[Path], source: str) -> None:
    """Put the tensors of the files into the model's parameters."""
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise DataError(f"genesis {source}: {path.name} is damaged: {error}") from None
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    for name, parameter in named_parameters_once(model).items():
        found = next((tensors[each] for each in aliases[id(parameter)] if each in tensors), None)
        if found is None or found.shape != parameter.shape or not found.is_floating_point():
            got = "none" if found is None else f"{found.dtype} of {tuple(found.shape)}"
            raise DataError(
                f"genesis {source}: expected the parameter {name} of {tuple(parameter.shape)}, got "
                f"{got}: it is of another model than the run file's"
            )
        with torch.no_grad():
            parameter.copy_(found)

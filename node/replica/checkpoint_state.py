"""The parameters of a run's model in a file that a person names: a published checkpoint, or a
snapshot.

A run whose newest state is lost goes on from such parameters (`protocol.codec.chain.Restart`). The
coordinator's command names them by their digests; a node takes them over and serves them.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from node.model.build import build_model, named_parameters_once
from node.model.checkpoint import load_checkpoint
from node.replica.digest import canonical_sha256, state_digest
from node.replica.snapshot import file_sha256, read_snapshot
from protocol.errors import DataError, StorageError
from protocol.ids import Digest
from protocol.run_info import RunInfo

_SNAPSHOT_NAME = re.compile(r"([0-9]{1,18})-([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Parameters, verified as far as their source says what they are."""

    parameters: dict[str, Tensor]
    """float32, by name."""
    round: int
    """Round of the last commit in them, as their source says."""

    @property
    def sha256(self) -> Digest:
        """SHA-256 of the canonical bytes."""
        return canonical_sha256(self.parameters)

    @property
    def state_digest(self) -> int:
        """The quick digest, 64 bits."""
        return state_digest(self.parameters)


def read_state(source: Path, info: RunInfo) -> CheckpointState:
    """The parameters in a checkpoint's directory or in a snapshot's file.

    Raises `DataError` for a source that is neither, or of another run; `StorageError` for one that
    is damaged or of another model.
    """
    shapes = {
        name: parameter.shape
        for name, parameter in named_parameters_once(
            build_model(info.spec.model.type, info.spec.model.config, "meta")
        ).items()
    }
    if source.is_dir():
        return _of_checkpoint(source.absolute(), info, shapes)
    name = _SNAPSHOT_NAME.fullmatch(source.name)
    if not source.is_file() or name is None:
        raise DataError(
            f"{source}: expected a checkpoint's directory, or a snapshot's file ROUND-SHA256 as "
            "nodes keep them in snapshots/"
        )
    if file_sha256(source).hex() != name[2]:
        raise StorageError(f"{source} is damaged: its SHA-256 is not the one of its name")
    parameters = {name: torch.empty(shape) for name, shape in shapes.items()}
    read_snapshot(source, parameters)
    return CheckpointState(parameters, int(name[1]))


def _of_checkpoint(source: Path, info: RunInfo, shapes: dict[str, torch.Size]) -> CheckpointState:
    loaded = load_checkpoint(source)
    parameters = {
        name: parameter.detach() for name, parameter in named_parameters_once(loaded.model).items()
    }
    claims = loaded.metadata
    if claims.get("run_id") != info.run_id:
        raise DataError(
            f"{source}: expected a checkpoint of run {info.run_id}, got one of "
            f"{claims.get('run_id')!r}"
        )
    if {name: tensor.shape for name, tensor in parameters.items()} != shapes:
        raise StorageError(f"{source}: expected the parameters of the run's model, got others")
    found = f"{state_digest(parameters):016x}"
    if claims.get("state_digest") != found:
        raise StorageError(
            f"{source} is damaged: expected parameters with digest {claims.get('state_digest')}, "
            f"got {found}"
        )
    round = claims.get("round")
    return CheckpointState(parameters, round if isinstance(round, int) and round >= 0 else 0)

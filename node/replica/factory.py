"""The replica of a run, by its algorithm."""

from pathlib import Path

import torch

from node.replica.local_steps import LocalStepsReplica
from node.replica.replica import Replica
from protocol.ids import RunId
from protocol.runfile import RunSpec


def replica_for(
    spec: RunSpec,
    run_id: RunId,
    device: torch.device,
    micro_batch_max: int,
    genesis: Path | None = None,
) -> Replica:
    """A replica at genesis, which is the snapshot `genesis` if there is one. `SettingsError` for a
    run that this machine cannot take part in.
    """
    kind = LocalStepsReplica if spec.algorithm.moves else Replica
    return kind(spec, run_id, device, micro_batch_max, genesis)

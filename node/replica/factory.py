"""The replica of a run, by its algorithm."""

from pathlib import Path

import torch

from node.replica.gossip_adam import GossipAdamReplica
from node.replica.local_steps import LocalStepsReplica
from node.replica.replica import Replica
from protocol.errors import SettingsError
from protocol.ids import PeerId, RunId
from protocol.runfile import RunSpec


def replica_for(
    spec: RunSpec,
    run_id: RunId,
    device: torch.device,
    micro_batch_max: int,
    own: PeerId | None = None,
    *,
    genesis: Path | None = None,
) -> Replica:
    """A replica at genesis, which is the snapshot `genesis` if there is one. `own`: the node whose
    it is, None for an auditor's. `SettingsError` for a run that this machine cannot take part in.
    """
    if spec.algorithm.mixes:
        if own is None:
            raise SettingsError(
                "algorithm.name: the nodes of a gossip-adam run differ by design, so nobody else "
                "can replay its log: expected a run of another algorithm to audit"
            )
        replica = GossipAdamReplica(spec, run_id, device, micro_batch_max, genesis)
        replica.own = own
        return replica
    if spec.algorithm.moves:
        seed = seed_of(own) if own else 0
        return LocalStepsReplica(spec, run_id, device, micro_batch_max, genesis, seed=seed)
    return Replica(spec, run_id, device, micro_batch_max, genesis)


def seed_of(own: PeerId) -> int:
    """The seed of the random bits by which a node rounds."""
    return int(own, 16) % 2**62

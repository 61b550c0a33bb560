"""The replica of a run, by its algorithm."""

from pathlib import Path

import torch

from node.replica.demo import DemoReplica
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
    parts = spec, run_id, device, micro_batch_max, genesis
    match spec.algorithm.name:
        case "local_steps":
            return LocalStepsReplica(*parts, seed=seed_of(own) if own else 0)
        case "demo":
            return DemoReplica(*parts)
        case "gossip-adam" if own is None:
            raise SettingsError(
                "algorithm.name: the nodes of a gossip-adam run differ by design, so nobody else "
                "can replay its log: expected a run of another algorithm to audit"
            )
        case "gossip-adam":
            replica = GossipAdamReplica(*parts)
            replica.own = own
            return replica


def seed_of(own: PeerId) -> int:
    """The seed of the random bits by which a node rounds."""
    return int(own, 16) % 2**62

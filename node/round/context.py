"""What a trainer works with."""

from collections.abc import Callable
from dataclasses import dataclass

from node.control.client import CoordinatorClient, RunInfo
from node.control.decisions import DecisionLog
from node.data.corpus import Corpus
from node.gossip.swarm import Swarm
from node.replica.position import Position
from node.replica.replica import Replica
from node.round.catch_up import CatchUp
from node.status import NodeStatus
from protocol.ids import PeerId


@dataclass(frozen=True, slots=True)
class RoundContext:
    """The other parts of a node, and where its state stands when it begins."""

    info: RunInfo
    own: PeerId
    replica: Replica
    corpus: Corpus
    client: CoordinatorClient
    ledger: DecisionLog
    swarm: Swarm
    progress: NodeStatus
    save: Callable[[Position], None]
    """Keeps the state on disk; called every so many rounds from a worker thread."""
    save_every: int
    catch_up: CatchUp | None = None
    """None: no snapshots are written or taken."""
    restored: Position | None = None
    """Where the loaded state stands."""

"""The other parts of a node, as its rounds need them.

The protocols hold the methods of the replica, the coordinator client and the swarm that a round
calls. The product has one class for each (`node.replica.replica`, `node.control.client`,
`node.gossip.swarm`), the simulation a cheap replica.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from node.control.decisions import DecisionLog
from node.control.heads import HeadKeeper
from node.exact.engine import Extraction
from node.model.passes import Passes
from node.model.queue import PassQueue
from node.replica.position import Position
from node.round.catching_up.catch_up import CatchUp
from node.round.state_requests.requests import StateRequests
from node.round.witness import WitnessReports
from node.status import NodeStatus
from node.sums.summer import Summer
from node.system.duty_cycle import DutyKeeper
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.codec.payload_header import Header
from protocol.codec.payload_shape import PayloadShape
from protocol.ids import Digest, PeerId
from protocol.run_info import RunInfo
from protocol.sums.plan import SumPlan


class Samples(Protocol):
    """The training data."""

    def batch(self, first: int, count: int, sequence_length: int, seed: int) -> Any:
        """`count` samples from position `first` of the data order on. Blocks."""

    def expect(
        self, spans: Sequence[tuple[int, int]], length: int, seed: int, *, limit_s: float
    ) -> None:
        """Tell which spans of the data order, first position and count, a round will read within
        `limit_s` seconds.
        """


class TrainedModel(Protocol):
    """The model that computes gradients."""

    micro_batch_max: int

    @property
    def queue(self) -> PassQueue:
        """How its device takes passes."""


class TrainableReplica(Protocol):
    """A replica as rounds see it; see `node.replica.replica.Replica`. The methods block."""

    digest: int

    @property
    def trainee(self) -> TrainedModel:
        """The model that computes gradients."""

    @property
    def applies_beside(self) -> bool:
        """Whether a commit may be applied while passes are made, and `stand_at` made later."""

    @property
    def shape(self) -> PayloadShape:
        """The shape of every payload."""

    @property
    def committed(self) -> Mapping[str, Tensor]:
        """The committed parameters."""

    def reset(self) -> None:
        """Go back to genesis, with nothing that was not said."""

    def begin(
        self, batches: Iterable[Any], pending: wire.Announced | None, rate_bits: tuple[int, int]
    ) -> Passes:
        """Put the model where a round's first gradients are taken, and begin the round's passes."""

    def stand_at(self) -> None:
        """Put the model where the next gradients are taken."""

    def accumulate(self) -> None:
        """Add the work just done to what was not said yet."""

    def extract(self, round: int, *, mean: bool = False) -> Extraction:
        """Take the payload of a round out of that."""

    def encoded(self, header: Header, extraction: Extraction) -> tuple[bytes, int]:
        """The payload that holds an extraction, and the number of values in it."""

    def own_report(self) -> dict[str, Any]:
        """Fields of `Applied` that tell of parameters of this node's own."""

    def apply(self, commit: Commit, payloads: Sequence[bytes]) -> int:
        """Make a commit's step; returns the new state digest."""

    def adopt(self, snapshot: Path, base: Path | None = None) -> int:
        """Take over a snapshot's parameters; returns the new state digest."""


class ControlLine(Protocol):
    """The coordinator client as rounds see it; see `node.control.client.CoordinatorClient`."""

    @property
    def offline(self) -> str:
        """Why there is no session, in words; empty while there is one."""

    def now_ms(self) -> int:
        """The coordinator's clock."""

    def send(self, message: wire.NodeMessage) -> None:
        """Send in the open session, if there is one."""


class PartExchange(Protocol):
    """The swarm's rounds with a plan; see `node.gossip.parts.Parts`."""

    async def publish(self, round: int, parts: Sequence[bytes], samples: int = 0) -> Digest:
        """Keep and offer this node's payload, cut in parts; returns its root."""

    def add_summer(self, round: int, number: int, peer: PeerId) -> None:
        """One more node gets the parts of a range."""

    def repeat(self) -> None:
        """Report again the parts that this node holds as a summer."""


class PayloadExchange(Protocol):
    """The swarm as rounds see it; see `node.gossip.swarm.Swarm`."""

    @property
    def parts(self) -> PartExchange:
        """Its rounds with a plan."""

    def open(
        self,
        round: int,
        near: frozenset[PeerId] | None = None,
        plan: SumPlan | None = None,
    ) -> None:
        """A round was opened; its payloads go to the peers that are `near`, if that is said, or in
        parts to those that add them.
        """

    def set_members(
        self, members: Mapping[PeerId, tuple[str, ...]], relays: Mapping[PeerId, tuple[str, ...]]
    ) -> None:
        """The members and the relays of the run with their addresses."""

    async def publish(self, round: int, blob: bytes, samples: int = 0) -> Digest:
        """Keep and offer this node's payload."""

    async def collect(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        """The payloads of a commit."""

    def settle(self, round: int, kept: Iterable[Digest] | None) -> None:
        """A round is decided."""

    def holding(self, round: int) -> list[Digest]:
        """Held payloads of others in an undecided round."""

    def unsourced(self, round: int) -> list[Digest]:
        """Payloads that `collect` waits for and that no pull is under way for."""

    def holds(self, commit: Commit) -> bool:
        """Whether `collect` would not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """The other parts of a node."""

    info: RunInfo
    own: PeerId
    replica: TrainableReplica
    corpus: Samples
    client: ControlLine
    decisions: DecisionLog
    swarm: PayloadExchange
    status: NodeStatus
    witness: WitnessReports
    summer: Summer
    catch_up: CatchUp
    save: Callable[[Position], None]
    """Saves the state on disk. Blocks: for a thread."""
    save_every: int
    """Rounds between two saves: those that a killed node replays from the log."""
    state_requests: StateRequests
    duty: DutyKeeper = field(default_factory=DutyKeeper)
    heads: HeadKeeper
    """The heads of the run that this node knows."""

"""Events that the coordinator's machine takes and effects that it returns.

Every event except `Heartbeat` is durable: the shell journals it before any of its effects leaves
the process. `Heartbeat` only moves a lease, which a restart extends anyway. Time enters as `now_ms`
and as `Lapsed`, `InstantReached`, `VoidDue` and `Concluded`, which the machine itself asks for
(`Rounds.due`), so that the journal replays without the heartbeats.

The journal stores the class names of events and their fields: a change of either needs a new
`coordinator.bound_run.FORMAT`.
"""

from dataclasses import dataclass
from typing import Literal

from coordinator.machine.checkpoints.events import (
    AskCheckpoint,
    CheckpointFailed,
    CheckpointMade,
    CheckpointSaid,
    CheckpointStored,
    RoomGiven,
)
from coordinator.machine.evaluation.events import AskEvaluation, Evaluated, LossMeasured
from coordinator.machine.operator.acts import Ordered, Salted, TokenShown, Vouched
from protocol.clock import Instants
from protocol.codec.chain import ChainEntry
from protocol.codec.commits import Commit
from protocol.ids import Digest, PeerId
from protocol.mixing.link_report import MeasuredLink
from protocol.shuffle import Share

Instant = Literal["least", "bell", "publish_by", "commit_by"]
"""`least` is the first instant at which a round may close early."""

# ---- events


@dataclass(frozen=True, slots=True)
class Joined:
    """A node proved its key and opened a session."""

    peer: PeerId
    addresses: tuple[str, ...]
    name: str
    hardware: str
    software: str
    instance: int = 0
    """Names the process; 0 when it did not say."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A node has caught up: its state includes the commits up to `round` (-1: genesis)."""

    peer: PeerId
    round: int
    state_digest: int
    resyncs: int = 0
    """Number of the last `AskResync` that the node has obeyed; 0 for none."""
    voids: int = 0
    """Number of payloads that the state has passed over because they are void."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A node's session is alive. The only event that is not journalled."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class LinksMeasured:
    """A node says what it measures of its links, all of them anew."""

    peer: PeerId
    links: tuple[MeasuredLink, ...]


@dataclass(frozen=True, slots=True)
class Announced:
    """A node has computed its share of a round; `digest` is empty when it has no payload to
    offer, `loss` in nats per token.
    """

    peer: PeerId
    round: int
    digest: bytes
    payload_bytes: int
    samples: int
    compute_ms: int
    loss: float


@dataclass(frozen=True, slots=True)
class Holding:
    """A node holds these payloads of a round and has verified them."""

    peer: PeerId
    round: int
    digests: tuple[Digest, ...]
    authors: tuple[PeerId, ...] = ()
    """Authors by the payloads' headers, in the order of the digests; an empty text, or none at
    all, where the node does not know."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A node applied the commit of a round and reports the digest of its parameters."""

    peer: PeerId
    round: int
    state_digest: int
    snapshot_sha256: bytes
    voids: int = 0
    """Number of payloads that the state has passed over because they are void."""
    projection: tuple[float, ...] = ()
    """Report of the node's own parameters, where nodes differ by design."""
    update: float = 0.0
    """There, the Euclidean size of the node's newest step; 0 before its first."""


@dataclass(frozen=True, slots=True)
class Audited:
    """An auditor has replayed the log up to a round and reports the digest of its parameters."""

    peer: PeerId
    round: int
    """-1 for genesis."""
    state_digest: int
    snapshot_sha256: bytes = b""
    """SHA-256 of the snapshot after the round; empty where the run makes none."""
    voids: int = 0
    """Number of payloads that the replay has passed over because they are void."""


@dataclass(frozen=True, slots=True)
class NotHeld:
    """A node cannot apply the commit of a round: no peer gives it these payloads."""

    peer: PeerId
    round: int
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class VoidDue:
    """The time is over in which a payload that members lack could still appear."""

    round: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """The operator wants the run to go on from a checkpoint, because nobody holds the state of the
    log's head; `forced`: even if a member may hold it.
    """

    sha256: Digest
    state_digest: int
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A node's session ended without a goodbye: its lease runs on, but no round waits for it."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Left:
    """A node said goodbye."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A member's lease ran out."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class InstantReached:
    """An instant of a round was reached."""

    round: int
    instant: Instant


@dataclass(frozen=True, slots=True)
class Concluded:
    """A finished run waits no longer for members that lack its last commit."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The coordinator continues after it was stopped; leases and instants are extended."""


MemberEvent = Joined | Ready | Heartbeat | LinksMeasured | Disconnected | Left | Lapsed
Event = (
    MemberEvent
    | Restarted
    | Announced
    | Holding
    | Applied
    | Audited
    | NotHeld
    | InstantReached
    | VoidDue
    | RestartAsked
    | Concluded
    | Vouched
    | Salted
    | TokenShown
    | Ordered
    | RoomGiven
    | CheckpointSaid
    | CheckpointStored
    | CheckpointFailed
    | Evaluated
)

# ---- effects


@dataclass(frozen=True, slots=True)
class Admit:
    """Welcome the node: it is a member or a relay from now on."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse the node and end its session."""

    peer: PeerId
    reason: str
    wrong_results: bool = False
    """The node's machine is at fault: the node must not try again by itself."""
    retry: bool = False
    """The run is full: the node waits for a place."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Tell a former member that it was removed."""

    peer: PeerId
    reason: str
    wrong_results: bool = False
    """The node's machine is at fault: the node must not come back by itself."""


@dataclass(frozen=True, slots=True)
class TellMembers:
    """Tell every member which members came or changed their addresses, and which went."""

    came: tuple[PeerId, ...] = ()
    gone: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """The work of one member in a round; a muted member trains without being counted."""

    peer: PeerId
    shares: tuple[Share, ...]
    muted: bool
    reason: str
    neighbours: tuple[PeerId, ...] = ()
    """Members with which this one mixes parameters, sorted."""


@dataclass(frozen=True, slots=True)
class OpenRound:
    """Start a round on the assigned members, or repeat it to some of them."""

    round: int
    step: int
    instants: Instants
    learning_rate_bits: int
    decay_bits: int
    assignments: tuple[Assignment, ...]
    assigned: int = 0
    """Workers of the round, among which receipts are thinned out; 0: all are wanted."""
    mean: bool = False
    """Nodes mix parameters, and take the mean of all."""
    among_neighbours: bool = False
    """Nodes mix parameters, and fetch their neighbours' alone."""
    only_mixes: bool = False
    """Nobody trains."""


@dataclass(frozen=True, slots=True)
class CommitRound:
    """Sign, record and send a commit; the members `holders[i]` hold the payload of entry i."""

    commit: Commit
    holders: tuple[tuple[PeerId, ...], ...]
    loss: float
    trained: tuple[tuple[Share, ...], ...] = ()
    """Positions of the data order that the author of entry i says it trained."""


@dataclass(frozen=True, slots=True)
class Chained:
    """Sign, record and send an entry of the chain: a committed payload is void, the run goes on
    from a checkpoint, or it has another length or rate.
    """

    entry: ChainEntry


@dataclass(frozen=True, slots=True)
class SkipRound:
    """Send the decision that a round counts for nothing."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordDigest:
    """Record the digest that the majority reported for a committed round; `reports` = 0 withdraws
    an earlier record.
    """

    round: int
    state_digest: int
    reports: int
    dissent: int
    snapshot_sha256: bytes


@dataclass(frozen=True, slots=True)
class AskResync:
    """Tell a node to discard its state, catch up, and report its digest after `round` on the
    way.
    """

    peer: PeerId
    round: int
    reason: str
    number: int


@dataclass(frozen=True, slots=True)
class FinishRun:
    """Tell every node that the run has all its steps and that no other node needs it any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell every node and relay something that is for its user."""

    text: str


Effect = (
    Admit
    | Refuse
    | Evict
    | TellMembers
    | OpenRound
    | CommitRound
    | Chained
    | SkipRound
    | RecordDigest
    | AskResync
    | FinishRun
    | Notify
    | AskCheckpoint
    | CheckpointMade
    | AskEvaluation
    | LossMeasured
)

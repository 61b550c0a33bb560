"""Events that the coordinator's machine takes.

Every event except `Heartbeat` is durable: the shell journals it before any of its effects leaves
the process. `Heartbeat` only moves a lease, which a restart extends anyway. Time enters as `now_ms`
and as `Lapsed`, `OfferEnded`, `InstantReached`, `SummersLate`, `VoidDue` and `Concluded`, which the
machine itself asks for (`RunMachine.due`), so that the journal replays without the heartbeats.

The journal stores the class names of events and their fields: a change of either needs a new
`coordinator.bound_run.FORMAT`.
"""

from dataclasses import dataclass
from typing import Literal

from coordinator.machine.events.acts import Ordered, Salted, TokenShown, Vouched
from protocol.ids import Digest, PeerId
from protocol.mixing.link_report import MeasuredLink

Instant = Literal["least", "bell", "publish_by", "commit_by"]
"""`least` is the first instant at which a round may close early."""


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
class HeldParts:
    """The parts of one payload that a summer holds."""

    payload: int
    """Its name (`protocol.sums.receipts`)."""
    ranges: int
    """Bit i: the part of range i."""


@dataclass(frozen=True, slots=True)
class PartsHeld:
    """A summer holds parts of these payloads of a round, and has verified them."""

    peer: PeerId
    round: int
    held: tuple[HeldParts, ...]


@dataclass(frozen=True, slots=True)
class Summed:
    """A summer has added a range, and signed the digest of its result."""

    peer: PeerId
    round: int
    number: int
    """Place of the range."""
    digest: Digest
    result_bytes: int
    learning_rate_bits: int
    """In the question that is signed: of all its parts this one alone may change."""
    public_key: bytes
    signature: bytes
    """See `protocol.sums.asked`; with the key it stays here as evidence."""


@dataclass(frozen=True, slots=True)
class SumsOffered:
    """A relay with a new session offers to add."""

    peer: PeerId
    name: str
    instance: int
    """Names the process; 0 when it did not say."""


@dataclass(frozen=True, slots=True)
class OfferEnded:
    """The session of a relay that offered to add has ended, or its lease ran out."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class SummersLate:
    """The time of some summers of a round is over."""

    round: int


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


@dataclass(frozen=True, slots=True)
class RoomGiven:
    """The operator gives this disk for checkpoints, and keeps this number of the newest."""

    room_bytes: int
    kept: int


@dataclass(frozen=True, slots=True)
class CheckpointSaid:
    """A member has the state after a round, which it was asked to publish."""

    peer: PeerId
    round: int
    state_digest: int
    sha256: Digest
    file_bytes: int = 0
    """Bytes of the files that it wrote; 0: it wrote none."""
    url: str = ""
    """Where it has published them itself; empty: it only says what its state is."""
    failure: str = ""
    """Why it does not do its part; empty when it does."""


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """The coordinator has stored a member's files, and computed these digests from them."""

    peer: PeerId
    round: int
    state_digest: int
    sha256: Digest
    file_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A member that was drawn to publish a state does not do its part."""

    peer: PeerId
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A member has measured the loss of the state after a round on held-out samples."""

    peer: PeerId
    round: int
    loss: float
    """In nats per token; 0 with a `failure`."""
    samples: int
    """Windows of held-out text that it was measured on."""
    data_sha256: bytes = b""
    """SHA-256 of these windows: equal for nodes with the same data."""
    failure: str = ""
    """Why it has measured nothing; empty when it has."""


MemberEvent = Joined | Ready | Heartbeat | LinksMeasured | Disconnected | Left | Lapsed
SumsEvent = PartsHeld | Summed | SummersLate | SumsOffered | OfferEnded
CheckpointEvent = RoomGiven | CheckpointSaid | CheckpointStored | CheckpointFailed
OperatorEvent = Vouched | Salted | TokenShown | Ordered
Event = (
    MemberEvent
    | Restarted
    | Announced
    | Holding
    | SumsEvent
    | Applied
    | Audited
    | NotHeld
    | InstantReached
    | VoidDue
    | RestartAsked
    | Concluded
    | OperatorEvent
    | CheckpointEvent
    | Evaluated
)

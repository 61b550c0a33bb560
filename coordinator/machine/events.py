"""What goes into the coordinator's machines and what comes out.

Events that change durable state are journalled before any effect of theirs leaves the process;
`Renewed` is the one volatile event: it moves a lease, which a restart extends anyway. Time enters
only as `now_ms` and as `Lapsed` and `Reached`, which the machine itself asks for (`Rounds.due`), so
that the journal replays without the heartbeats.
"""

from dataclasses import dataclass
from typing import Literal

from protocol.clock import Instants
from protocol.commits import Commit
from protocol.ids import Digest, PeerId
from protocol.shuffle import Share

Instant = Literal["bell", "publish_by", "commit_by"]

# ---- events


@dataclass(frozen=True, slots=True)
class Joined:
    """A node proved its key and opened a session."""

    peer: PeerId
    addresses: tuple[str, ...]
    name: str
    hardware: str
    software: str


@dataclass(frozen=True, slots=True)
class Readied:
    """A node has caught up: its state holds the commits up to `round` (-1: genesis)."""

    peer: PeerId
    round: int
    state_digest: int
    has_momentum: bool
    resyncs: int = 0
    """Number of the last request to start over that this state was made after; 0 for none."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """A node's session is alive. Volatile."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Announced:
    """A node's work for a round is done; `digest` is empty when it has nothing to commit."""

    peer: PeerId
    round: int
    digest: bytes
    payload_bytes: int
    samples: int
    compute_ms: int
    loss: float


@dataclass(frozen=True, slots=True)
class Held:
    """A node holds these payloads of a round, verified."""

    peer: PeerId
    round: int
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """A node applied the commit of a round and reports the digest of its parameters."""

    peer: PeerId
    round: int
    state_digest: int
    snapshot_sha256: bytes


@dataclass(frozen=True, slots=True)
class Parted:
    """A node's session ended without a goodbye: its lease runs on, but nobody waits for it."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Left:
    """A node said goodbye."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A member was silent for longer than its lease."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Reached:
    """An instant of a round has come."""

    round: int
    instant: Instant


@dataclass(frozen=True, slots=True)
class Concluded:
    """The time that a finished run gives those behind is over."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The coordinator runs again on the journal of an earlier process."""


MemberEvent = Joined | Readied | Renewed | Parted | Left | Lapsed | Restarted
Event = MemberEvent | Announced | Held | Applied | Reached | Concluded

# ---- effects


@dataclass(frozen=True, slots=True)
class Admit:
    """Welcome the node: it is a member from now on."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Refuse:
    """Turn the node away."""

    peer: PeerId
    reason: str
    wrong_results: bool = False
    """Its machine is to blame: it must not try again by itself."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Tell a former member that it was removed."""

    peer: PeerId
    reason: str
    wrong_results: bool = False
    """Its machine is to blame: it must not come back by itself."""


@dataclass(frozen=True, slots=True)
class TellMembers:
    """Tell everyone who came, or has other addresses now, and who went."""

    came: tuple[PeerId, ...] = ()
    gone: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one member does in a round."""

    peer: PeerId
    shares: tuple[Share, ...]
    muted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class OpenRound:
    """Start a round on the members assigned."""

    round: int
    step: int
    instants: Instants
    learning_rate_bits: int
    decay_bits: int
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class CommitRound:
    """Sign, record and send the final word; `holders[i]` are known to hold entry i's payload."""

    commit: Commit
    holders: tuple[tuple[PeerId, ...], ...]
    loss: float


@dataclass(frozen=True, slots=True)
class SkipRound:
    """Send the final word that nothing counts."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordDigest:
    """Record what the majority reported for a committed round; no reports withdraw an earlier
    record.
    """

    round: int
    state_digest: int
    reports: int
    dissent: int
    snapshot_sha256: bytes


@dataclass(frozen=True, slots=True)
class AskResync:
    """Tell a node to discard its state and catch up, and to say what it comes to after `round` on
    the way.
    """

    peer: PeerId
    round: int
    reason: str
    number: int


@dataclass(frozen=True, slots=True)
class FinishRun:
    """Tell everyone that the run has all its steps and that nobody needs them any more."""

    reason: str


Effect = (
    Admit
    | Refuse
    | Evict
    | TellMembers
    | OpenRound
    | CommitRound
    | SkipRound
    | RecordDigest
    | AskResync
    | FinishRun
)

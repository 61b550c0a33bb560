"""Effects that the coordinator's machine returns, for its shell to carry out."""

from dataclasses import dataclass

from protocol.clock import Instants
from protocol.codec.chain import ChainEntry
from protocol.codec.commits import Commit
from protocol.ids import Digest, PeerId
from protocol.shuffle import Share
from protocol.sums.asked import Question
from protocol.sums.signed import SumSigned


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
    plan: tuple[tuple[PeerId, ...], ...] = ()
    """The summers of each range; none: every payload goes to everybody."""


@dataclass(frozen=True, slots=True)
class SummerAdded:
    """Tell everybody that one more node is to hold the parts of a range."""

    round: int
    number: int
    """Place of the range."""
    peer: PeerId


@dataclass(frozen=True, slots=True)
class SumsAsked:
    """Ask a summer to add these ranges of a round, whose set of authors is fixed."""

    peer: PeerId
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Dispute:
    """Unlike sums of one range were signed: whoever adds again finds the wrong ones."""

    round: int
    number: int
    """Place of the range."""
    signed: tuple[tuple[PeerId, Digest], ...]


@dataclass(frozen=True, slots=True)
class CommitRound:
    """Sign, record and send a commit; the members `holders[i]` hold what is needed in place i."""

    commit: Commit
    holders: tuple[tuple[PeerId, ...], ...]
    loss: float
    trained: tuple[tuple[Share, ...], ...] = ()
    """Positions of the data order that the author of entry i says it trained."""
    signed: tuple[SumSigned, ...] = ()
    """What its summers have signed."""


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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in the coordinator's directory."""

    round: int
    step: int
    state_digest: int
    sha256: Digest
    """SHA-256 of the canonical bytes of the parameters, as snapshots are named."""
    file_bytes: int
    writer: PeerId
    writer_name: str
    confirmed_by: PeerId | None
    """The second member whose parameters have the same SHA-256; None: no second was there."""

    @property
    def name(self) -> str:
        """The name of its directory."""
        return directory_name(self.round, self.sha256)


def directory_name(round: int, sha256: Digest) -> str:
    """The name of a checkpoint's directory."""
    return f"{round}-{sha256.hex()[:16]}"


@dataclass(frozen=True, slots=True)
class Point:
    """A measured validation loss: one member's word, on which nothing depends."""

    round: int
    step: int
    loss: float
    """In nats per token."""
    samples: int
    data_sha256: bytes
    """SHA-256 of the held-out windows; empty where the member did not say."""
    peer: PeerId
    name: str
    """As the member's volunteer chose it."""


@dataclass(frozen=True, slots=True)
class AskCheckpoint:
    """Ask members to publish the state after a round: one writes, a second says its SHA-256, and
    others may publish to addresses of their own.
    """

    round: int
    step: int
    writer: PeerId | None
    """None: the coordinator keeps no checkpoints."""
    second: PeerId | None
    to: PeerId | None = None
    """The member that is asked again; None: all are asked."""


@dataclass(frozen=True, slots=True)
class CheckpointMade:
    """A checkpoint is made; the directories named `kept` stay."""

    checkpoint: Checkpoint
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskEvaluation:
    """Ask a member to measure the loss of the state after a round."""

    round: int
    peer: PeerId
    samples: int
    """Windows of held-out text."""


@dataclass(frozen=True, slots=True)
class LossMeasured:
    """The validation loss of a state is known."""

    point: Point


Effect = (
    Admit
    | Refuse
    | Evict
    | TellMembers
    | OpenRound
    | SummerAdded
    | SumsAsked
    | Dispute
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

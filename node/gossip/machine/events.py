"""The words of `node.gossip.machine.exchange`: its limits, the events it takes and the effects it
asks for."""

from dataclasses import dataclass
from enum import Enum

from protocol.ids import Digest, PeerId


@dataclass(frozen=True, slots=True)
class SwarmLimits:
    """What the run file and this node's own settings bound."""

    payload_bytes_max: int
    """Size of a payload at most, in bytes."""

    neighbours: int
    """Peers to whom a node offers what it holds."""

    pulls_max: int = 16
    """Pulls at once, with those that wait in their sources' queues: a downlink is filled by several
    thin uplinks."""

    pulls_per_peer: int = 2
    """Pulls at once from one peer: the second hides the round trip of the first."""

    stall_ms: int = 5_000
    """Time that a pull may take beyond what its size explains, in milliseconds."""


# ---- events


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The members of the run, this node among them if it is one, and the relays: peers that hold
    and forward payloads as members do, and are the authors of none."""

    members: frozenset[PeerId]
    relays: frozenset[PeerId] = frozenset()


@dataclass(frozen=True, slots=True)
class Linked:
    """To exactly these peers a link is open now. Before the first of these events everybody counts
    as linked."""

    peers: frozenset[PeerId]


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """The coordinator opened a round."""

    round: int


@dataclass(frozen=True, slots=True)
class Published:
    """This node's own payload of the round is in its log."""

    round: int
    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class Found:
    """The log already holds this payload, verified: from before a restart or an interrupted
    catch-up."""

    round: int
    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class Offered:
    """A peer says that it holds a payload."""

    sender: PeerId
    round: int
    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class Idle:
    """A peer says that its uplink has nothing to send."""

    sender: PeerId


@dataclass(frozen=True, slots=True)
class OfferFailed:
    """An `Offer` did not reach the peer, or the peer refused it."""

    peer: PeerId
    round: int


@dataclass(frozen=True, slots=True)
class Want:
    """A payload that a commit names, and who is known to hold it."""

    digest: Digest
    size: int
    """As its author announced it; the true size when `held`."""
    holders: tuple[PeerId, ...]
    held: bool = False
    """The log has it already, verified."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A commit names exactly these payloads: they must be fetched, and no others of the round."""

    round: int
    wants: tuple[Want, ...]


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pull ended well: `size` bytes with the right digest are in the log."""

    digest: Digest
    source: PeerId
    size: int
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """Bytes of a pull arrived. Before the first of them it waits in its source's queue."""

    digest: Digest
    source: PeerId
    size: int


class Failure(Enum):
    """Why a pull ended badly."""

    UNAVAILABLE = "unavailable"
    """The source cannot be reached, is busy or went silent."""

    ABSENT = "absent"
    """The source answers that it does not hold the payload."""

    WITHDRAWN = "withdrawn"
    """The source served no more because it was asked to."""

    FAULTY = "faulty"
    """The source sent what the protocol does not allow, or bytes with another digest."""


@dataclass(frozen=True, slots=True)
class PullFailed:
    """A pull ended badly."""

    digest: Digest
    source: PeerId
    failure: Failure
    reason: str


@dataclass(frozen=True, slots=True)
class Served:
    """The peer took all bytes of this payload from this node: it is a holder, unless it finds them
    wrong."""

    peer: PeerId
    digest: Digest


@dataclass(frozen=True, slots=True)
class Lost:
    """The log lost a payload that was held: its file is damaged or gone."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class Settled:
    """The round is decided and applied, or nobody here waits for it any more: forget it."""

    round: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""

    idle: bool = False
    """Nobody wants anything of this node."""


Event = (
    MembersChanged
    | Linked
    | RoundStarted
    | Published
    | Found
    | Offered
    | Idle
    | OfferFailed
    | Wanted
    | Progressed
    | Pulled
    | PullFailed
    | Served
    | Lost
    | Settled
    | Tick
)


# ---- effects


@dataclass(frozen=True, slots=True)
class Offer:
    """Tell the peer that this node holds these payloads of the round: at most OFFERS_MAX (digest,
    size)."""

    peer: PeerId
    round: int
    payloads: tuple[tuple[Digest, int], ...]
    idle: bool = False
    """And that its uplink has nothing to send."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Fetch a payload, going on where an earlier pull of it stopped.

    `exact`: the source itself stated the size, so that another total is its fault. Otherwise the
    size is what the author announced, and only the digest says what the payload is. `replayed`: its
    round was decided without this node, which catches up with it."""

    source: PeerId
    digest: Digest
    size: int
    round: int
    exact: bool
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """Stop the pull of this digest from this source, and keep what has arrived."""

    source: PeerId
    digest: Digest


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Ask the source to serve no more of this than it has begun to send. If it waits in the
    source's queue or between two parts, it ends as `WITHDRAWN` and no byte was sent in vain."""

    source: PeerId
    digest: Digest
    unless_soon: bool = False
    """A source whose queue is short goes on to the end."""


@dataclass(frozen=True, slots=True)
class ReportHolding:
    """Tell the coordinator that this node holds these payloads of others."""

    round: int
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The offer was not taken, by nobody's fault: the peer should offer again later."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Blame:
    """The peer did what no honest peer does; its offer was not taken or its bytes were thrown
    away."""

    peer: PeerId
    reason: str


Effect = Offer | Pull | Drop | Withdraw | ReportHolding | Refuse | Blame


# ---- what can be asked


@dataclass(frozen=True, slots=True)
class Lack:
    """A payload that a commit names and this node does not hold yet, for a person's eye."""

    digest: Digest
    source: PeerId | None
    """From whom it is being pulled."""
    holders: int
    """Members that are believed to hold it."""

"""The words of `node.gossip.machine.exchange`: its limits, the events that it takes and the effects
that it asks for. Import the module and write `events.Offered`: others define an `Offered` too.
"""

from dataclasses import dataclass
from enum import Enum

from protocol.ids import Digest, PeerId
from protocol.sums.plan import SumPlan


@dataclass(frozen=True, slots=True)
class SwarmLimits:
    """Bounds that the run file and this node's own settings set."""

    payload_bytes_max: int
    """Largest payload, in bytes."""

    neighbours: int
    """Peers that a node offers its held payloads to."""

    pulls_max: int = 16
    """Pulls at once, including those that wait in their sources' queues: it takes several thin
    uplinks to fill a downlink."""

    pulls_per_peer: int = 2
    """Pulls at once from one peer: the second hides the round trip of the first."""

    stall_ms: int = 5_000
    """Time that a pull may take beyond what its size explains, in milliseconds."""


# ---- events


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The members of the run, this node among them if it is one, and the relays: peers that hold
    and forward payloads as members do, and are the authors of none.
    """

    members: frozenset[PeerId]
    relays: frozenset[PeerId] = frozenset()


@dataclass(frozen=True, slots=True)
class Linked:
    """Links are open to exactly these peers now. Before the first of these events all peers count
    as linked.
    """

    peers: frozenset[PeerId]


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """The coordinator opened a round."""

    round: int
    near: frozenset[PeerId] | None = None
    """The peers whose payloads this node fetches, and which fetch its own; None: all peers."""
    plan: SumPlan | None = None
    """The nodes that get the parts of each range; None: payloads are not cut."""


@dataclass(frozen=True, slots=True)
class SummerAdded:
    """One more node gets the parts of a range."""

    round: int
    number: int
    peer: PeerId


@dataclass(frozen=True, slots=True)
class Published:
    """This node's own payload of the round, or a part of it, is in its payload log; or a result of
    its own, which is no part and is offered to nobody until a commit names it.
    """

    round: int
    digest: Digest
    size: int
    ranges: int = 0
    """Bits of the ranges whose part it is; none for what is no part."""


@dataclass(frozen=True, slots=True)
class Found:
    """The payload log already holds this payload, verified: from before a restart or an interrupted
    catch-up.
    """

    round: int
    digest: Digest
    size: int
    ranges: int = 0


@dataclass(frozen=True, slots=True)
class Offered:
    """A peer says that it holds a payload, or the part of one for these ranges."""

    sender: PeerId
    round: int
    digest: Digest
    size: int
    ranges: int = 0


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
    """A payload that a commit names, with its known holders."""

    digest: Digest
    size: int
    """Bytes as its author announced them; the true size when `held`."""
    holders: tuple[PeerId, ...]
    held: bool = False
    """The payload log has it already, verified."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A commit names exactly these payloads: they must be fetched, and no others of the round."""

    round: int
    wants: tuple[Want, ...]


@dataclass(frozen=True, slots=True)
class PartsNeeded:
    """This node is to add parts of an undecided round: it needs these, whatever they hold."""

    round: int
    wants: tuple[Want, ...]


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pull ended well: `size` bytes with the right digest are in the payload log."""

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

    BROKEN = "broken"
    """The link to the source broke, although it was not silent."""

    ABSENT = "absent"
    """The source answers that it does not hold the payload."""

    WITHDRAWN = "withdrawn"
    """The source served no more because it was asked to."""

    FAULTY = "faulty"
    """The source sent what the protocol does not allow, or bytes with another digest."""

    WORTHLESS = "worthless"
    """The payload is whole and counts for nothing, whoever sends it."""


@dataclass(frozen=True, slots=True)
class PullFailed:
    """A pull ended badly."""

    digest: Digest
    source: PeerId
    failure: Failure
    reason: str


@dataclass(frozen=True, slots=True)
class Served:
    """The peer took all bytes of this payload from this node, and is a holder now."""

    peer: PeerId
    digest: Digest


@dataclass(frozen=True, slots=True)
class Lost:
    """The payload log lost a payload that was held: its file is damaged or gone."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class Settled:
    """The round is decided and applied, or this node waits for it no more: forget it."""

    round: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""

    idle: bool = False
    """No peer waits for anything from this node."""


Event = (
    MembersChanged
    | Linked
    | RoundStarted
    | SummerAdded
    | Published
    | Found
    | Offered
    | Idle
    | OfferFailed
    | Wanted
    | PartsNeeded
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
    """Tell the peer that this node holds these payloads of the round, at most OFFERS_MAX pairs of
    (digest, size).
    """

    peer: PeerId
    round: int
    payloads: tuple[tuple[Digest, int], ...]
    idle: bool = False
    """Tell it also that this node's uplink has nothing to send."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Fetch a payload, going on where an earlier pull of it stopped."""

    source: PeerId
    digest: Digest
    size: int
    round: int
    exact: bool
    """The source itself stated the size, so that another total is its fault. Otherwise the author
    announced the size, and only the digest identifies the payload."""
    replayed: bool = False
    """The round was decided without this node, which catches up with it."""
    ranges: int = 0
    """Bits of the ranges whose part it is; none for what is no part."""
    disputed: bool = False
    """Peers stated several sizes."""

    @property
    def named(self) -> bool:
        """A commit, or a question for a sum, names it: it is wanted whatever it holds."""
        return not (self.exact or self.disputed)


@dataclass(frozen=True, slots=True)
class Drop:
    """Stop the pull of this payload from this source, and keep the bytes that arrived."""

    source: PeerId
    digest: Digest


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Ask the source to send no more of this payload than it has begun to. A pull that waits in the
    source's queue or between two parts ends as `WITHDRAWN`, and no byte was sent in vain.
    """

    source: PeerId
    digest: Digest
    unless_soon: bool = False
    """A source whose queue is short serves the pull to its end all the same."""


@dataclass(frozen=True, slots=True)
class ReportHolding:
    """Tell the coordinator that this node holds these payloads of others."""

    round: int
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The offer was not taken, and nobody is at fault: the peer should offer again later."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Blame:
    """The peer did what no honest peer does; its offer was not taken or its bytes were thrown
    away.
    """

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class NotRetained:
    """Every linked member failed several times to give a payload that a commit names. The exchange
    goes on asking: whether to wait is for the node to decide.
    """

    round: int
    digest: Digest


Effect = Offer | Pull | Drop | Withdraw | ReportHolding | Refuse | Blame | NotRetained


# ---- answers


@dataclass(frozen=True, slots=True)
class Lack:
    """A payload that a commit names and this node does not hold yet; a status page shows it."""

    digest: Digest
    source: PeerId | None
    """The peer that it is being pulled from; None: no pull is under way."""
    holders: int
    """Number of its known holders."""

"""The events that an agenda takes, and the steps that it answers with. Pure values."""

from dataclasses import dataclass
from typing import ClassVar

from node.standing import Doing
from protocol import wire_pb2 as wire


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The node's place in the log, and the conditions that depend on it."""

    next_round: int
    """First round whose decision is not taken."""
    decided_round: int
    """Newest round that is decided; -1 when none is."""
    undecided: bool = False
    """Whether a round that this process announced waits for its decision."""
    too_far: bool = False
    """Whether members no longer retain the payloads of `next_round`, so that a snapshot is due."""
    restarts: bool = False
    """Whether the run goes on from a checkpoint, which replaces this node's state."""
    offline: str = ""
    """Why there is no session, in words; empty while there is one."""

    @property
    def behind(self) -> bool:
        """Whether a decision is out that is not taken."""
        return self.next_round <= self.decided_round


# ---- events


@dataclass(frozen=True, slots=True)
class Welcomed:
    """A session was opened."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The coordinator opened a round."""

    round: wire.RoundOpened


@dataclass(frozen=True, slots=True)
class Decided:
    """A round was decided, or the run goes on from a checkpoint; the `LogPosition` that comes with
    the event says which.
    """


@dataclass(frozen=True, slots=True)
class StateAsked:
    """The coordinator asks for a checkpoint or a validation loss; the trainer looks whether its
    state is the one.
    """


@dataclass(frozen=True, slots=True)
class ResyncOrdered:
    """The coordinator found this node's state wrong."""

    order: wire.Resync


@dataclass(frozen=True, slots=True)
class StateOutdated:
    """The state counts a payload that has become void."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """Somebody asked this node to leave the run."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The round in training was announced."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Every decision that the announced round had to wait for was taken."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A decision or payload did not come in the time of an ending node."""


Event = (
    Welcomed
    | Opened
    | Decided
    | StateAsked
    | ResyncOrdered
    | StateOutdated
    | Finished
    | LeaveAsked
    | Announced
    | Settled
    | DeadlinePassed
)


# ---- steps


@dataclass(frozen=True, slots=True)
class Train:
    """Train this round, announce it, and settle the rounds in front of the next one."""

    opened: wire.RoundOpened
    doing: ClassVar[Doing] = Doing.WORKING

    @property
    def reason(self) -> str:
        """For the status page."""
        return f"trains round {self.opened.round}"


@dataclass(frozen=True, slots=True)
class TakeDecision:
    """Take the decision of `next_round`: apply its commit, or pass over its skip."""

    reason: str
    limit_ms: int | None = None
    """Limit of this wait and of all that follow, from now; None: as before."""
    doing: Doing = Doing.WORKING


@dataclass(frozen=True, slots=True)
class Jump:
    """Go on from a snapshot in place of the rounds before it."""

    reason: str
    limit_ms: int | None = None
    """See `TakeDecision.limit_ms`."""
    doing: ClassVar[Doing] = Doing.BEHIND


@dataclass(frozen=True, slots=True)
class Resync:
    """Discard the state and replay the log."""

    order: wire.Resync
    reason: str = "discards its state"
    doing: ClassVar[Doing] = Doing.BEHIND


@dataclass(frozen=True, slots=True)
class SayReady:
    """Tell the coordinator that every decision is taken."""

    reason: str = "ready"
    doing: ClassVar[Doing] = Doing.WORKING


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done before the next event."""

    reason: str
    doing: ClassVar[Doing] = Doing.WAITING


@dataclass(frozen=True, slots=True)
class End:
    """The node has nothing more to do in this run."""

    reason: str
    doing: ClassVar[Doing] = Doing.WORKING


Step = Train | TakeDecision | Jump | Resync | SayReady | Wait | End

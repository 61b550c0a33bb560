"""The published checkpoints of a run, and the one that is being made: part of its state. Pure.

`coordinator.machine.rules.publishing` changes them.
"""

from dataclasses import dataclass, field

from coordinator.machine.events.effects import Checkpoint
from protocol.ids import Digest, PeerId

WISH = "the operator asked"
"""Reason of a checkpoint that the operator asked for."""

PUBLISHED_KEPT = 8
"""Newest addresses at which members have published a checkpoint themselves."""

ASKED_KEPT = 8
"""Newest rounds whose state members were asked to publish."""

NAMES_KEPT = 4096
"""Names of authors that are remembered, as many as a run may have members."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A checkpoint at an address that a member chose."""

    round: int
    peer: PeerId
    name: str
    url: str
    state_digest: int
    agreed: bool = False
    """Whether the members agreed on this state."""


@dataclass(slots=True)
class Asked:
    """A round whose state members were asked to publish."""

    step: int
    agreed: int | None = None
    """The state digest that the members agreed on."""


@dataclass(slots=True)
class Work:
    """The checkpoint that is being made."""

    round: int
    step: int
    writer: PeerId
    second: PeerId | None
    said: dict[PeerId, tuple[int, Digest]] = field(default_factory=dict)
    """(State digest, SHA-256) by member, as each has computed it."""
    stored: tuple[int, Digest, int] | None = None
    """(State digest, SHA-256, bytes) of the files that the coordinator has stored."""

    @property
    def awaited(self) -> set[PeerId]:
        """The members that have not said what their state is."""
        return {peer for peer in (self.writer, self.second) if peer} - self.said.keys()


@dataclass(slots=True)
class Checkpoints:
    """Everything about the run's checkpoints."""

    room_bytes: int = 0
    """Disk that the coordinator gives for checkpoints; 0: members publish, it keeps none."""
    kept: int = 2
    """Newest checkpoints that the coordinator keeps."""
    wanted: str = ""
    """Why one is wanted; empty while none is."""
    work: Work | None = None
    tried: set[PeerId] = field(default_factory=set)
    """Members that did not write the one that is wanted."""
    note: str = ""
    """Why the last one was not made; empty when it was."""
    final_round: int = -1
    """Round of the last commit of a run that ended, whose state was wanted for that."""
    made: list[Checkpoint] = field(default_factory=list)
    """In the coordinator's directory, oldest first."""
    published: list[Publication] = field(default_factory=list)
    """Elsewhere, oldest first."""
    asked: dict[int, Asked] = field(default_factory=dict)
    names: dict[PeerId, str] = field(default_factory=dict)
    """Names of authors of committed payloads, also of those that are gone."""

    @property
    def newest(self) -> Checkpoint | None:
        """The newest one in the coordinator's directory."""
        return self.made[-1] if self.made else None

    @property
    def made_bytes(self) -> int:
        """Disk that the made ones take."""
        return sum(each.file_bytes for each in self.made)

    def agreed(self, round: int) -> int | None:
        """The state digest that the members agreed on after a round that was asked for."""
        asked = self.asked.get(round)
        return asked.agreed if asked else None

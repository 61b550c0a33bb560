"""Events and effects of published checkpoints: see `coordinator.machine.events`."""

from dataclasses import dataclass

from coordinator.machine.checkpoints.state import Checkpoint
from protocol.ids import Digest, PeerId


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

"""Places in the log at which a snapshot is recorded, as a walk along the chain finds them."""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from node.control.decision import Decision
from node.control.decisions import Place
from node.replica.position import Position
from protocol.ids import Digest

SNAPSHOTS_TRIED = 4
"""Newest recorded snapshots that are asked for: members keep two, and a member that lags has older
ones."""


@dataclass(frozen=True, slots=True)
class Landmark:
    """A recorded snapshot: its place in the log and its digests, by the majority or by a restart
    from a checkpoint.
    """

    position: Position
    sha256: Digest
    state_digest: int


@dataclass(frozen=True, slots=True)
class SnapshotJump:
    """A snapshot to go on from."""

    landmark: Landmark
    path: Path
    """Its file, verified."""
    passed: dict[int, Decision]
    """The decisions of the rounds that were asked about and that the snapshot has passed."""
    base: Path | None = None
    """Where nodes differ, a snapshot of the newest mean before it; None: as before."""


@dataclass(slots=True)
class Walk:
    """A stretch of the log, read from the chain of commits."""

    landmarks: deque[Landmark] = field(default_factory=lambda: deque(maxlen=SNAPSHOTS_TRIED))
    """The newest recorded snapshots, oldest first."""
    asked: dict[int, Decision] = field(default_factory=dict)
    """The decisions of the rounds that were asked about."""
    begun: Landmark | None = None
    """The newest recorded snapshot of which ranges are here already."""

    @property
    def by_preference(self) -> list[Landmark]:
        """The snapshots in the order to try them: the one that is begun, then the newest."""
        newest_first = [landmark for landmark in reversed(self.landmarks) if landmark != self.begun]
        return [self.begun, *newest_first] if self.begun else newest_first

    def jump_to(self, landmark: Landmark, path: Path) -> SnapshotJump:
        """The jump to one of the snapshots, whose file is at `path`."""
        until = landmark.position.next_round
        passed = {round: decision for round, decision in self.asked.items() if round < until}
        return SnapshotJump(landmark, path, passed)


def position_at(place: Place) -> Position:
    """The position of a state at a place in the chain."""
    return Position(
        place.next_round,
        place.head,
        place.head_round,
        voids=place.voids,
        void_count=place.void_count,
    )

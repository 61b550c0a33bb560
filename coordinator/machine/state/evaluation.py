"""The measured validation losses of a run, and the member whose turn it is: part of its state.
Pure.

`coordinator.machine.rules.measuring` changes them.
"""

from dataclasses import dataclass, field

from coordinator.machine.events.effects import Point
from protocol.ids import PeerId

POINTS_KEPT = 1_000
"""Newest points that are kept: a hundred kilobytes, and more than a chart can show."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A member is to measure the state after a round."""

    round: int
    step: int
    peer: PeerId


@dataclass(slots=True)
class Evaluation:
    """Everything about the run's validation loss."""

    wanted: bool = False
    """Whether the next state that can be measured is to be."""
    turn: Turn | None = None
    tried: set[PeerId] = field(default_factory=set)
    """Members that did not measure the state that is wanted."""
    note: str = ""
    """Why the last one was not measured; empty when it was."""
    points: list[Point] = field(default_factory=list)
    """Oldest first."""

    @property
    def newest(self) -> Point | None:
        """The newest measured loss."""
        return self.points[-1] if self.points else None

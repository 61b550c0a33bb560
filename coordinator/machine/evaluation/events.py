"""Events and effects of the validation loss: see `coordinator.machine.events`."""

from dataclasses import dataclass

from coordinator.machine.evaluation.state import Point
from protocol.ids import PeerId


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

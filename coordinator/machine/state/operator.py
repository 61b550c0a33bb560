"""The part of a run's state that its operator's acts have made. Pure."""

from dataclasses import dataclass, field

from coordinator.machine.state.admission import Admission
from protocol.ids import Digest, PeerId
from protocol.words import quantity

NOTICES_KEPT = 8
"""Newest notices, and newest acts, that are shown."""


NO_ACT = Digest(b"")
"""The head of a state that belongs to no run yet."""


@dataclass(frozen=True, slots=True)
class Away:
    """A node that the operator has removed for some time."""

    until_ms: int
    """Time of the run's clock from which on it may come back."""
    reason: str

    def words(self, now_ms: int) -> str:
        """Why it is gone, and when it may come back."""
        seconds = -(-max(0, self.until_ms - now_ms) // 1000)
        wait = f"{seconds} s" if seconds < 120 else f"{-(-seconds // 60)} min"
        back = f"it may come back in {wait}" if seconds else "it may come back"
        return f"{_because('the operator removed this node', self.reason)}; {back}"


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice to every node."""

    given_s: int
    """Seconds since 1970 by the wall clock."""
    text: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The evidence of one auditor that proved nothing."""

    digests: tuple[Digest, ...]
    """SHA-256 of each."""
    reason: str
    """What the newest lacks."""


@dataclass(slots=True)
class OperatorState:
    """The orders of the operator that hold now."""

    paused: str | None = None
    """The reason, maybe empty; None while rounds may open."""
    finishing: str | None = None
    """The reason, maybe empty; None unless the operator ends the run."""
    bans: dict[str, str] = field(default_factory=dict)
    """Reasons by key or host."""
    away: dict[PeerId, Away] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    """The newest ones, oldest first."""
    admission: Admission = field(default_factory=Admission)
    rejected: dict[PeerId, Rejected] = field(default_factory=dict)
    """By auditor, while it is one."""
    newest: list[Notice] = field(default_factory=list)
    """The newest acts, in words for everybody, oldest first."""
    acts: int = 0
    """Number of all acts."""
    head: Digest = NO_ACT
    """Digest of the newest act; before the first, the one that it will follow."""

    def banned(self, target: str) -> str:
        """Why a key or a host is refused; empty when it is not."""
        if target not in self.bans:
            return ""
        return _because("the operator of this run has banned this node", self.bans[target])

    def waits(self) -> str:
        """Why no round opens; empty when one may."""
        return "" if self.paused is None else _because("paused by the operator", self.paused)

    def ends(self, committed: int) -> str:
        """Why the run ends before its last step; empty when it does not."""
        if self.finishing is None:
            return ""
        return _because(
            f"the operator ended the run after {quantity(committed, 'step')}", self.finishing
        )


def _because(words: str, reason: str) -> str:
    return f"{words}: {reason}" if reason else words

"""The records of nodes that were told to resync: what each is refused or muted for, and for how
long.
"""

from dataclasses import dataclass

DIFFERENCES_MAX = 2
"""Wrong states in a row for which a node is refused: one may be a flipped bit, two are a fault of
the machine."""

REFUSED_MS = 3_600_000
"""Time for which a node is refused: a broken machine costs the run at most two replays an hour, and
a repaired one need not wait for a day."""

RECORDS_MAX = 4096
"""Nodes with a record at most, as many as a run may have members; the oldest record goes first."""

WRONG_RESULTS = "this machine computes wrong results"


@dataclass(slots=True)
class Record:
    """History of a node that was once told to resync; it outlives the node's membership."""

    asked: int = 0
    """Number of the last request to resync; 0 once it was obeyed, for a new process of the node
    knows of none."""
    differed: int = 0
    """Wrong states since the node last agreed on a round that counted its payload."""
    round: int = -1
    """Round of the newest wrong state."""
    muted: bool = False
    replayed: bool = False
    """A level vote has sent the node through the log, and no final digest has agreed with it
    since."""
    refused_until_ms: int = 0

    def refusal(self, now_ms: int) -> str:
        """The reason why the node may not join now; empty when it may."""
        if self.refused_until_ms <= now_ms:
            return ""
        minutes = -(-(self.refused_until_ms - now_ms) // 60_000)
        return (
            f"{WRONG_RESULTS}: its key is refused for {minutes} more minutes; check its memory and "
            "its graphics card"
        )

    @property
    def muted_reason(self) -> str:
        """The reason why the node's payloads do not count at present; empty when they do."""
        if not self.muted:
            return ""
        return (
            f"its state after round {self.round} was wrong: counted when a later one agrees with "
            "the others'"
        )

    def note_right(self, round: int, *, counted: bool) -> None:
        """The node has the state that was decided; `counted`: the round counts its payload."""
        self.replayed = False
        if round > self.round:
            self.muted = False
            if counted:
                self.differed = 0

    def note_wrong(self, round: int) -> bool:
        """The node's state was wrong; returns whether it was so too often in a row."""
        self.differed += 1
        self.muted = True
        self.round = max(self.round, round)
        if self.differed < DIFFERENCES_MAX:
            return False
        self.differed = DIFFERENCES_MAX - 1
        return True

    def refuse(self, round: int, now_ms: int) -> str:
        """Refuse the node from now on, for its state after `round`; returns the reason."""
        self.refused_until_ms = now_ms + REFUSED_MS
        return (
            f"{WRONG_RESULTS}: wrong states twice in a row, the last after round {round}; "
            f"refused for {REFUSED_MS // 60_000} min"
        )

"""The place of this node in its run, for its owner: a state in a word, and the reason in words.

    starting -> catching up -> waiting -> training -> counted | late | left out | muted | skipped
                                             ^__________________|
    no session: from anywhere, until the coordinator answers again

The node knows some of it itself (when it announced, what a commit holds), the coordinator tells the
rest (with each round, and with the reply to each heartbeat). Pure: times are integer milliseconds
of the coordinator's clock.
"""

from dataclasses import dataclass
from enum import Enum

from protocol import wire_pb2 as wire

OPEN_MAX = 64
"""Opened rounds whose decision is awaited; older ones were decided in a time without a session."""


class Doing(Enum):
    """What a node does now, beside its phase in words."""

    STARTING = "starting"
    BEHIND = "behind"
    """The node catches up with the log."""
    WAITING = "waiting"
    """No round is open."""
    WORKING = "working"


@dataclass(slots=True)
class _Round:
    """A round that this node works for."""

    number: int
    bell_ms: int = 0
    publish_by_ms: int = 0
    share: int = 0
    """Samples leased to this node."""
    muted: str = ""
    """The reason why nothing of it will count; empty when it will."""
    announced_ms: int | None = None
    worked_ms: int = 0


class OwnStanding:
    """Takes what happens to a node's rounds, and tells its place in words."""

    def __init__(self) -> None:
        self.told = ("", "")
        """(state, reason) from the coordinator's last reply; empty while all is well."""
        self._told_earlier: tuple[str, str] | None = None
        self._opened = _Round(-1)
        self._open: dict[int, _Round] = {}
        """Rounds that were opened for this node, until they are decided. Others, which it takes
        from the log, are nothing of its own.
        """
        self._verdict = ("", "")

    @property
    def round(self) -> int:
        """The newest round that was opened for this node; -1 before the first."""
        return self._opened.number

    @property
    def share(self) -> int:
        """Samples of the newest round that this node may train."""
        return self._opened.share

    def bell_in_ms(self, now_ms: int) -> int | None:
        """Time to the bell of the round in work; None between rounds."""
        left_ms = self._opened.bell_ms - now_ms
        return left_ms if left_ms > 0 and self._opened.announced_ms is None else None

    # ---- what happens

    def opened(self, opened: wire.RoundOpened) -> None:
        """A round was opened for this node."""
        self._told_earlier = self.told  # an opened round is newer
        self._opened = _Round(
            opened.round,
            opened.bell_ms,
            opened.publish_by_ms,
            sum(share.count for share in opened.shares),
            opened.reason if opened.muted else "",
        )
        self._open[opened.round] = self._opened
        if len(self._open) > OPEN_MAX:
            del self._open[min(self._open)]

    def announced(self, round: int, at_ms: int, worked_ms: int) -> None:
        """The node has told the coordinator of its work, which took `worked_ms`."""
        if round == self._opened.number:
            self._opened.announced_ms, self._opened.worked_ms = at_ms, worked_ms

    def counted(self, round: int) -> None:
        """A commit holds this node's payload."""
        self._open.pop(round, None)
        self._verdict = ("counted", "")

    def left_out(self, round: int) -> None:
        """The round is decided without this node's payload."""
        work = self._open.pop(round, None)
        if work is None or work.announced_ms is None:
            return
        late_ms = work.announced_ms - work.publish_by_ms
        if work.muted:
            return
        if late_ms > 0:
            took = f"its work took {work.worked_ms / 1000:.1f} s"
            self._verdict = ("late", f"by {late_ms / 1000:.1f} s in round {round}: {took}")
        else:
            reason = (
                f"round {round} was decided before others had its payload: its upload is the limit"
            )
            self._verdict = ("left out", reason)

    def skipped(self, round: int) -> None:
        """The round counts for nobody; one of before this node came is not its affair."""
        work = self._open.pop(round, None)
        if work is None:
            return
        again = "; its samples are trained again" if work.announced_ms is not None else ""
        self._verdict = ("skipped", f"round {round} counts for nobody{again}")

    # ---- in words

    def words(self, doing: Doing, phase: str, offline: str) -> tuple[str, str]:
        """(state, reason); `phase` is what the node does now in words, `offline` why it has no
        session.
        """
        if offline:
            return "no session", offline
        if doing is Doing.BEHIND:
            return "catching up", phase
        if self._opened.muted:
            return "muted", self._opened.muted
        told = self.told[0]
        if told and told != "catching up" and self.told is not self._told_earlier:
            return self.told
        if self._verdict[0]:
            return self._verdict
        if self.round >= 0:
            return "training", "its first round since it joined is under way"
        if doing is Doing.WAITING:
            return "waiting", "for the next round"
        return "starting", phase

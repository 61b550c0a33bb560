"""The states that a replay has made, compared with those that the members reported. Pure.

    replayed --the majority's digest is on record--> compared: equal, or suspected
        |                                            suspected, and the same at a later look:
        |                                            a difference
        '----- `WAITING_MAX` rounds later ---------> unreported: nobody can compare it

A digest that differs is looked at once more, after the replay has taken what the chain says
meanwhile: a payload that became void changes the states after it. A difference is counted and
remembered, and the audit goes on: what it replays is what the log makes, whatever members say, and
its archive serves those who audit it later.
"""

import msgspec

WAITING_MAX = 256
"""Rounds whose digests are waited for: members report within a round or two."""

BEHIND_ROUNDS = 8
"""Rounds that an auditor may be behind without a word: the newest are still on their way."""

WINDOW_S = 60.0
"""Time between two looks at whether the auditor comes nearer to the run."""


SAY_EVERY_S = 60.0
"""Time between two log lines that say how far the audit is."""


class FirstDifference(msgspec.Struct, frozen=True):
    """The first difference that was found."""

    round: int
    reason: str


class Tally(msgspec.Struct):
    """The comparison of one run; it is kept on disk with the state."""

    compared: int = 0
    """Rounds whose state equals the members'."""
    differences: int = 0
    """Rounds whose state does not."""
    unreported: int = 0
    """Rounds whose state no majority reported in time."""
    first_difference: FirstDifference | None = None
    waiting: dict[int, int] = {}
    """State digests of rounds that are not compared yet, by round."""
    suspected: dict[int, tuple[int, int]] = {}
    """Digests that differ, by round, with the number of the look that found them."""

    def replayed(self, round: int, digest: int) -> None:
        """The replay has come to the state after a round."""
        self.waiting[round] = digest
        while len(self.waiting) > WAITING_MAX:
            self._take(min(self.waiting))
            self.unreported += 1

    def _take(self, round: int) -> None:
        del self.waiting[round]
        self.suspected.pop(round, None)

    def reported(self, round: int, digest: int, look: int) -> str:
        """The majority's digest of the state after a round is on record, at the look with this
        number. Returns a difference in words, empty when there is none.
        """
        own = self.waiting.get(round)
        if own is None:
            return ""
        if own == digest:
            self._take(round)
            self.compared += 1
            return ""
        known, found_at = self.suspected.setdefault(round, (digest, look))
        if known != digest or found_at == look:
            self.suspected[round] = (digest, look)
            return ""
        self._take(round)
        self.differences += 1
        reason = f"the replay leads to state {own:016x}, the members reported {digest:016x}"
        self.found(round, reason)
        return reason

    def found(self, round: int, reason: str) -> None:
        """Remember a difference, if it is the first one."""
        if self.first_difference is None:
            self.first_difference = FirstDifference(round, reason)


class KeepingUp:
    """Whether an auditor keeps up with the run, from how far behind it is at times that are given
    in seconds.
    """

    def __init__(self) -> None:
        self.words = ""
        """Why it does not keep up; empty while it does."""
        self._since: tuple[float, int] | None = None
        self._said_s: float | None = None

    def due(self, now_s: float) -> bool:
        """Whether it is time to say again how far the audit is; charges the time when it is."""
        is_due = self._said_s is None or now_s - self._said_s >= SAY_EVERY_S
        self._said_s = now_s if is_due else self._said_s
        return is_due

    def look(self, now_s: float, behind: int) -> bool:
        """Judge again; returns whether the verdict has changed."""
        before = bool(self.words)
        if behind <= BEHIND_ROUNDS:
            self.words, self._since = "", (now_s, behind)
        elif self._since is None:
            self._since = (now_s, behind)
        elif now_s - self._since[0] >= WINDOW_S:
            since_s, then = self._since
            grows = behind > then
            self.words = (
                f"does not keep up: {behind} rounds behind, {then} were it {now_s - since_s:.0f} s "
                "ago"
                if grows
                else ""
            )
            self._since = (now_s, behind)
        return before != bool(self.words)

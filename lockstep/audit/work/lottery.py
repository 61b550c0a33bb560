"""Which authors of a round an auditor looks at, and how much of its time that may take. Pure.

    time x authors x share --earned--> balance --an audit's own time--> spent, maybe below zero
                                         '-- at or above zero: a round that is drawn is audited

The run's compute is the time of all its authors, so what is earned grows with them. An audit may
take more than there is: then none follows until the debt is earned. Which rounds are drawn, and in
which order their authors are, the auditor's lots say (`protocol.audit.lots`): nobody else has them,
so nobody knows when it is looked at.

A panel is a few authors of one round: those under suspicion and others, with whom they are
compared (`lockstep.audit.work.judge`).
"""

from collections.abc import Callable, Collection

from protocol.audit.lots import Draw
from protocol.audit.rule import PANEL
from protocol.ids import PeerId

SUSPECTS_MAX = 2
"""Suspects in a panel: the others are what they are compared with."""

BALANCE_S = 20.0
"""Time that is kept at most: a quiet hour pays for no long audit in a busy one."""


class Budget:
    """The time for the audit of one run's work, as a share of the run's compute."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._earned_at_s: float | None = None
        self.balance_s = 0.0
        self.spent_s = 0.0
        """In all."""

    def earn(self, now_s: float, authors: int) -> None:
        """A round of this many authors was decided."""
        before, self._earned_at_s = self._earned_at_s, now_s
        if before is not None:
            earned = self._share * authors * (now_s - before)
            self.balance_s = min(BALANCE_S, self.balance_s + earned)

    def spend(self, seconds: float) -> None:
        """An audit took some time."""
        self.balance_s -= seconds
        self.spent_s += seconds

    @property
    def allows(self) -> bool:
        """Whether an audit may begin."""
        return self._share > 0 and self._earned_at_s is not None and self.balance_s >= 0


def panel(
    draw: Draw,
    authors: Collection[PeerId],
    suspects: Collection[PeerId],
    alike: Callable[[PeerId, PeerId], bool],
) -> list[PeerId]:
    """The authors of a round that are audited, in the order in which they are: at most
    `SUSPECTS_MAX` suspects first, then others by lot, those before that are `alike` to the first.
    """
    drawn = draw.order(authors)
    named = [author for author in drawn if author in suspects][:SUSPECTS_MAX] or drawn[:1]
    others = [author for author in drawn if author not in named]
    others.sort(key=lambda author: not alike(author, named[0]))
    return (named + others)[:PANEL]

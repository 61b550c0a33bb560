"""The loss of a whole run in a bounded number of points. Pure.

Rounds are gathered into parts of equal width. Where there are too many parts, two neighbours become
one of twice the width: a run of any length is a curve of 512 to 1024 points.
"""

import math
from dataclasses import dataclass, field

POINTS_MAX = 1024
"""Parts that are kept: more than a chart has pixels."""

LOSS_MAX = 1e6
"""Loss beyond which a number is no loss: announcements are their authors' words."""


@dataclass(slots=True)
class _Part:
    first: int
    last: int
    count: int
    total: float


@dataclass(slots=True)
class LossCurve:
    """Mean losses of the parts of a run, oldest first, in nats per token."""

    width: int = 1
    """Rounds of a part."""
    _parts: list[_Part] = field(default_factory=list)

    def add(self, round: int, loss: float | None) -> None:
        """A round that is newer than all before it. One without a loss is passed over."""
        if loss is None or not math.isfinite(loss) or abs(loss) > LOSS_MAX:
            return
        newest = self._parts[-1] if self._parts else None
        if newest and newest.first // self.width == round // self.width:
            newest.last, newest.count, newest.total = round, newest.count + 1, newest.total + loss
            return
        self._parts.append(_Part(round, round, 1, loss))
        while len(self._parts) > POINTS_MAX:
            self._halve()

    def columns(self) -> tuple[list[int], list[float]]:
        """The rounds in the middle of the parts, and their mean losses to four decimals."""
        rounds = [(part.first + part.last) // 2 for part in self._parts]
        return rounds, [round(part.total / part.count, 4) for part in self._parts]

    def _halve(self) -> None:
        self.width *= 2
        halved = list[_Part]()
        for part in self._parts:
            newest = halved[-1] if halved else None
            if newest and newest.first // self.width == part.first // self.width:
                newest.last = part.last
                newest.count, newest.total = newest.count + part.count, newest.total + part.total
            else:
                halved.append(part)
        self._parts = halved

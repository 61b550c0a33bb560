"""An auditor adds ranges again that it draws itself, and says who has signed other digests.

    a commit --some of its ranges, and all unlike sums--> waiting --added again--> the same digest
                                                                       '--another--> evidence

Rules
- Nobody can know which ranges it draws: each of a round is drawn with the same chance, by itself.
- So whoever signs wrong sums signs 1 / share of them in the mean before one is found, whatever the
  crowd; the auditor fetches this share of all payloads, in parts.
- A range of which a part is not there is passed over: that is no evidence against anybody.
"""

import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lockstep.audit.sums.adding import RangeAdder
from lockstep.audit.sums.signatures import signed_sums
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.sums.signed import SumSigned, WrongSum, question_of

log = logging.getLogger("lockstep.auditor")

_CHANCE: Final = random.SystemRandom().random

WAITING_MAX: Final = 256
"""Ranges that wait to be added again, the newest: an auditor that is further behind adds what comes
then. Each keeps its commit."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    commit: Commit
    said: tuple[SumSigned, ...]
    """What was signed for one range, of one summer at least."""


class SumsAudit:
    """The audit of the sums of one run. `share` of all ranges are added again; `tell` hears of each
    signature under a wrong sum.
    """

    def __init__(
        self,
        adder: RangeAdder,
        share: float,
        tell: Callable[[WrongSum], None],
        chance: Callable[[], float] = _CHANCE,
    ) -> None:
        self._adder, self._share, self._tell, self._chance = adder, share, tell, chance
        self._waiting = deque[_Waiting](maxlen=WAITING_MAX)
        self._added = self._unadded = self._wrong = 0

    def look(self, commit: Commit, recorded: wire.Committed) -> None:
        """A commit has come: draw ranges of it."""
        if commit.sums is None or not recorded.signed_sums:
            return
        by_range = dict[int, list[SumSigned]]()
        for each in signed_sums(commit, recorded):
            by_range.setdefault(each.number, []).append(each)
        for _, said in sorted(by_range.items()):
            unlike = len({each.digest for each in said}) > 1
            if unlike or self._chance() < self._share:
                self._waiting.append(_Waiting(commit, tuple(said)))

    async def step(self) -> bool:
        """Add one of the ranges that wait; False when there is none."""
        if not self._waiting:
            return False
        drawn = self._waiting.popleft()
        commit, question = drawn.commit, question_of(drawn.commit, drawn.said[0])
        found = await self._adder.add(commit, question)
        if found is None:
            self._unadded += 1
            return True
        self._added += 1
        for each in drawn.said:
            if each.digest == found:
                continue
            self._wrong += 1
            about = {"round": commit.round, "range": each.number, "peer": each.summer}
            log.warning("a summer has signed a wrong sum", extra=about)
            self._tell(WrongSum(commit.run_id, commit.round, each, found))
        return True

    def document(self) -> dict[str, Any]:
        """The audit for /status.json."""
        return {
            "added": self._added,
            "unadded": self._unadded,
            "wrong": self._wrong,
            "waiting": len(self._waiting),
        }

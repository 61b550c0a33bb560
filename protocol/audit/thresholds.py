"""What separates honest work from other work, by the algorithm of a run. Pure.

An author of DeMo sends the signs of its momentum, and is held against the gradient of its samples;
one of local steps sends the signs of all that its steps moved and that it did not say yet, and is
held against the movement of the same steps with an optimizer that begins. The latter agrees in
fewer signs: there more of what is sent comes from earlier rounds. All that is judged beside others
counts in parts of what the others agree in, and has one scale for both (`protocol.audit.rule`).
"""

from dataclasses import dataclass
from typing import Final

from protocol.codec.evidence import CHANCE, WHOLE


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Those of one algorithm; shares are in ten-thousandths."""

    telling: int
    """Least agreement of companions beside which an author is judged: below it, honest work could
    not be told from other work."""

    telling_odds: int
    """The same in squares of the standard deviations of chance, for the signs that were compared:
    where agreement is small, few signs tell nothing. 0: not asked."""

    opposed: int
    """Agreement below which one audit is a verdict, in any round."""

    like_samples: bool
    """Whether less work is told only beside authors of about as many samples or fewer
    (`protocol.audit.shares`)."""

    early_cross_times: float
    """Times the odds by which a copy of its own round is told later on, that it is told in the
    first rounds."""

    def tells(self, expected: int, compared: int) -> bool:
        """Whether companions of whom so much is expected tell honest work from other work."""
        above = 2 * (expected - CHANCE)
        far_enough = above * above * compared >= self.telling_odds * WHOLE * WHOLE
        return expected >= self.telling and far_enough


DEMO: Final = Thresholds(
    telling=6200, telling_odds=0, opposed=1500, like_samples=False, early_cross_times=1.0
)
"""Measured on the former default (docs/results/data/work-audit.json). Honest payloads of DeMo as
published agree in no more than by chance at times, and came down to 39 %: where companions do, none
is judged, and turned signs are told far below that alone, which finds few of them."""

LOCAL_STEPS: Final = Thresholds(
    telling=5300, telling_odds=64, opposed=4500, like_samples=True, early_cross_times=2.5
)
"""Measured by `tests.benchmarks.work_audit --local-steps 5`
(docs/results/data/work-audit-local.json). In the first rounds a payload has much of its author's
earlier movements, which are like everybody's: an honest one of sixteen authors followed another's
movement against its own by 4.8 standard deviations of chance in round 11. So a copy is told there
by ten, and not by 6.4."""

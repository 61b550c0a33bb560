"""What the agreement of signs says about an author. Pure.

    a panel of one round --each beside the median of its companions--> row --rows of an author--.
                                                                                                |
      far below in `FAR_AUDITS` of its last audits: other work                                  |
      somewhat below again and again (a sequential test): less work <---------------------------'

How far honest work agrees depends on the network, k, the round, the samples of an author and the
age of its momentum. So no number is held against an author but that of its companions: authors of
the same round whose momentum is about as old. Chance agrees in one half, and what counts is the
part above it:

    ratio = (agreement - 1/2) / (expected - 1/2)        1: honest, 0: noise

`tests.benchmarks.work_audit` has measured how ratios spread (docs/results/data/work-audit.json; 400
steps of one network, from step 32 on): honest ones from 0.81 to 1.13 with a standard deviation of
0.042, those of half the work from 0.48 to 0.93, 0.74 in the mean; those of other samples, copies,
old payloads and noise below 0.6 but for one in two hundred. The constants below come from there,
and `tests/lockstep/audit/work/test_judge.py` counts false alarms and detections. In the first
rounds all samples have much the same gradient, and nothing is told from it.

Companions may cheat. Those that send too little lower what is expected, and hide others; those that
send the bare gradient agree in nearly all signs, and raise it. Neither moves the median while at
most one in three of a panel does so, and a single audit has a bounded weight. Most of an audited
crowd can shield each other: where little can be told from chance, nobody is judged, and the
words say so.

One audit is enough where an author sends the opposite of its gradient. That is held against chance
and not against companions, so nobody brings it about for another, and it holds in the first rounds
too: no honest work agreed in less than 0.66 there or later, turned signs never in more than 0.18
(docs/results/attack.md). An author next to chance has 76 of 256 signs right, or fewer, once
in ten thousand million audits.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from protocol.codec.evidence import AUDITS_MAX, CHANCE, WHOLE, Evidence, Finding, WorkAudit
from protocol.ids import Digest, PeerId, RunId

TELLING = 0.62
"""Least agreement of companions beside which an author is judged: below it, honest work could not
be told from other work."""

EARLY_ROUNDS = 32
"""First rounds of a run, in which nobody is judged beside others."""

LIKE_AGE, LIKE_ROUNDS = 1.25, 8
"""Ages of momentum, in payloads, count as alike up to this factor and these many rounds."""

FAR_RATIO = 0.5
"""Ratio below which an audit is far below: twelve standard deviations of the measured honest work.
In a network of thirty thousand parameters an honest author came to 0.60 for some rounds."""

FAR_AUDITS = 3
"""Audits far below, among the last `FAR_AMONG`, that make a verdict."""

FAR_AMONG = 4

OPPOSED = 0.3
"""Agreement below which one audit is a verdict, in any round: half way from turned signs to chance
and more."""

OPPOSED_COMPARED = 256
"""Fewest signs of which that is said."""

SPACING_ROUNDS = 8
"""Rounds from one audit of an author to the next, at least, as measured: the momentum of a few
rounds is much the same, and its dips are one dip."""

SPREAD = 0.05
"""Standard deviation of the ratio of honest work, counting apart, where a run shows no larger one:
small networks do."""

LEARNED, RECENT_KEPT = 40, 256
"""Audits of all authors from which the spread of a run is known, and the newest that count for it:
half the work is looked for from then on."""

MEDIAN_TO_SPREAD = 1.4826
"""Standard deviation of a normal distribution, in medians of distances from its mean: the median is
not moved by a few that cheat."""

LESS = 0.2
"""What an author lacks in ratio that does somewhat more than half its work."""

STEP_MAX = 3.0
"""Most that one audit adds to the sequential test, or takes away: a verdict needs five, at least,
because the tails of the measured ratios are heavier than those of the normal distribution."""

LIMIT = 13.0
"""Sum of the sequential test from which on it is a verdict."""

SUSPECT = 5.0
"""Sum from which on an author is audited before others."""

LESS_AUDITS = 20
"""Audits that the sequential test looks back on."""

ROWS_KEPT = AUDITS_MAX
"""Newest audits of one author that are kept."""

AUTHORS_KEPT = 4096
"""Authors whose audits are kept, as many as a run may have members."""

FOUND_KEPT = 16
"""Newest evidence that is shown."""


@dataclass(frozen=True, slots=True)
class Look:
    """The audit of one payload."""

    author: PeerId
    digest: Digest
    agreement: float
    """Share of the compared signs that agree."""
    compared: int
    """Signs that were compared."""
    age: int
    """Payloads of the author, up to this one: its momentum is at most as old."""
    settled: bool = True
    """Whether the author was there long enough for its momentum to be that old."""


class Row(msgspec.Struct, frozen=True):
    """The audit of one payload beside what was expected of it."""

    round: int
    digest: Digest
    agreement: float
    expected: float
    compared: int
    settled: bool = True
    """Whether the sequential test counts it."""

    @property
    def ratio(self) -> float:
        """The part above chance, of that which is expected."""
        return (self.agreement - 0.5) / (self.expected - 0.5)

    @property
    def is_far(self) -> bool:
        """Whether it is far below what is expected."""
        return self.ratio < FAR_RATIO

    def step(self, spread: float) -> float:
        """The logarithm of how much likelier half the work is than all of it, bounded, where ratios
        of honest work have this standard deviation.
        """
        if not self.settled:
            return 0.0
        counted = 2 * self.agreement * (1 - self.agreement) / max(1, self.compared)
        spread = max(spread, math.hypot(SPREAD, math.sqrt(counted) / (self.expected - 0.5)))
        shift = LESS / spread
        step = shift * ((1 - self.ratio) / spread - shift / 2)
        return max(-STEP_MAX, min(STEP_MAX, step))


class Book(msgspec.Struct):
    """The audits of one run's authors, and what they have shown."""

    rows: dict[PeerId, list[Row]] = {}
    """By author, oldest first; without those that have become evidence."""
    audits: int = 0
    """Number of all audits that could be judged."""
    untold: int = 0
    """Audits of panels that were too near to chance, since the last that was not."""
    found: list[Evidence] = []
    """The newest evidence, oldest first."""
    verdicts: int = 0
    """Number of all evidence."""
    newest_round: int = -1
    """The newest round of which payloads were audited."""
    recent: list[float] = []
    """How far the ratios of the newest audits lie from one, in either direction."""
    early: dict[PeerId, int] = {}
    """The newest of the first rounds of which a payload of an author was audited."""

    def take_early(self, round: int, looks: Sequence[Look], run_id: RunId) -> list[Evidence]:
        """The audits of one of the first rounds; returns what they prove."""
        self.early |= {look.author: round for look in looks}
        return self._kept(round, [opposition(look, round, run_id) for look in looks])

    def take(self, round: int, looks: Sequence[Look], run_id: RunId) -> list[Evidence]:
        """The audits of one panel; returns what they prove."""
        for look in looks:
            expected = expectation(look, looks)
            if expected is None:
                continue
            if expected < TELLING:
                self.untold += 1
                continue
            self.untold = 0
            row = Row(round, look.digest, look.agreement, expected, look.compared, look.settled)
            self._add(look.author, row)
        return self._kept(round, [self._judged(look, round, run_id) for look in looks])

    def _kept(self, round: int, verdicts: Sequence[Evidence | None]) -> list[Evidence]:
        evidence = [each for each in verdicts if each]
        self.verdicts += len(evidence)
        self.newest_round = max(self.newest_round, round)
        self.found = [*self.found, *evidence][-FOUND_KEPT:]
        return evidence

    @property
    def suspects(self) -> set[PeerId]:
        """Authors that are audited before others."""
        return {
            author
            for author, rows in self.rows.items()
            if rows and (rows[-1].is_far or less_sum(rows, self.spread) >= SUSPECT)
        }

    @property
    def spread(self) -> float:
        """The standard deviation of honest ratios in this run, from the median of all; infinite
        until it is known.
        """
        if len(self.recent) < LEARNED:
            return math.inf
        return max(SPREAD, MEDIAN_TO_SPREAD * statistics.median(self.recent))

    def is_due(self, author: PeerId, round: int) -> bool:
        """Whether the author's last audit is long enough ago."""
        rows = self.rows.get(author)
        newest = rows[-1].round if rows else self.early.get(author, round - SPACING_ROUNDS)
        return round - newest >= SPACING_ROUNDS

    @property
    def words(self) -> str:
        """What the audit can tell, for people."""
        if self.untold:
            return (
                f"cannot judge: most of the last audits agree in less than {TELLING:.0%} of signs, "
                "which is next to chance"
            )
        return f"{self.audits} payloads audited" if self.audits else "no payload audited yet"

    def _add(self, author: PeerId, row: Row) -> None:
        self.audits += 1
        self.recent = [*self.recent, abs(1 - row.ratio)][-RECENT_KEPT:]
        # a replay that goes back comes to some rounds again
        earlier = [each for each in self.rows.pop(author, []) if each.round < row.round]
        self.rows[author] = [*earlier, row][-ROWS_KEPT:]
        if len(self.rows) > AUTHORS_KEPT:
            del self.rows[next(iter(self.rows))]

    def _judged(self, look: Look, round_: int, run_id: RunId) -> Evidence | None:
        author = look.author
        if opposed := opposition(look, round_, run_id):
            self.rows.pop(author, None)
            return opposed
        rows = self.rows.get(author, [])
        verdict = judged(rows, self.spread)
        if verdict is None:
            return None
        finding, proof = verdict
        del self.rows[author]
        audits = [
            WorkAudit(
                row.round, row.digest, round(WHOLE * row.agreement), round(WHOLE * row.expected)
            )
            for row in proof
        ]
        return Evidence(run_id, author, finding, tuple(audits))


def opposition(look: Look, round_: int, run_id: RunId) -> Evidence | None:
    """The evidence of one audit whose signs are turned; None where they are not."""
    if look.agreement >= OPPOSED or look.compared < OPPOSED_COMPARED:
        return None
    audit = WorkAudit(round_, look.digest, round(WHOLE * look.agreement), CHANCE)
    return Evidence(run_id, look.author, "other work", (audit,))


def judged(rows: Sequence[Row], spread: float) -> tuple[Finding, list[Row]] | None:
    """What the audits of one author prove, with those that prove it; None when they do not.
    `spread` is that of honest ratios.
    """
    last = [row for row in rows[-FAR_AMONG:] if row.is_far]
    if len(last) >= FAR_AUDITS and rows[-1].is_far:
        return "other work", last
    if less_sum(rows, spread) >= LIMIT:
        return "less work", list(rows[-LESS_AUDITS:])
    return None


def less_sum(rows: Sequence[Row], spread: float) -> float:
    """The sum of the sequential test (CUSUM): how much likelier it is that the author has begun to
    do half the work, at the audit since which it is likeliest.
    """
    total = 0.0
    if math.isfinite(spread):
        for row in rows[-LESS_AUDITS:]:
            total = max(0.0, total + row.step(spread))
    return total


def expectation(look: Look, looks: Sequence[Look]) -> float | None:
    """The median agreement of an author's companions in a panel; None without any."""
    others = [
        other.agreement
        for other in looks
        if other.author != look.author and other.settled and are_alike(other.age, look.age)
    ]
    return statistics.median(others) if others else None


def are_alike(age: int, other: int) -> bool:
    """Whether momenta of these ages, in payloads, are compared."""
    younger, older = sorted((age, other))
    return older <= LIKE_AGE * younger + LIKE_ROUNDS

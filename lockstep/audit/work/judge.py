"""Judges whether an author has done its work, from how well what it sent agrees with a check. Pure.

An auditor computes some of an author's work again, and counts how many signs come out as the author
sent them. Nobody agrees in all, because what an author kept back in earlier rounds is not known. So
it is compared with others of the same round:

    a panel of one round --each beside the median of its companions--> row --rows of an author--.
                                                                                                |
      far below in `FAR_AUDITS` of its last audits: other work                                  |
      somewhat below again and again (a sequential test): less work <---------------------------'

How far honest work agrees depends on the network, k, the round, the samples of an author and the
age of its soft state. So no fixed number is held against an author, only that of its companions:
authors of the same round whose soft state is about as old. Signs drawn by chance agree in one half,
so what counts is the part above it:

    ratio = (agreement - 1/2) / (expected - 1/2)        1: honest, 0: noise

`tests.benchmarks.work_audit` has measured how ratios spread (docs/results/data/work-audit.json; 400
steps of one network, from step 32 on): honest ones from 0.81 to 1.13 with a standard deviation of
0.042, those of half the work from 0.48 to 0.93, 0.74 in the mean; those of other samples, copies,
old payloads and noise below 0.6 but for one in two hundred. In a network of thirty thousand
parameters an honest author came to 0.60 for some rounds. The thresholds come from there. They stand
in the published rule (`protocol.audit.rule`), which has the last word here too, and
`tests/lockstep/audit/work/test_judge.py` counts false alarms and detections. In the first rounds
all samples have much the same gradient, and nothing is told from it.

With local steps the same holds of the movement that is computed again. Honest ratios had a standard
deviation of 0.1, half the work 0.7 in the mean, and all else came below 0.4
(docs/results/data/work-audit-local.json, `protocol.audit.thresholds`). But there an author that
trains fewer samples than its companions, or than it did before, agrees in less too. So less work is
told only beside authors of no more samples (`protocol.audit.shares`), and a round of fewer samples
than those before it is not judged beside others.

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

from lockstep.audit.work.ages import Age
from protocol.algorithms import FACTS, AlgorithmName
from protocol.audit import rule
from protocol.audit.lots import Draw
from protocol.audit.rule import FAR_AMONG, LESS_AUDITS, PANEL, SPREAD
from protocol.audit.shares import are_like
from protocol.audit.thresholds import Thresholds
from protocol.codec.evidence import (
    AUDITS_MAX,
    CHANCE,
    WHOLE,
    Companion,
    Evidence,
    WorkAudit,
)
from protocol.ids import Digest, PeerId, RunId

LIKE_AGE, LIKE_ROUNDS = 1.25, 8
"""Ages of soft state, in payloads, count as alike up to this factor and these many rounds."""

LEARNED, RECENT_KEPT = 40, 256
"""Audits of all authors from which the spread of a run is known, and the newest that count for it:
half the work is looked for from then on."""

MEDIAN_TO_SPREAD = 1.4826
"""Standard deviation of a normal distribution, in medians of distances from its mean: the median is
not moved by a few that cheat."""

SUSPECT = 5.0
"""Sum of the sequential test from which on an author is audited before others."""

ROWS_KEPT = AUDITS_MAX
"""Newest audits of one author that are kept."""

AUTHORS_KEPT = 4096
"""Authors whose audits are kept, as many as a run may have members."""

FOUND_KEPT = 16
"""Newest evidence that is shown."""


@dataclass(frozen=True, slots=True)
class PayloadAudit:
    """The audit of one payload."""

    author: PeerId
    digest: Digest
    agreement: float
    """Share of the compared signs that agree."""
    compared: int
    """Signs that were compared."""
    age: int
    """Payloads of the author, up to this one: its soft state is at most as old."""
    settled: bool = True
    """Whether the author was there long enough for its soft state to be that old."""
    samples: int = 0
    """Those of the payload."""
    even: bool = True
    """Whether these are about as many as the author trained before, or more."""


class Row(msgspec.Struct, frozen=True):
    """The audit of one payload beside what was expected of it."""

    audit: WorkAudit
    settled: bool = True
    """Whether the sequential test counts it."""


class Book(msgspec.Struct):
    """The audits of one run's authors, and what they have shown."""

    algorithm: AlgorithmName = "demo"
    """The run's."""
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

    def take_early(
        self, round: int, looks: Sequence[PayloadAudit], run_id: RunId
    ) -> list[Evidence]:
        """The audits of one of the first rounds; returns what they prove."""
        self.early |= {look.author: round for look in looks}
        return self.keep(round, [self._opposed(look, round, run_id) for look in looks])

    def take(
        self, round: int, looks: Sequence[PayloadAudit], run_id: RunId, draw: Draw
    ) -> list[Evidence]:
        """The audits of one panel, whose round `draw` has drawn; returns what they prove."""
        for look in looks:
            companions, tells_less = self._companions(look, looks)
            if not companions or not self.judges(even=look.even):
                continue
            audit = audit_of(round, look, companions, draw)
            if not self.thresholds.tells(audit.expected, audit.compared):
                self.untold += 1
                continue
            self.untold = 0
            self._add(look.author, Row(audit, look.settled and tells_less))
        return self.keep(round, [self._judged(look, round, run_id) for look in looks])

    def keep(self, round: int, verdicts: Sequence[Evidence | None]) -> list[Evidence]:
        """Remember what was proven in a round, and return it."""
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
            if rows and (rule.is_far(rows[-1].audit) or self._less(rows) >= SUSPECT)
        }

    @property
    def spread(self) -> int | None:
        """The standard deviation of honest ratios in this run, from the median of all, in
        ten-thousandths; None until it is known.
        """
        if len(self.recent) < LEARNED:
            return None
        found = math.ceil(WHOLE * MEDIAN_TO_SPREAD * statistics.median(self.recent))
        return min(WHOLE, max(SPREAD, found))

    def _less(self, rows: Sequence[Row]) -> float:
        """The sum of the sequential test for an author."""
        return 0.0 if self.spread is None else rule.less_sum(tested(rows), self.spread)

    def is_due(self, author: PeerId, round: int) -> bool:
        """Whether the author's last audit is long enough ago."""
        rows = self.rows.get(author)
        spacing = rule.SPACING_ROUNDS
        newest = rows[-1].audit.round if rows else self.early.get(author, round - spacing)
        return round - newest >= spacing

    def judges(self, *, even: bool) -> bool:
        """Whether an author is judged beside others by a round that is even (`Ages.is_even`)."""
        return even or not self.thresholds.like_samples

    def compares(self, age: Age | None, other: Age | None) -> bool:
        """Whether an author is best held against another, by what the log shows of both."""
        age, other = age or Age(), other or Age()
        is_like = not self.thresholds.like_samples or are_like(age.samples, other.samples)
        return is_like and are_alike(age.payloads, other.payloads)

    @property
    def words(self) -> str:
        """What the audit can tell, for people."""
        if self.untold:
            return (
                "cannot judge: most of the last audits agree in less than "
                f"{100 * self.thresholds.telling // WHOLE} % of signs, "
                "which is next to chance"
            )
        return f"{self.audits} payloads audited" if self.audits else "no payload audited yet"

    @property
    def thresholds(self) -> Thresholds:
        """Those of the run."""
        return FACTS[self.algorithm].thresholds

    def _companions(
        self, look: PayloadAudit, looks: Sequence[PayloadAudit]
    ) -> tuple[list[Companion], bool]:
        """Those beside which an author is judged, and whether they tell less work too: where the
        number of samples counts, only beside authors of about as many, or fewer.
        """
        if not self.thresholds.like_samples:
            return companions_of(look, looks), True
        like = [other for other in looks if are_like(look.samples, other.samples)]
        found = companions_of(look, like)
        return found or companions_of(look, looks), bool(found)

    def _opposed(self, look: PayloadAudit, round_: int, run_id: RunId) -> Evidence | None:
        """The evidence of one audit whose signs are turned; None where they are not."""
        evidence = Evidence(run_id, look.author, "other work", (audit_of(round_, look),))
        return proof(evidence, self.thresholds)

    def _add(self, author: PeerId, row: Row) -> None:
        self.audits += 1
        self.recent = [*self.recent, abs(1 - rule.ratio(row.audit))][-RECENT_KEPT:]
        # a replay that goes back comes to some rounds again
        rows = self.rows.pop(author, [])
        earlier = [each for each in rows if each.audit.round < row.audit.round]
        self.rows[author] = [*earlier, row][-ROWS_KEPT:]
        if len(self.rows) > AUTHORS_KEPT:
            del self.rows[next(iter(self.rows))]

    def _judged(self, look: PayloadAudit, round_: int, run_id: RunId) -> Evidence | None:
        author = look.author
        if opposed := self._opposed(look, round_, run_id):
            self.rows.pop(author, None)
            return opposed
        found = judged(self.rows.get(author, []), author, self.spread, run_id, self.thresholds)
        if found:
            del self.rows[author]
        return found


def audit_of(
    round_: int, look: PayloadAudit, companions: Sequence[Companion] = (), draw: Draw | None = None
) -> WorkAudit:
    """The audit of one payload beside those of its companions; beside chance without any."""
    expected = rule.expectation(companions) if companions else CHANCE
    agreement = round(WHOLE * look.agreement)
    return WorkAudit(
        round_,
        look.digest,
        agreement,
        expected,
        compared=look.compared,
        companions=tuple(companions),
        draw=draw,
    )


def judged(
    rows: Sequence[Row], author: PeerId, spread: int | None, run_id: RunId, by: Thresholds
) -> Evidence | None:
    """What the audits of one author prove; None when they do not. `spread` is that of honest
    ratios in this run, `by` are its thresholds.
    """
    far = [row.audit for row in rows[-FAR_AMONG:] if rule.is_far(row.audit)]
    if far and rows[-1].audit is far[-1]:
        found = proof(Evidence(run_id, author, "other work", tuple(far)), by)
        if found:
            return found
    less = tested(rows)
    if spread is None or not less:
        return None
    return proof(Evidence(run_id, author, "less work", tuple(less), spread), by)


def tested(rows: Sequence[Row]) -> list[WorkAudit]:
    """The audits that the sequential test looks at."""
    return [row.audit for row in rows[-LESS_AUDITS:] if row.settled]


def proof(evidence: Evidence, by: Thresholds) -> Evidence | None:
    """The evidence if it is one by the published rule."""
    return None if rule.flaw(evidence, by) else evidence


def companions_of(look: PayloadAudit, looks: Sequence[PayloadAudit]) -> list[Companion]:
    """The companions of an author in a panel beside which it is judged, in the panel's order."""
    found = [
        Companion(other.author, other.digest, round(WHOLE * other.agreement), other.compared)
        for other in looks
        if other.author != look.author and other.settled and are_alike(other.age, look.age)
    ]
    return found[: PANEL - 1]


def are_alike(age: int, other: int) -> bool:
    """Whether momenta of these ages, in payloads, are compared."""
    younger, older = sorted((age, other))
    return older <= LIKE_AGE * younger + LIKE_ROUNDS

"""Which payloads are copies, and of whom. Pure.

    earlier round, of another --it sent something else then-------------> copied
    earlier round, its own ----what is said is not said again-------------> repeated
    the header names another author or round -----------------------------> copied, at once
    the same round --nothing tells who was first--> both are audited before others
                                                  (`lockstep.audit.work`)

A payload of an earlier round cannot have been made from a later one, so the later author is the one
that copied. Nobody can be framed by it. What is left out of its round goes back into its author's
soft state and is sent again; somebody who got hold of it, and sends it in that round or the next,
makes its author look like a copier. So an author is judged by earlier payloads alone of whose
round, and of the one before it, its own were counted too, and where what it sent then is unlike.
(By the round behind the next all that was left out has gone back and been sent.) In one round
neither the order of announcements nor that of receipts tells who was first: payloads travel before
the coordinator hears of them.

Honest authors of neighbouring rounds share next to nothing (`python -m tests.benchmarks.copies`,
docs/results/data/copies.json), and how much is learned from each run. From which likeness on a
payload is a copy, and how many copies are proof, the published rule says (`protocol.audit.rule`).
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from lockstep.audit.copies.likeness import Sent
from protocol.audit import rule
from protocol.audit.rule import AMONG_ROUNDS, EARLY_ROUNDS, EXACT
from protocol.codec.evidence import AUDITS_MAX, WHOLE, CopySource, Evidence, WorkAudit
from protocol.ids import PeerId, RunId

OTHER: Final = 0.2
"""Likeness below which what an author sent itself is other than the source of its copy."""

LEARNED, USUAL_KEPT = 16, 256
"""Pairs from which a run's usual likeness is known, and the newest that count for it."""

AUTHORS_KEPT: Final = 4096
"""Authors whose copies are remembered, as many as a run may have members."""

PAIRS_KEPT: Final = 64
"""Pairs of authors of like payloads that are remembered, the newest."""

FOUND_KEPT: Final = 16
"""Newest evidence that is shown."""


class Copy(msgspec.Struct, frozen=True):
    """One payload that is a copy."""

    sent: Sent
    source: Sent
    likeness: float
    usual: float
    """How far honest payloads are alike in this run; 1 where that is not known yet."""

    @property
    def is_foreign(self) -> bool:
        """Whether its header names another author or round."""
        return self.sent.digest == self.source.digest


class Pair(msgspec.Struct):
    """Two authors whose payloads of one round were alike."""

    one: PeerId
    other: PeerId
    rounds: int = 0
    newest_round: int = -1
    likeness: float = 0.0
    """The newest one's."""


class CopyBook(msgspec.Struct):
    """What the payloads of one run have shown."""

    payloads: int = 0
    """Number of those that were compared."""
    newest_round: int = -1
    copies: dict[PeerId, list[Copy]] = {}
    """By author, oldest first; without those that have become evidence."""
    pairs: list[Pair] = []
    found: list[Evidence] = []
    """The newest evidence, oldest first."""
    verdicts: int = 0
    """Number of all evidence."""
    recent: list[float] = []
    """Likeness of the newest payloads and those of the round before them."""

    def learn(self, round: int, payloads: int, usual: Sequence[float]) -> None:
        """The payloads of a round were compared with those of the round before it."""
        if round > self.newest_round:  # not when a replay goes back
            self.payloads += payloads
            self.newest_round = round
        self.recent = [*self.recent, *usual][-USUAL_KEPT:]

    @property
    def usual(self) -> float:
        """How far honest payloads of neighbouring rounds are alike; infinite until it is known."""
        return statistics.median(self.recent) if len(self.recent) >= LEARNED else math.inf

    @property
    def threshold(self) -> float:
        """Likeness, in ten-thousandths, from which on a payload is a copy; infinite until it is
        known.
        """
        return self._least(EARLY_ROUNDS) if math.isfinite(self.usual) else math.inf

    def reaches(self, round: int, likeness: float) -> bool:
        """Whether a payload of a round that is so like another is a copy."""
        least = self._least(round) if round < EARLY_ROUNDS else self.threshold
        return in_whole(likeness) >= least

    def _least(self, round: int) -> int:
        return rule.least_likeness(round, in_whole(self.usual))

    def go_back(self, round: int) -> None:
        """A replay comes to a round again: what was seen from there on may not be so."""
        for author, rows in list(self.copies.items()):
            self.copies[author] = [each for each in rows if each.sent.round < round]

    def alike(self, one: Sent, other: Sent, likeness: float) -> set[PeerId]:
        """Two payloads of a round are alike; the authors that this makes suspects."""
        if not self.reaches(one.round, likeness):
            return set()
        first, second = sorted((one.author, other.author))
        known = [pair for pair in self.pairs if (pair.one, pair.other) == (first, second)]
        pair = known[0] if known else Pair(first, second)
        if one.round > pair.newest_round:
            pair.rounds, pair.newest_round, pair.likeness = pair.rounds + 1, one.round, likeness
        self.pairs = [*(each for each in self.pairs if each is not pair), pair][-PAIRS_KEPT:]
        return {first, second}

    def take(self, copy: Copy, run_id: RunId) -> Evidence | None:
        """A payload is a copy; returns what is proven by now."""
        author, round = copy.sent.author, copy.sent.round
        # a replay that goes back comes to some rounds again
        rows = [each for each in self.copies.pop(author, []) if each.sent.round < round]
        self.copies[author] = [*rows, copy][-AUDITS_MAX:]
        if len(self.copies) > AUTHORS_KEPT:
            del self.copies[next(iter(self.copies))]
        near = [each for each in self.copies[author] if round - each.sent.round < AMONG_ROUNDS]
        evidence = Evidence(run_id, author, "copied work", tuple(map(_audit, near)))
        if rule.copies_flaw(evidence.audits):
            return None
        del self.copies[author]
        self.found = [*self.found, evidence][-FOUND_KEPT:]
        self.verdicts += 1
        return evidence

    @property
    def words(self) -> str:
        """What the search has seen, for people."""
        if not self.payloads:
            return "no payload compared yet"
        if self.threshold >= EXACT:
            return (
                f"{self.payloads} payloads compared; most are so much alike that only exact copies "
                "are told"
                if math.isfinite(self.threshold)
                else f"{self.payloads} payloads compared; too few to tell copies"
            )
        return f"{self.payloads} payloads compared"


def is_proof(sent: Sent, source: Sent, likeness: float, own_then: float | None) -> bool:
    """Whether a payload that is like that of an earlier round was copied from it. `own_then` is the
    likeness of that and what the author itself sent then; None where nothing of it was counted, in
    that round or in the one before. All that an author sends leaves its soft state, so its own
    earlier payload comes back only where it copies that.
    """
    if source.round >= sent.round or (sent.round < EARLY_ROUNDS and in_whole(likeness) < EXACT):
        return False
    if source.author == sent.author:
        return True
    return own_then is not None and own_then < OTHER


def foreign(sent: Sent, author: PeerId, round: int) -> Copy:
    """The copy that a payload is whose header names this author and round."""
    return Copy(sent, Sent(round, author, sent.digest), 1.0, 0.0)


def _audit(copy: Copy) -> WorkAudit:
    source = copy.source
    return WorkAudit(
        copy.sent.round,
        copy.sent.digest,
        in_whole(copy.likeness),
        in_whole(copy.usual),
        CopySource(source.author, source.round, source.digest),
    )


def in_whole(share: float) -> int:
    """A share in ten-thousandths, at most that of all."""
    return round(WHOLE * min(1.0, share))

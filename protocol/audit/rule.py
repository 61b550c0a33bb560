"""What evidence against an author must show of itself before the author's standing goes down. Pure.

    an auditor that judges ----------------.
    the coordinator that acts -------------+--> flaw(evidence): one sentence, or nothing: it proves
    `lockstep verify` that computes again -'

The auditor's word is not enough: its evidence has the numbers, and whoever reads it applies the
same thresholds. So a named auditor can take nobody's standing with numbers that prove nothing,
be they true. Whether they are true is another question, which `lockstep verify --work` answers:
each number is the agreement of a payload of the log. What is expected of an author is the median
of its companions, which the evidence names, so that nobody makes it up. And an auditor does not
choose among many audits those that happen to be low: its lots draw the rounds
(`protocol.audit.lots`).

All shares are in ten-thousandths, and what is not whole is made of square roots and divisions
alone, so that the same evidence has the same verdict on every machine. Where the thresholds of work
come from stands in `lockstep.audit.work.judge`, and of copies in `lockstep.audit.copies.judge`;
those that differ between algorithms are in `protocol.audit.thresholds`.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Final

from protocol.audit.lots import is_own
from protocol.audit.thresholds import Thresholds
from protocol.codec.commits import Commit
from protocol.codec.evidence import (
    CHANCE,
    COMPANIONS_MAX,
    WHOLE,
    Companion,
    CopySource,
    Evidence,
    WorkAudit,
)
from protocol.ids import Digest, PeerId, short
from protocol.runfile import RunSpec

PANEL: Final = 1 + COMPANIONS_MAX
"""Authors of a panel, at least as many as make a median that one of them cannot move."""

EARLY_ROUNDS: Final = 32
"""First rounds of a run, in which all samples have much the same gradient: nobody is judged beside
others, and only exact copies are told."""

SPACING_ROUNDS: Final = 8
"""Rounds from one audit of an author to the next, at least, as measured: the signs of a few
rounds are much the same, and its dips are one dip."""

FAR_AUDITS: Final = 3
"""Audits far below, among the last `FAR_AMONG`, that make a verdict."""

FAR_AMONG: Final = 4

OPPOSED_COMPARED: Final = 256
"""Fewest signs of which that is said."""

SPREAD: Final = 500
"""Standard deviation of the ratio of honest work, counting apart, where a run shows no larger one:
small networks do."""

LESS: Final = 0.2
"""What an author lacks in ratio that does somewhat more than half its work."""

STEP_MAX: Final = 3.0
"""Most that one audit adds to the sequential test, or takes away: a verdict needs five, at least,
because the tails of the measured ratios are heavier than those of the normal distribution."""

LIMIT: Final = 13.0
"""Sum of the sequential test from which on it is a verdict."""

LESS_AUDITS: Final = 20
"""Audits that the sequential test looks back on."""

COPY: Final = 4000
"""Likeness from which on a payload is a copy, where honest ones share little."""

EXACT: Final = 9500
"""Likeness from which on it is one in any run and round."""

TIMES_USUAL: Final = 4
"""Times the likeness of honest payloads that a copy's is at least, up to `EXACT`."""

COPIES: Final = 3
"""Copies that make a verdict, among the payloads of `AMONG_ROUNDS` rounds."""

AMONG_ROUNDS: Final = 256

OPPOSED_ODDS: Final = 40
"""Square of the standard deviations of chance by which turned signs lie below it, at least: that is
once in ten thousand million audits."""

CROSS_ODDS: Final = 41
"""Square of the standard deviations of chance by which a copy follows the gradient of its source's
author and not its own: once in ten thousand million, as for turned signs. Honest payloads followed
their own in 68 to 100 % of the places where another's differs (docs/results/attack.md)."""

BITS_OF_A_BYTE: Final = 8
"""Signs that one byte of a payload holds, at most."""


def flaw(evidence: Evidence, by: Thresholds) -> str:
    """Why the evidence's own numbers prove nothing, in one sentence; empty when they prove what it
    finds. `by` are the thresholds of the run. The log is not asked (`unfounded`).
    """
    match evidence.finding:
        case "copied work":
            return copies_flaw(evidence.audits) or _cross_flaw(evidence.audits, by)
        case "less work":
            return _beside_flaw(evidence.audits, by) or _less_flaw(evidence)
        case "other work" if _says_opposed(evidence):
            return _opposed_flaw(evidence.audits[0], by)
        case "other work":
            return _beside_flaw(evidence.audits, by) or _far_flaw(evidence.audits)


# ---- the run and its log


def misplaced(evidence: Evidence, spec: RunSpec) -> str:
    """Why nobody can tell in a run what the evidence says; empty where one can."""
    if not spec.algorithm.facts.replicas_equal:
        return (
            "expected evidence in a run whose nodes have one model, this one is of "
            f"{spec.algorithm.name}"
        )
    worked = [audit for audit in evidence.audits if audit.source is None or audit.cross]
    if not worked:
        return ""
    if not spec.data.manifest_sha256:
        return (
            "expected evidence about work on the run's own data, which its run file does not name"
        )
    for audit in worked:
        if spec.rounds.overlap_at(audit.round):
            return (
                "expected evidence about rounds that wait for the decision before them, got round "
                f"{audit.round}, which does not"
            )
    return ""


def unfounded(author: PeerId, audit: WorkAudit, commit: Commit | None) -> str:
    """Why an audit is not of the payloads that `commit`, which is that of its round, names; empty
    when it is. None: the log has no such round.
    """
    differ = audit.cross.differ if audit.cross else 0
    named = [(author, audit.digest, max(audit.compared, differ))]
    named += [(each.author, each.digest, each.compared) for each in audit.companions]
    entries = {(entry.author, entry.digest): entry for entry in commit.entries} if commit else {}
    for peer, digest, compared in named:
        entry = entries.get((peer, digest))
        if entry is None:
            return _uncommitted(audit.round, peer, digest)
        if compared > BITS_OF_A_BYTE * entry.payload_bytes:
            return (
                f"expected no more signs than a payload of {entry.payload_bytes} bytes holds, got "
                f"{compared} of {short(peer)} in round {audit.round}"
            )
    return ""


def sourceless(source: CopySource, commit: Commit | None) -> str:
    """Why `commit`, which is that of the source's round, does not name it; empty when it does."""
    entries = [(entry.author, entry.digest) for entry in commit.entries] if commit else []
    is_there = (source.author, source.digest) in entries
    return "" if is_there else _uncommitted(source.round, source.author, source.digest)


def undrawn(evidence: Evidence, audit: WorkAudit, public_key: bytes, commit: Commit | None) -> str:
    """Why the round of an audit, which `commit` is, was not for the auditor with this raw key to
    choose; empty where its lot has drawn it, and for what needs none: an audit of turned signs and
    a copy are proof whoever chose them.
    """
    if audit.draw is None or commit is None:
        return ""  # by its own numbers it needs none (`flaw`), or no such round is there
    if not is_own(public_key, evidence.run_id, audit.round, audit.draw.lot):
        return f"expected the auditor's own lot of round {audit.round}, got another signature"
    authors = len(commit.entries)
    if not audit.draw.is_drawn(authors, panel=PANEL):
        chance = audit.draw.chance(authors, panel=PANEL)
        return (
            f"expected rounds that the auditor's lots draw, one in {WHOLE / max(1, chance):.0f} of "
            f"{authors} authors, got round {audit.round}, which they do not"
        )
    return ""


def _uncommitted(round: int, author: PeerId, digest: Digest) -> str:
    return (
        f"expected evidence about committed payloads, got one of {short(author)} in round {round} "
        f"that no commit names: {digest.hex()[:16]}"
    )


# ---- work


def is_opposed(audit: WorkAudit, by: Thresholds) -> bool:
    """Whether the signs of a payload are turned."""
    against = 2 * (CHANCE - audit.agreement)
    is_sure = against * against * audit.compared >= OPPOSED_ODDS * WHOLE * WHOLE
    return audit.agreement < by.opposed and audit.compared >= OPPOSED_COMPARED and is_sure


def is_far(audit: WorkAudit) -> bool:
    """Whether a payload is far below what is expected: less than half of it above chance, twelve
    standard deviations of the measured honest work.
    """
    return 2 * (audit.agreement - CHANCE) < audit.expected - CHANCE


def ratio(audit: WorkAudit) -> float:
    """The part above chance, of that which is expected."""
    return (audit.agreement - CHANCE) / (audit.expected - CHANCE)


def step(audit: WorkAudit, spread: int) -> float:
    """The logarithm of how much likelier half the work is than all of it, bounded, where ratios
    of honest work have this standard deviation, in ten-thousandths.
    """
    agreement, above = audit.agreement / WHOLE, (audit.expected - CHANCE) / WHOLE
    counted = 2 * agreement * (1 - agreement) / max(1, audit.compared)
    least = math.sqrt((SPREAD / WHOLE) ** 2 + counted / (above * above))
    scale = max(spread / WHOLE, least)
    shift = LESS / scale
    found = shift * ((1 - ratio(audit)) / scale - shift / 2)
    return max(-STEP_MAX, min(STEP_MAX, found))


def less_sum(audits: Sequence[WorkAudit], spread: int) -> float:
    """The sum of the sequential test (CUSUM): how much likelier it is that the author has begun to
    do half the work, at the audit since which it is likeliest.
    """
    total = 0.0
    for audit in audits[-LESS_AUDITS:]:
        total = max(0.0, total + step(audit, spread))
    return total


def expectation(companions: Sequence[Companion]) -> int:
    """The median agreement of companions, rounded down; there must be one."""
    return int(statistics.median(each.agreement for each in companions))


def _says_opposed(evidence: Evidence) -> bool:
    return len(evidence.audits) == 1 and evidence.audits[0].expected == CHANCE


def _opposed_flaw(audit: WorkAudit, by: Thresholds) -> str:
    if is_opposed(audit, by) and not audit.companions:
        return ""
    return (
        f"expected turned signs, in less than {_percent(by.opposed)} % of at least "
        f"{OPPOSED_COMPARED} signs those of what was computed again, got "
        f"{_percent(audit.agreement)} % of {audit.compared} in round {audit.round}"
    )


def _beside_flaw(audits: Sequence[WorkAudit], by: Thresholds) -> str:
    """Why audits cannot be held against an author beside others."""
    for audit in audits:
        where = f"in round {audit.round}"
        if audit.round < EARLY_ROUNDS:
            return f"expected audits from round {EARLY_ROUNDS} on beside others, got one {where}"
        if not audit.companions or not audit.compared:
            return (
                f"expected the companions and the number of signs of each audit, got none {where}"
            )
        if audit.draw is None:
            return f"expected the lot of each audit, got none {where}"
        if not all(each.compared for each in audit.companions):
            return f"expected companions of whom signs were compared, got one of none {where}"
        if audit.expected != (median := expectation(audit.companions)):
            return (
                f"expected the median of the companions, {_percent(median)} %, as what honest work "
                f"agrees in, got {_percent(audit.expected)} % {where}"
            )
        if not by.tells(audit.expected, audit.compared):
            return (
                f"expected companions that agree in {_percent(by.telling)} % of signs or more, got "
                f"{_percent(audit.expected)} % of {audit.compared} {where}, which is next to chance"
            )
    for before, after in itertools.pairwise(audits):
        if after.round - before.round < SPACING_ROUNDS:
            return (
                f"expected audits of one author {SPACING_ROUNDS} rounds apart or more, got rounds "
                f"{before.round} and {after.round}"
            )
    return ""


def _far_flaw(audits: Sequence[WorkAudit]) -> str:
    if not FAR_AUDITS <= len(audits) <= FAR_AMONG:
        return (
            f"expected {FAR_AUDITS} audits far below what is expected, of {FAR_AMONG}, got "
            f"{len(audits)}"
        )
    for audit in audits:
        if not is_far(audit):
            return (
                "expected less than half of what companions agree in above chance, got "
                f"{_percent(audit.agreement)} % beside {_percent(audit.expected)} % in round "
                f"{audit.round}"
            )
    return ""


def _less_flaw(evidence: Evidence) -> str:
    audits, spread = evidence.audits, evidence.spread
    if spread < SPREAD:
        return (
            f"expected honest work to spread by {_percent(SPREAD)} % or more, got a spread of "
            f"{_percent(spread)} %"
        )
    if len(audits) > LESS_AUDITS:
        return f"expected the last {LESS_AUDITS} audits at most, got {len(audits)}"
    if (total := less_sum(audits, spread)) < LIMIT:
        return (
            f"expected a sum of {LIMIT:g} or more by the sequential test of {len(audits)} audits, "
            f"got {total:.1f}"
        )
    return ""


# ---- copies


def least_likeness(round: int, usual: int) -> int:
    """Likeness from which on a payload of a round is a copy, where honest ones share `usual`."""
    return EXACT if round < EARLY_ROUNDS else min(EXACT, max(COPY, TIMES_USUAL * usual))


def is_foreign(audit: WorkAudit) -> bool:
    """Whether the header of the payload names another author or round."""
    return audit.source is not None and audit.source.digest == audit.digest


def is_crossed(audit: WorkAudit, by: Thresholds) -> bool:
    """Whether a payload follows the gradient of another author of its round, and not its own."""
    if audit.cross is None:
        return False
    against = audit.cross.differ - 2 * audit.cross.own
    odds = CROSS_ODDS * (by.early_cross_times if audit.round < EARLY_ROUNDS else 1)
    return against > 0 and against * against >= odds * audit.cross.differ


def copies_flaw(audits: Sequence[WorkAudit]) -> str:
    """Why copies are not like enough, too few or too far apart, in one sentence; empty when they
    are not. It is the same for all algorithms.
    """
    for audit in audits:
        least = WHOLE if is_foreign(audit) else least_likeness(audit.round, audit.expected)
        if audit.agreement < least:
            return (
                f"expected a likeness of {_percent(least)} % or more, got "
                f"{_percent(audit.agreement)} % in round {audit.round}"
            )
    if len(audits) < COPIES and not any(is_foreign(each) or each.cross for each in audits):
        return f"expected {COPIES} copies or the very bytes of another, got {len(audits)}"
    if (rounds := audits[-1].round - audits[0].round) >= AMONG_ROUNDS:
        return f"expected copies within {AMONG_ROUNDS} rounds, got {rounds} rounds between them"
    return ""


def _cross_flaw(audits: Sequence[WorkAudit], by: Thresholds) -> str:
    for audit in audits:
        if audit.cross and not is_crossed(audit, by):
            return (
                "expected a copy that follows the gradient of its source's author against its own, "
                f"got {audit.cross.own} of {audit.cross.differ} signs of its own in round "
                f"{audit.round}"
            )
    return ""


def _percent(share: int) -> str:
    return f"{100 * share / WHOLE:g}"

"""Which authors are held against each other, by the samples that they trained. Pure.

With local steps an author that makes more steps in a round agrees in more signs: its newest steps
are a larger part of what it sends. So nobody is told to have done less work beside authors of more
samples. It may be held against slower ones, beside which it looks better than it is.
"""

from collections.abc import Mapping
from typing import Final

from protocol.audit.thresholds import Thresholds
from protocol.codec.commits import Commit
from protocol.codec.evidence import Evidence, WorkAudit
from protocol.ids import PeerId, short

SAMPLES_FACTOR: Final = (5, 4)
"""Samples of a companion, at most, as a fraction of the author's."""


def are_like(samples: int, others: int) -> bool:
    """Whether an author of this many samples may be held against one of that many."""
    most, of = SAMPLES_FACTOR
    return of * others <= most * samples


def unlike(evidence: Evidence, audit: WorkAudit, commit: Commit | None, by: Thresholds) -> str:
    """Why an audit says nothing of less work, by the samples in `commit`, which is that of its
    round; empty where it does, and for other findings.
    """
    if evidence.finding != "less work" or commit is None or not by.like_samples:
        return ""
    samples: Mapping[PeerId, int] = {entry.author: entry.samples for entry in commit.entries}
    own = samples.get(evidence.author, 0)
    for each in audit.companions:
        if not are_like(own, found := samples.get(each.author, 0)):
            return (
                f"expected companions of at most {SAMPLES_FACTOR[0]} samples for "
                f"{SAMPLES_FACTOR[1]} of {short(evidence.author)}, which trained {own} in round "
                f"{audit.round}, got {short(each.author)} with {found}"
            )
    return ""

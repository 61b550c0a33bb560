"""Which of two like payloads of one round is the copy. Pure.

    payload --its signs, where the gradients of both authors differ--> follows its own: the origin
                                                                  '--> follows the other's: the copy

Nothing in the log tells who was first in a round (`lockstep.audit.copies.judge`). But an author
sends the signs of what it did not say yet, of which the work on its own samples is a part, and a
copy has those of somebody else's. Where the two gradients have different signs, an honest payload
has mostly those of its own: 68 to 100 of 100, in a network of 0.1 million parameters from the first
round on (docs/results/attack.md). That is held against chance, so one audit of both is enough, and
nobody brings it about for another: nobody makes another's payload.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.audit.copies.judge import in_whole
from lockstep.audit.copies.likeness import Sent
from protocol.audit import rule
from protocol.audit.thresholds import Thresholds
from protocol.codec.evidence import CopySource, Cross, Evidence, WorkAudit
from protocol.ids import PeerId, RunId

Followed = Mapping[tuple[PeerId, PeerId], npt.NDArray[np.int8]]
"""By the author of a gradient and that of a payload, for each place of the payload: 1 where it has
the gradient's sign, -1 where it has the other one, 0 where there is none."""


@dataclass(frozen=True, slots=True)
class Twins:
    """Two payloads of one round that are alike."""

    one: Sent
    other: Sent
    likeness: float
    usual: float
    """How far honest payloads are alike in this run; 1 where that is not known yet."""


def crossing(own: npt.NDArray[np.int8], other: npt.NDArray[np.int8]) -> Cross:
    """The gradient that a payload follows, where that of its author and another's differ."""
    differ = own * other < 0
    return Cross(int(np.count_nonzero(differ)), int(np.count_nonzero(differ & (own > 0))))


def copies(
    twins: Iterable[Twins], followed: Followed, run_id: RunId, by: Thresholds
) -> list[Evidence]:
    """The evidence against those of like payloads that are copies, one for each author. `by` are
    the thresholds of the run.
    """
    found: dict[PeerId, Evidence] = {}
    for pair in twins:
        for sent, source in ((pair.one, pair.other), (pair.other, pair.one)):
            own = followed.get((sent.author, sent.author))
            other = followed.get((source.author, sent.author))
            if own is None or other is None or sent.author in found:
                continue
            audit = WorkAudit(
                sent.round,
                sent.digest,
                in_whole(pair.likeness),
                in_whole(pair.usual),
                CopySource(source.author, source.round, source.digest),
                cross=crossing(own, other),
            )
            evidence = Evidence(run_id, sent.author, "copied work", (audit,))
            if not rule.flaw(evidence, by):
                found[sent.author] = evidence
    return list(found.values())

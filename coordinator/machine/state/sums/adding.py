"""The sums of a round whose set of authors is fixed: what summers have signed, by range.

              two are asked        two alike
    (range) ---------------> asked ---------> settled: the result
                             |   ^                |
     gone, late, or unlike   |   | the next       | another digest, signed: a dispute
                             '---'                v
                             |
                             '--- ASKED_MAX, or nobody left ---> nobody's: nothing moves there

Rules
- A range is settled by the first result that two nodes, asked for it, have signed with one length.
- What a node says late counts as long as the range is open.
- Digests that differ are a dispute, with all that was signed: whoever has the parts adds again and
  finds who signed a wrong sum. Nobody is judged by number here, so two that lie together cannot
  frame an honest one.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from protocol.ids import Digest, PeerId, RunId
from protocol.sums.asked import Question, SumAuthor
from protocol.sums.signed import SumSigned

SIGNED_MAX: Final = 2
"""Digests of one node for one range that are kept: the second one proves that it lies."""


@dataclass(frozen=True, slots=True)
class SummerAnswer:
    """What a node has signed for a range, and the length that it says."""

    peer: PeerId
    digest: Digest
    result_bytes: int
    public_key: bytes = b""
    signature: bytes = b""
    """Under the question and the digest (`protocol.sums.asked`)."""


@dataclass(slots=True)
class RangeSums:
    """What nodes have signed for one range."""

    silent: tuple[int, ...]
    """Authors, by their places, that have no part in it."""

    signed: list[SummerAnswer] = field(default_factory=list)

    is_open: bool = True
    """Whether a result may still be settled."""

    settled: SummerAnswer | None = None
    """The first of those that agreed."""

    def said(self, peer: PeerId) -> list[Digest]:
        """The digests that a node has signed."""
        return [each.digest for each in self.signed if each.peer == peer]

    def signers(self) -> tuple[PeerId, ...]:
        """The nodes that have signed the settled result, sorted."""
        kept = self.settled
        return tuple(
            sorted(each.peer for each in self.signed if kept and _result(each) == _result(kept))
        )

    def is_outvoted(self, peer: PeerId) -> bool:
        """Whether a result is settled that a node has not signed."""
        return self.settled is not None and peer not in self.signers()

    def most(self) -> int:
        """Nodes that have signed the same result."""
        return max(Counter(map(_result, self.signed)).values(), default=0)

    def settle(self) -> None:
        """Close the range, if two nodes have signed one result."""
        counts = Counter(map(_result, self.signed))
        agreed = (each for each in self.signed if counts[_result(each)] > 1)
        if self.is_open and (kept := next(agreed, None)):
            self.settled, self.is_open = kept, False


@dataclass(slots=True)
class Adding:
    """The question that summers were asked, and their answers."""

    learning_rate_bits: int
    authors: tuple[SumAuthor, ...]
    """The fixed set, sorted."""
    fixed_ms: int
    """Time at which it was fixed."""
    by_range: list[RangeSums]

    @property
    def is_done(self) -> bool:
        """Whether every range is settled, or nobody's."""
        return not any(each.is_open for each in self.by_range)

    def question(self, run_id: RunId, round: int, number: int) -> Question:
        """What the summers of a range were asked."""
        return Question(
            run_id,
            round,
            self.learning_rate_bits,
            self.authors,
            len(self.by_range),
            number,
            self.by_range[number].silent,
        )

    def signed(self) -> tuple[SumSigned, ...]:
        """All that was signed, by range, in the order of the nodes and digests."""
        return tuple(
            SumSigned(
                number,
                each.digest,
                each.public_key,
                each.signature,
                () if found.settled else found.silent,
            )
            for number, found in enumerate(self.by_range)
            for each in sorted(found.signed, key=lambda each: (each.peer, each.digest))
        )

    def is_news(self, number: int, said: SummerAnswer) -> bool:
        """Whether a digest is a further one of this node."""
        digests = self.by_range[number].said(said.peer)
        return said.digest not in digests and len(digests) < SIGNED_MAX

    def take(self, number: int, said: SummerAnswer) -> tuple[tuple[PeerId, Digest], ...]:
        """Note a digest that is news; returns all that was signed, if digests differ."""
        found = self.by_range[number]
        found.signed.append(said)
        found.settle()
        unlike = len({each.digest for each in found.signed}) > 1
        return tuple((each.peer, each.digest) for each in found.signed) if unlike else ()


def _result(signed: SummerAnswer) -> tuple[Digest, int]:
    return signed.digest, signed.result_bytes

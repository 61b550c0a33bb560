"""Judges what was pulled, or found in the log, and notes what passed."""

from collections.abc import Callable
from functools import partial

from node.gossip.part_book import PartBook
from node.gossip.payload_check import PayloadCheck, Verdict
from protocol.codec.payload_header import Blob
from protocol.ids import Digest
from protocol.sums.plan import SumPlan


class PayloadJudge:
    """The judge of one swarm; all methods belong to its event loop. `plan` is that of a round;
    `part_held(round, root)` is called when a part of a payload has passed.
    """

    def __init__(
        self,
        check: PayloadCheck,
        book: PartBook,
        plan: Callable[[int], SumPlan | None],
        part_held: Callable[[int, Digest], None],
    ) -> None:
        self._check, self._book = check, book
        self._plan, self._part_held = plan, part_held

    def begin(self, round: int, digest: Digest, ranges: int) -> Callable[[Blob], Verdict]:
        """The check of a payload, or of a part for these `ranges`, which may run in any thread. It
        raises `RemoteProtocolError` as `PayloadCheck` does.
        """
        plan = self._plan(round)
        if not (ranges and plan):
            return lambda payload: Verdict(self._check.check(round, payload))
        claims = self._book.claims(round, digest)
        return partial(self._check.check_part, round, count=plan.ranges, claims=claims)

    def passed(self, round: int, digest: Digest, verdict: Verdict) -> None:
        """It is in the log, and passed."""
        if not verdict.ranges:
            self._check.passed(digest, verdict.author)
        elif root := self._book.hold(round, digest, verdict.author, verdict.ranges):
            self._part_held(round, root)

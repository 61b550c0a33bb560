"""Adds the ranges of a run again. Whoever has the parts finds the same result, or those who signed
another one were wrong.
"""

import asyncio

from lockstep.audit.differences import Difference
from lockstep.audit.records import RunRecord
from lockstep.audit.sums.parts import PayloadPart, WholePayloads
from protocol.codec.commits import Commit, RangeSum
from protocol.codec.payload import PayloadShape
from protocol.errors import DivergedError, StorageError, UnavailableError
from protocol.ids import Digest, PeerId
from protocol.sums.adding import answer_to
from protocol.sums.asked import Question, question_behind


class SumsCheck:
    """The check of all sums in one walk through a record."""

    def __init__(self, record: RunRecord, whole: WholePayloads, shape: PayloadShape) -> None:
        self._record, self._whole, self._shape = record, whole, shape
        self.added = 0
        """Ranges that were added again, with the same result."""
        self.unadded = 0
        """Ranges of which a part is not there."""

    async def before(self, commit: Commit, voids: frozenset[Digest]) -> None:
        """Add the ranges of a commit again; `Difference` for one whose result is another."""
        if commit.sums is None:
            return
        listed = list[list[PayloadPart]]()
        for entry in commit.entries:
            try:
                listed.append(await self._whole.parts(commit.round, entry, commit.sums.ranges))
            except (UnavailableError, StorageError, DivergedError):
                self.unadded += len(commit.sums.results)
                return
        for result in commit.sums.results:
            if result.digest not in voids:
                await self._add(
                    commit, question_behind(commit, commit.sums, result), result, listed
                )

    async def _add(
        self,
        commit: Commit,
        question: Question,
        result: RangeSum,
        listed: list[list[PayloadPart]],
    ) -> None:
        """Add one range again, from the parts that the lists of all entries name."""
        given = dict[PeerId, bytes]()
        for place, (entry, parts) in enumerate(zip(commit.entries, listed, strict=True)):
            if place in result.silent:
                continue
            given[entry.author] = b""  # what an author says whose root names no list
            if parts:
                try:
                    said = await self._whole.part(commit.round, parts[result.number])
                except (UnavailableError, StorageError, DivergedError):
                    self.unadded += 1
                    return
                given[entry.author] = said
        algorithm = self._record.info.spec.algorithm
        found = await asyncio.to_thread(answer_to, question, given, self._shape, algorithm)
        if found.digest != result.digest:
            raise Difference(
                commit.round,
                f"{result.title} is {result.digest.hex()[:16]} in the commit, the parts of its "
                f"authors add up to {found.digest.hex()[:16]}",
            )
        self.added += 1

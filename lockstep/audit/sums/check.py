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
from protocol.schedule import float32_value
from protocol.sums.adding import Author, result_of
from protocol.sums.movements import code_max_of
from protocol.sums.parts import shape_of
from protocol.sums.ranges import ranges_of


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
                await self._add(commit, commit.sums.ranges, result, listed)

    async def _add(
        self, commit: Commit, ranges: int, result: RangeSum, listed: list[list[PayloadPart]]
    ) -> None:
        """Add one range again, from the parts that the lists of all entries name."""
        given, silent = dict[PeerId, bytes](), set[PeerId]()
        for place, (entry, parts) in enumerate(zip(commit.entries, listed, strict=True)):
            if place in result.silent or not parts:
                silent.add(entry.author)
                continue
            try:
                blob = await self._record.payload(commit.round, parts[result.number])
            except (UnavailableError, StorageError, DivergedError):
                self.unadded += 1
                return
            given[entry.author] = blob
        rate, algorithm = float32_value(commit.learning_rate_bits), self._record.info.spec.algorithm
        authors = [
            Author(each.author, each.weight, code_max_of(each.weight, rate, algorithm))
            for each in commit.entries
        ]
        shape = shape_of(self._shape, ranges_of(self._shape.chunks, ranges)[result.number])
        about = self._record.info.run_id, commit.round, authors, given, shape
        found = await asyncio.to_thread(result_of, *about, silent=silent)
        if found.digest != result.digest:
            raise Difference(
                commit.round,
                f"{result.title} is {result.digest.hex()[:16]} in the commit, the parts of its "
                f"authors add up to {found.digest.hex()[:16]}",
            )
        self.added += 1

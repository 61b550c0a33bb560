"""Adds a range of a round again, from the parts that its authors' lists name."""

import asyncio

from lockstep.audit.sums.parts import PayloadPart, WholePayloads
from protocol.codec.commits import Commit
from protocol.codec.payload import PayloadShape
from protocol.errors import DivergedError, StorageError, UnavailableError
from protocol.ids import Digest, PeerId
from protocol.runfile import AlgorithmSpec
from protocol.sums.adding import answer_to
from protocol.sums.asked import Question

MISSING = UnavailableError, StorageError, DivergedError
"""What says that some bytes are not there."""


class RangeAdder:
    """Adds ranges of a run again. The lists of the round at which it was last are remembered."""

    def __init__(self, whole: WholePayloads, shape: PayloadShape, algorithm: AlgorithmSpec) -> None:
        self._whole, self._shape, self._algorithm = whole, shape, algorithm
        self._round = -1
        self._lists: list[list[PayloadPart]] | None = None

    async def add(self, commit: Commit, question: Question) -> Digest | None:
        """The digest of what summers were to find; None where a part or a list is not there."""
        if self._round != commit.round:
            self._lists, self._round = await self._listed(commit, question.ranges), commit.round
        if self._lists is None:
            return None
        given = dict[PeerId, bytes]()
        for place, (author, parts) in enumerate(zip(question.authors, self._lists, strict=True)):
            if place in question.silent:
                continue
            given[author.author] = b""  # what an author says whose root names no list
            if parts:
                try:
                    said = await self._whole.part(commit.round, parts[question.number])
                except MISSING:
                    return None
                given[author.author] = said
        asked = question, given, self._shape, self._algorithm
        return (await asyncio.to_thread(answer_to, *asked)).digest

    async def _listed(self, commit: Commit, ranges: int) -> list[list[PayloadPart]] | None:
        try:
            return [
                await self._whole.parts(commit.round, entry, ranges) for entry in commit.entries
            ]
        except MISSING:
            return None

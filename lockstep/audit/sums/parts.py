"""The payloads of authors, whole: what an entry of a commit names or, in a round with sums, the
parts in the list that it names, joined.

    entry --digest--> payload
    entry --root--> list of parts --digests--> parts --joined--> payload

A part in whose range the commit says that its author is silent was not added, and is not asked for.
So is one of a range that nobody added. The joined payload says there nothing, as the step has it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from lockstep.audit.records import Named
from protocol.codec.commits import Commit, Entry
from protocol.codec.payload import Header, PayloadShape
from protocol.errors import DivergedError, RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, RunId, short
from protocol.sums.part_list import open_list
from protocol.sums.parts import heard

AT_ONCE = 8
"""Parts of one payload that are fetched at a time."""

CUTS_KEPT = 65_536
"""Rounds of which it is known how their payloads were cut, the newest."""

Read = Callable[[int, Named], Awaitable[bytes]]
"""Reads the bytes of a round that are named, as `lockstep.audit.records.RunRecord.payload` does."""


@dataclass(frozen=True, slots=True)
class PayloadPart:
    """What an author says in a range."""

    author: PeerId
    number: int
    """The number of the range."""
    digest: Digest
    payload_bytes: int
    """Its length by the list."""

    @property
    def title(self) -> str:
        """What it names, in words."""
        return f"the part of {short(self.author)} in range {self.number}"


@dataclass(frozen=True, slots=True)
class _Cut:
    """How the payloads of a round were cut."""

    ranges: int
    unheard: frozenset[tuple[Digest, int]]
    """Roots and ranges in which their authors say nothing."""
    unadded: frozenset[int]
    """Ranges without a result."""


class WholePayloads:
    """The payloads of the rounds that a walk through a record has come to."""

    def __init__(self, read: Read, run_id: RunId, shape: PayloadShape) -> None:
        self._read, self._run_id, self._shape = read, run_id, shape
        self._cuts: dict[int, _Cut] = {}

    def passed(self, commit: Commit) -> None:
        """The walk has come to a commit."""
        if commit.sums is None:
            self._cuts.pop(commit.round, None)
            return
        results, roots = commit.sums.results, [entry.digest for entry in commit.entries]
        unheard = {(roots[place], each.number) for each in results for place in each.silent}
        unadded = frozenset(range(commit.sums.ranges)).difference(each.number for each in results)
        self._cuts[commit.round] = _Cut(commit.sums.ranges, frozenset(unheard), unadded)
        if len(self._cuts) > CUTS_KEPT:
            del self._cuts[min(self._cuts)]

    async def payload(self, round: int, entry: Entry) -> bytes:
        """The payload that an entry of a round names; empty where its list is none.

        Raises what `RunRecord.payload` raises when it is not there; of a part `UnavailableError`,
        even where somebody gave other bytes: no state depends on it.
        """
        cut = self._cuts.get(round)
        if cut is None:
            return await self._read(round, entry)
        try:
            return await self._joined(round, entry, cut)
        except DivergedError as error:
            raise UnavailableError(str(error)) from None

    async def _joined(self, round: int, entry: Entry, cut: _Cut) -> bytes:
        parts = await self.parts(round, entry, cut.ranges)
        counted = [
            part
            for part in parts
            if part.number not in cut.unadded and (entry.digest, part.number) not in cut.unheard
        ]
        if not counted:
            return b""
        blobs = dict(zip(counted, await self._all(round, counted), strict=True))
        header = Header(self._run_id, round, entry.author)
        given = [blobs.get(part) for part in parts]
        return await asyncio.to_thread(heard, given, self._shape, header)

    async def parts(self, round: int, entry: Entry, ranges: int) -> list[PayloadPart]:
        """The parts that the list of an entry names; none where that is no list of these."""
        blob = await self._read(round, entry)
        try:
            names = open_list(blob, ranges, entry.digest).names
        except RemoteProtocolError:
            return []  # no summer has taken it
        return [
            PayloadPart(entry.author, number, Digest(name.digest), name.bytes)
            for number, name in enumerate(names)
        ]

    async def part(self, round: int, part: PayloadPart) -> bytes:
        """The bytes of a part as summers add it: none where the list lies about their length."""
        blob = await self._read(round, part)
        return blob if len(blob) == part.payload_bytes else b""

    async def _all(self, round: int, parts: Sequence[PayloadPart]) -> list[bytes]:
        """The bytes of parts, some of them at a time."""
        found = list[bytes]()
        for first in range(0, len(parts), AT_ONCE):
            asked = (self.part(round, part) for part in parts[first : first + AT_ONCE])
            told = await asyncio.gather(*asked, return_exceptions=True)
            for each in told:
                if isinstance(each, BaseException):
                    raise each
                found.append(each)
        return found

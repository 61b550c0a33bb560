"""Reads payloads of a log and compares them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from lockstep.audit.copies import likeness
from lockstep.audit.copies.likeness import Sent
from protocol.codec.commits import Commit, Entry
from protocol.codec.payload import Coefficients, Header, PayloadShape, decode
from protocol.errors import DivergedError, RemoteProtocolError
from protocol.ids import Digest

Payload = Callable[[int, Entry], Awaitable[bytes]]
"""Reads the whole payload of a round that an entry names, as
`lockstep.audit.sums.parts.WholePayloads` does."""


class Payloads:
    """The payloads of one log. `payload` reads one; `shape` is that of all of them."""

    def __init__(self, payload: Payload, shape: PayloadShape) -> None:
        self._payload, self.shape = payload, shape

    async def opened(self, sent: Sent) -> tuple[Header, Coefficients] | None:
        """A payload decoded; None for one that counts for nothing.

        Raises `UnavailableError`, `StorageError` when it is not there.
        """
        try:
            blob = await self._payload(sent.round, Entry(sent.author, sent.digest, 0, 0, 0))
            return await asyncio.to_thread(decode, blob, self.shape)
        except (RemoteProtocolError, DivergedError):
            return None  # the replay says so

    async def of_commit(
        self, commit: Commit, voids: frozenset[Digest]
    ) -> AsyncIterator[tuple[Entry, Header, Coefficients]]:
        """The payloads of a commit, one after the other, without those that are void or count for
        nothing.

        Raises `UnavailableError`, `StorageError` when one is not there.
        """
        for entry in commit.entries:
            sent = Sent(commit.round, entry.author, entry.digest)
            if entry.digest not in voids and (opened := await self.opened(sent)):
                yield entry, *opened

    async def likeness(self, one: Sent, other: Sent) -> float:
        """How far two payloads are alike; 0 where one of them counts for nothing.

        Raises `UnavailableError`, `StorageError` when one is not there.
        """
        opened = [await self.opened(one), await self.opened(other)]
        found = [each[1] for each in opened if each]
        return await asyncio.to_thread(likeness.likeness, *found) if len(found) == 2 else 0.0

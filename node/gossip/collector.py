"""Waits for the payloads of commits, and says in words what it waits for.

One wait per round: the payloads that the log has are read, the others are wanted of the exchange,
and each time something arrives the log is read again. It ends when all payloads are here, when the
exchange says that no member keeps one of them, or when a background task of the swarm has died.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from node.gossip.background import Background
from node.gossip.machine import events
from node.gossip.machine.exchange import Exchange
from node.gossip.payload_log import PayloadLog
from protocol.codec.commit_sums import RangeSum
from protocol.codec.commits import Commit, Needed
from protocol.errors import LocalProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, short


class NotRetainedError(UnavailableError):
    """Every member that this node is linked to was asked for a payload, and none gave it: its round
    is too old for their logs, or it was never there.
    """

    def __init__(self, reason: str, digest: Digest) -> None:
        super().__init__(reason)
        self.digest = digest


@dataclass(slots=True)
class _Collection:
    """One wait for the payloads of a commit."""

    commit: Commit
    payloads: dict[Digest, bytes] = field(default_factory=dict)
    given_up: set[Digest] = field(default_factory=set)
    """Payloads that no member keeps."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lacking(self) -> list[Digest]:
        """Payloads that are not here, in the commit's order."""
        return [e.digest for e in self.commit.needed if e.digest not in self.payloads]


class Collector:
    """The waits of one node. `feed(event)` lets the exchange hear of an event; `Background` tells
    of tasks that died. The exchange itself is only read.
    """

    def __init__(
        self,
        exchange: Exchange,
        payload_log: PayloadLog,
        background: Background,
        feed: Callable[[events.Event], object],
    ) -> None:
        self._exchange = exchange
        self._payload_log = payload_log
        self._background = background
        self._feed = feed
        self._collections: dict[int, _Collection] = {}

    async def collect(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        """The payloads of a commit, as `Swarm.collect` promises."""
        if len(holders) != len(commit.needed):
            raise LocalProtocolError(
                f"expected holders of {len(commit.needed)} payloads, got {len(holders)}"
            )
        if commit.round in self._collections:
            raise LocalProtocolError(
                f"expected one collect of round {commit.round} at a time, got a second"
            )
        collection = self._collections[commit.round] = _Collection(commit)
        try:
            await self._want(collection, holders)
            while True:
                self._background.check()
                collection.news.clear()
                await self._take_held(collection)
                if not collection.lacking:
                    return [collection.payloads[each.digest] for each in commit.needed]
                self._require_kept(collection)
                await collection.news.wait()  # at once, if something arrived meanwhile
        finally:
            del self._collections[commit.round]

    def wake(self) -> None:
        """Let every wait look again."""
        for collection in self._collections.values():
            collection.news.set()

    def give_up(self, round: int, digest: Digest) -> None:
        """No member keeps a payload: end the wait for it."""
        if collection := self._collections.get(round):
            collection.given_up.add(digest)
            collection.news.set()

    @property
    def waiting_for(self) -> str:
        """The payloads that are waited for and their sources, in words; empty when there are
        none.
        """
        waits = (self._in_words(wait.commit) for _, wait in sorted(self._collections.items()))
        return "; ".join(filter(None, waits))

    async def _want(self, collection: _Collection, holders: Sequence[Sequence[PeerId]]) -> None:
        """Read what the log has, and want the rest of the exchange."""
        commit, wants = collection.commit, list[events.Want]()
        for entry, known in zip(commit.needed, holders, strict=True):
            blob = await asyncio.to_thread(self._payload_log.get, entry.digest)
            if blob is not None:
                collection.payloads[entry.digest] = blob
            size = entry.payload_bytes if blob is None else len(blob)
            wants.append(events.Want(entry.digest, size, tuple(known), held=blob is not None))
        self._feed(events.Wanted(commit.round, tuple(wants)))

    async def _take_held(self, collection: _Collection) -> None:
        """Read the payloads that have become held. One that the log has lost is wanted again."""
        for digest in collection.lacking:
            if self._exchange.holds(collection.commit.round, digest):
                blob = await asyncio.to_thread(self._payload_log.get, digest)
                if blob is None:
                    self._feed(events.Lost(digest))
                else:
                    collection.payloads[digest] = blob

    def _require_kept(self, collection: _Collection) -> None:
        for digest in collection.lacking:
            if digest in collection.given_up:
                name = f"payload {digest.hex()[:8]} of round {collection.commit.round}"
                raise NotRetainedError(f"no member keeps {name} any more", digest)

    def _in_words(self, commit: Commit) -> str:
        lacks = {lack.digest: lack for lack in self._exchange.lacking(commit.round)}
        words = []
        for entry in commit.needed:
            if lack := lacks.get(entry.digest):
                where = (
                    f"pulling from {short(lack.source)}"
                    if lack.source
                    else f"{lack.holders} known holders, none free"
                )
                words.append(f"{_whose(entry)} {entry.payload_bytes} bytes ({where})")
        count = f"{len(words)} of {len(commit.needed)} payloads"
        return f"round {commit.round} waits for {count}: {', '.join(words)}" if words else ""


def _whose(needed: Needed) -> str:
    """The author or the range, in words."""
    if isinstance(needed, RangeSum):
        return f"the sum of range {needed.number},"
    return f"{short(needed.author)}'s"

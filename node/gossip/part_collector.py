"""Collects the parts of one range from which a summer finds their sum.

    list known? --no--> asked for by its root      part here? --no--> asked for by its digest
         |                                              |
         '--yes: the part of the range, by its name-----'--yes: read

What is asked for counts whatever it holds: the digest alone identifies it. A root that names no
list, a part longer than a payload may be, or of another length than its list says, is empty here:
it says nothing wherever the range is added.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from node.gossip.background import Background
from node.gossip.machine import events
from node.gossip.machine.exchange import Exchange
from node.gossip.part_book import PartBook
from node.gossip.payload_log import PayloadLog
from protocol.errors import LocalProtocolError, RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId
from protocol.sums.part_list import LIST_BYTES_MAX, PartName, open_list
from protocol.sums.plan import SumPlan


@dataclass(slots=True, eq=False)
class _Collection:
    """One wait for the parts of a range."""

    round: int
    number: int
    plan: SumPlan
    names: dict[Digest, PartName | None] = field(default_factory=dict)
    """By root the name of the range's part; None: it names no list."""
    asked: set[Digest] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class PartCollector:
    """The waits of one node for parts."""

    def __init__(
        self,
        exchange: Exchange,
        payload_log: PayloadLog,
        book: PartBook,
        background: Background,
        feed: Callable[[events.Event], object],
        size_max: int,
    ) -> None:
        self._exchange, self._payload_log, self._book = exchange, payload_log, book
        self._background, self._feed = background, feed
        self._size_max = size_max
        self._collections: list[_Collection] = []
        """In the order in which they began: the order in which they go on is part of a history."""

    async def collect(
        self, round: int, number: int, roots: Mapping[PeerId, Digest]
    ) -> dict[PeerId, bytes]:
        """The part of a range, by its number, of each of these authors; waits until all are here.
        `UnavailableError` when the round is decided, `LocalProtocolError` when it has no such
        range.
        """
        plan = self._exchange.plan(round)
        if plan is None or not 0 <= number < plan.ranges:
            raise LocalProtocolError(f"expected a range of an open round, got {number} of {round}")
        found, waiting = dict[PeerId, bytes](), _Collection(round, number, plan)
        self._collections.append(waiting)
        try:
            while True:
                self._background.check()
                if self._exchange.is_over(round):
                    raise UnavailableError(f"round {round} is decided: nobody needs its sums")
                waiting.news.clear()
                wants = list[events.Want]()
                for author in sorted(roots.keys() - found.keys()):
                    part = await self._look(waiting, author, roots[author])
                    if isinstance(part, bytes):
                        found[author] = part
                    elif part.digest not in waiting.asked:
                        wants.append(part)
                if len(found) == len(roots):
                    return found
                waiting.asked |= {want.digest for want in wants}
                if wants:
                    self._feed(events.PartsNeeded(round, tuple(wants)))
                await waiting.news.wait()  # at once, if something arrived meanwhile
        finally:
            self._collections.remove(waiting)

    def wake(self) -> None:
        """Let every wait look again."""
        for waiting in self._collections:
            waiting.news.set()

    async def _look(
        self, waiting: _Collection, author: PeerId, root: Digest
    ) -> bytes | events.Want:
        """A part, or what is to be asked for first."""
        holders = (author, *sorted(waiting.plan.summers[waiting.number] - {author}))
        if root not in waiting.names:
            listed = self._book.list_of(waiting.round, root) or await self._read(waiting, root)
            if listed is None:
                return events.Want(root, LIST_BYTES_MAX, holders)
            waiting.names[root] = _name(listed, waiting, root)
        name = waiting.names[root]
        if name is None or name.bytes > self._size_max:
            return b""
        part = await self._read(waiting, Digest(name.digest))
        if part is None:
            return events.Want(Digest(name.digest), name.bytes, holders)
        return part if len(part) == name.bytes else b""

    async def _read(self, waiting: _Collection, digest: Digest) -> bytes | None:
        """What the log has; what it has lost is asked for again."""
        blob = None
        if self._payload_log.size(digest) is not None:
            blob = await asyncio.to_thread(self._payload_log.get, digest)
        if blob is None and self._exchange.holds(waiting.round, digest):
            self._feed(events.Lost(digest))
        return blob


def _name(listed: bytes, waiting: _Collection, root: Digest) -> PartName | None:
    try:
        return open_list(listed, waiting.plan.ranges, root).names[waiting.number]
    except RemoteProtocolError:
        return None

"""The rounds of a swarm whose payloads are cut in parts: what its node publishes, holds and adds.

own payload --publish--> list and parts in the log --> offered to the summers of each range
parts of others  --pulled, verified--> held: reported, by root, with the ranges
question for a sum --collect--> parts --added elsewhere--> keep_result: served by its digest
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from node.gossip.announcements import Announcements
from node.gossip.background import Background
from node.gossip.judge import PayloadJudge
from node.gossip.machine import events
from node.gossip.machine.exchange import Exchange
from node.gossip.part_book import PartBook, parts_of
from node.gossip.part_collector import PartCollector
from node.gossip.payload_check import PayloadCheck
from node.gossip.payload_log import PayloadLog
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import Digest, PeerId, sha256
from protocol.sums.part_list import list_of, open_list
from protocol.sums.plan import SumPlan

ReportParts = Callable[[int, Mapping[Digest, tuple[PeerId, int]]], None]
"""Called with a round, and by root the ranges whose parts this node holds as their summer."""


def report_nothing(round: int, held: Mapping[Digest, tuple[PeerId, int]]) -> None:
    """The report of a node that adds nothing."""


class Parts:
    """The parts of one swarm; all methods belong to its event loop."""

    def __init__(
        self,
        exchange: Exchange,
        payload_log: PayloadLog,
        announcements: Announcements,
        background: Background,
        feed: Callable[[events.Event], object],
        *,
        check: PayloadCheck,
        report: ReportParts,
        size_max: int,
    ) -> None:
        self._exchange, self._payload_log = exchange, payload_log
        self._announcements, self._background, self._feed = announcements, background, feed
        self._report = report
        self._listed: set[Digest] = set()
        """Roots whose lists are in the log, or on their way there."""
        self.spawn = background.spawn
        """Runs a task whose death is noticed."""
        self.book = PartBook()
        """The roots and parts that are known."""
        self.judge = PayloadJudge(check, self.book, exchange.plan, self.held)
        """Judges what is pulled."""
        self._collector = PartCollector(
            exchange, payload_log, self.book, background, feed, size_max
        )

    # ---- for the rounds

    async def publish(self, round: int, parts: Sequence[bytes], samples: int = 0) -> Digest:
        """Keep this node's own payload, cut in parts, and made of this number of samples; returns
        its root when all is in the log and being offered. `LocalProtocolError` unless there is a
        part for each range of the round.
        """
        plan = self._exchange.plan(round)
        if plan and plan.ranges != len(parts):
            raise LocalProtocolError(f"expected {plan.ranges} parts, got {len(parts)}")
        listed = list_of(parts)
        size = sum(map(len, parts))
        said = self._announcements.make(round, listed.root, size, samples)
        if not self._exchange.is_over(round):
            self.book.enter(said, listed, (1 << len(parts)) - 1)
        write = self._background.spawn_write(self._keep(round, listed.blob, parts, said.author))
        await asyncio.shield(write)
        return listed.root

    def plan(self, round: int) -> SumPlan | None:
        """The plan of a round that is open and undecided."""
        return None if self._exchange.is_over(round) else self._exchange.plan(round)

    def add_summer(self, round: int, number: int, peer: PeerId) -> None:
        """One more node gets the parts of a range. If it is this one, it reports what it holds."""
        before = self._exchange.ranges(round)
        self._feed(events.SummerAdded(round, number, peer))
        if self._exchange.ranges(round) != before:
            self._tell(round, self.book.held(round))

    async def collect(
        self, round: int, number: int, roots: Mapping[PeerId, Digest]
    ) -> dict[PeerId, bytes]:
        """The parts of a range, by its number, of these authors; see `PartCollector.collect`."""
        return await self._collector.collect(round, number, roots)

    async def keep_result(self, round: int, result: bytes) -> None:
        """Keep the sum of a range, so that peers have it by its digest."""
        write = self._background.spawn_write(self._keep_result(round, result))
        await asyncio.shield(write)

    def repeat(self) -> None:
        """Report again all that this node holds as a summer of undecided rounds."""
        for round in self.book.rounds():
            self._tell(round, self.book.held(round))

    # ---- for the swarm

    def held(self, round: int, root: Digest) -> None:
        """A part of a root is held, verified."""
        if root not in self._listed and (listed := self.book.list_of(round, root)):
            self._listed.add(root)
            self._background.spawn_write(self._keep_list(round, listed))
        self._tell(round, {root: self.book.held(round).get(root, 0)})

    def follow(self, rounds: Sequence[int]) -> None:
        """Forget all other rounds."""
        self.book.follow(rounds)
        self._listed = {root for root in self._listed if self.book.knows(root)}

    def wake(self) -> None:
        """Something arrived."""
        self._collector.wake()

    async def recall(self, offered: events.Offered) -> None:
        """Hold an offered part that is in the log, from before a restart, if it passes; then let
        the exchange hear of the offer.
        """
        round, digest, ranges = offered.round, offered.digest, offered.ranges
        blob = await asyncio.to_thread(self._payload_log.get, digest)
        if blob is not None:
            check = self.judge.begin(round, digest, ranges)
            try:
                verdict = await asyncio.to_thread(check, blob)
            except RemoteProtocolError:
                pass  # pulled for a sum, whatever it held
            else:
                self.judge.passed(round, digest, verdict)
                self._feed(events.Found(round, digest, len(blob), ranges))
        self._feed(offered)

    def _tell(self, round: int, held: Mapping[Digest, int]) -> None:
        """Report what this node holds of the ranges that it adds; a relay that adds none reports
        nothing.
        """
        ranges = self._exchange.added_here(round)
        told = {
            root: (self.book.author_of(round, root), bits & ranges)
            for root, bits in held.items()
            if bits & ranges
        }
        if told:
            self._report(round, told)

    async def _keep(
        self, round: int, listed: bytes, parts: Sequence[bytes], author: PeerId
    ) -> None:
        root = sha256(listed)
        await asyncio.to_thread(self._payload_log.put, round, listed)
        self._listed.add(root)
        for part in parts:
            await asyncio.to_thread(self._payload_log.put, round, part)
        names = open_list(listed, len(parts), root)
        sizes = {sha256(part): len(part) for part in parts}
        for digest, ranges in parts_of(names, (1 << len(parts)) - 1).items():
            self.book.hold(round, digest, author, ranges)
            self._feed(events.Published(round, digest, sizes[digest], ranges))
        self._tell(round, {root: self.book.held(round).get(root, 0)})

    async def _keep_result(self, round: int, result: bytes) -> None:
        digest = await asyncio.to_thread(self._payload_log.put, round, result)
        self._feed(events.Published(round, digest, len(result)))

    async def _keep_list(self, round: int, listed: bytes) -> None:
        await asyncio.to_thread(self._payload_log.put, round, listed)

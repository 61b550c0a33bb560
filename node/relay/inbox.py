"""A relay and the messages of its coordinator: it follows the rounds and collects their payloads.

opened        -> the round is open: what peers offer in it is pulled
summer_added  -> one more node gets the parts of a range
sums_asked    -> a relay that adds is asked for ranges
committed     -> its payloads are collected, then the round is settled
skipped       -> the round is settled
finished      -> the owner is told
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from node.control.heads import HeadKeeper
from node.control.members import MemberList
from node.gossip.swarm import Swarm
from node.relay.adder import Adder
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, SignedCommit, open_commit
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import PeerId, parse_peer_id
from protocol.run_info import RunInfo
from protocol.sums.plan import SumPlan

COLLECTS_MAX = 8
"""Committed rounds whose payloads the relay still collects; a newer one ends the oldest."""


class RelayInbox:
    """The listener of a relay's coordinator client (`node.control.client.Listener`)."""

    def __init__(
        self,
        info: RunInfo,
        swarm: Swarm,
        finished: Callable[[str], None],
        heads: HeadKeeper,
        summer: Adder | None = None,
    ) -> None:
        """`finished(reason)` is called when the run is; `heads` are told every commit; `summer` is
        that of a relay that adds.
        """
        self._info, self._swarm, self._finished, self._heads = info, swarm, finished, heads
        self._summer = summer
        self._collects: dict[int, asyncio.Task[None]] = {}
        self.round = -1
        """Newest round that was decided while the relay listened; -1 before the first."""

    @property
    def adds(self) -> bool:
        """Whether this relay adds."""
        return self._summer is not None

    def members_changed(self, members: MemberList) -> None:
        """The swarm links to members and relays."""
        self._swarm.set_members(members.members, members.relays)

    def welcomed(self, welcome: wire.Welcome) -> None:
        """Say again what this relay holds and has found as a summer, if it adds.
        `UnavailableError` when the coordinator lacks a commit that it gave to this relay.
        """
        self._heads.greeted(welcome)
        if self._summer:
            self._summer.decided(welcome.decided_round)
            self._swarm.parts.repeat()
            self._summer.repeat()

    def received(self, message: wire.CoordinatorMessage) -> None:
        """Follow the run. Raises `RemoteProtocolError` for a commit that does not hold."""
        match message.WhichOneof("kind"):
            case "opened":
                self._swarm.open(message.opened.round, plan=SumPlan.of(message.opened))
            case "summer_added":
                added = message.summer_added
                peer = parse_peer_id(added.peer_id)
                self._swarm.parts.add_summer(added.round, added.range, peer)
            case "sums_asked" if self._summer:
                self._summer.asked(message.sums_asked)
            case "committed":
                self._committed(message.committed)
            case "skipped":
                self._swarm.settle(message.skipped.round, [])
                self._decided(message.skipped.round)
            case "finished":
                self._finished(message.finished.reason)
            case _:
                pass  # of no use to a node that does not train

    async def collected(self, round: int) -> None:
        """Return when the payloads of a commit are not being collected, or no longer."""
        if task := self._collects.get(round):
            await asyncio.wait({task})

    async def stop(self) -> None:
        """Collect no more."""
        collects = list(self._collects.values())
        for collect in collects:
            collect.cancel()
        await asyncio.gather(*collects, return_exceptions=True)

    def _decided(self, round: int) -> None:
        self.round = max(self.round, round)
        if self._summer:
            self._summer.decided(round)

    def _committed(self, told: wire.RoundCommitted) -> None:
        info = self._info
        signed = SignedCommit(told.commit.body, told.commit.signature)
        commit = open_commit(signed, info.coordinator_key)
        if commit.run_id != info.run_id or len(told.holders) != len(commit.needed):
            raise RemoteProtocolError(
                f"expected a commit of run {info.run_id} with holders of {len(commit.needed)} "
                f"entries, got run {commit.run_id} with {len(told.holders)}"
            )
        self._heads.heads.take(commit, signed)
        self._decided(commit.round)
        holders = [[PeerId(peer) for peer in each.peer_ids] for each in told.holders]
        if commit.round not in self._collects:
            self._collects[commit.round] = asyncio.create_task(self._collect(commit, holders))
        for old in sorted(self._collects)[:-COLLECTS_MAX]:
            self._collects[old].cancel()

    async def _collect(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> None:
        """Hold all payloads of a commit: a node that cannot reach their holders asks here."""
        try:
            with contextlib.suppress(UnavailableError):
                await self._swarm.collect(commit, holders)
        finally:
            del self._collects[commit.round]
            self._swarm.settle(commit.round, commit.staying())

"""Catching up where nodes have parameters of their own: from a member's newest payload.

    commits are walked, their payloads passed over          a member's parameters are taken
      |------------------------------------------------------------|
      this node's place: genesis, or far behind                    the newest commit

A payload holds its author's parameters, and the commit names its digest. So a node that comes late
needs no snapshot: it walks the chain of commits, takes one payload of a newest commit, and goes on
from there. A node that was away for a short time keeps its own parameters: rounds without it have
no edge of its own.

With int8 payloads hold differences to the newest mean. So every node writes a snapshot of each
mean, whose SHA-256 the coordinator records, and one that comes late fetches that of the newest mean
first, in ranges from several members (`node.round.catching_up.snapshot_fetch`), or has it still.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

from torch import Tensor

from node.control.decision import Decision
from node.control.decisions import DecisionLog
from node.gossip.collector import NotRetainedError
from node.replica.digest import state_digest
from node.replica.position import Position
from node.replica.replica import Replica
from node.replica.snapshot import Snapshots
from node.round.catching_up.catch_up import CatchUp, NotFound
from node.round.catching_up.landmarks import Landmark, SnapshotJump, position_at
from node.round.catching_up.snapshot_fetch import BlobSource, ParameterSource
from node.round.context import PayloadExchange
from node.status import NodeStatus
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, Entry
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, parse_digest, sha256
from protocol.run_info import RunInfo

log = logging.getLogger("lockstep.node")

COMMITS_TRIED = 4
"""Newest commits whose payloads are asked for: older parameters are worse."""

AWAY_ROUNDS = 8
"""Missed rounds after which a node gives up its own parameters: so old, they would set back those
of its neighbours."""

TRY_S = 120
"""Longest wait for one payload before another one is tried."""


class PeersAndPayloads(BlobSource, PayloadExchange, Protocol):
    """The swarm as catching up sees it."""


class MixingReplica(ParameterSource, Protocol):
    """A replica with parameters of its own; see `node.replica.gossip_adam.GossipAdamReplica`."""

    own: PeerId
    """The node whose it is."""

    @property
    def has_stepped(self) -> bool:
        """Whether its parameters have moved by gradients of its own."""

    def parameters_in(
        self, round: int, payload: bytes, base: Path | None = None
    ) -> dict[str, Tensor]:
        """The parameters in a payload."""


@dataclass(frozen=True, slots=True)
class Walked:
    """A commit on the way, and where a node stands behind it."""

    decision: Decision
    position: Position
    base: Landmark | None
    """The newest mean up to it, this commit's own included; None: none on the way."""
    has_base: bool
    """Whether a snapshot of that mean is recorded, or there was none."""


class NeighbourStart(CatchUp):
    """Fetches a member's parameters for one node. Nothing is kept for others but payloads."""

    def __init__(
        self,
        info: RunInfo,
        replica: MixingReplica,
        snapshots: Snapshots,
        swarm: PeersAndPayloads,
        fetch_commits: Callable[[int], Awaitable[wire.Commits]],
        *,
        status: NodeStatus,
    ) -> None:
        super().__init__(info, replica, snapshots, swarm, fetch_commits, status=status)
        self._mixing, self._swarm = replica, swarm
        self._differs = self._info.spec.algorithm.mixing.differs
        self._genesis_until = -1
        """Newest round up to which nothing was committed, so that genesis is the newest state."""

    def _is_due(self, commit: Commit) -> bool:
        """Nodes share a mean only where int8 payloads build on it; their own parameters differ."""
        return self._differs and commit.mix is not None and commit.mix.mean

    def too_far_behind(self, next_round: int, decided_round: int) -> bool:
        if next_round == 0 and not self._mixing.has_stepped:
            return decided_round > self._genesis_until
        return decided_round - next_round >= AWAY_ROUNDS

    def follow(self, next_round: int, decided_round: int) -> None:
        """Nothing to remember."""

    async def find(
        self,
        start: Position,
        decided_round: int,
        rounds: Collection[int],
        known: DecisionLog | None = None,
    ) -> SnapshotJump | NotFound:
        """A member's parameters after a newest commit; as `CatchUp.find`."""
        self._status.says(f"looks for a member's parameters after round {start.head_round}")
        walker = self._walker(start, decided_round)
        newest: deque[Walked] = deque(maxlen=COMMITS_TRIED)
        passed: dict[int, Decision] = {}
        base, has_base = None, True
        while walker.behind():
            decision = await walker.next()
            walker.settled()
            if decision.round in rounds:
                passed[decision.round] = decision
            if decision.commit:
                position = position_at(walker.place)
                if self._differs and decision.commit.mix and decision.commit.mix.mean:
                    base = _recorded(decision, position)
                    has_base = base is not None
                newest.append(Walked(decision, position, base, has_base))
        if not newest and start.next_round == 0:
            self._genesis_until = decided_round
        for walked in reversed(newest):
            if found := await self._behind(walked):
                return replace(found, passed=passed)
        return NotFound.NOT_HELD if newest else NotFound.NOT_RECORDED

    async def _behind(self, walked: Walked) -> SnapshotJump | None:
        """The state of a member behind a commit, if some member gives it."""
        base: Path | None = None
        if walked.base:
            obtained = await self._fetch.obtain(walked.base)
            base = obtained if isinstance(obtained, Path) else None
        if not walked.has_base or (walked.base and base is None):
            return None
        if base and walked.base and walked.base.position == walked.position:
            log.info("goes on from the newest mean", extra={"round": walked.decision.round})
            return SnapshotJump(walked.base, base, {}, base)
        found = await self._of_a_member(walked, base)
        return SnapshotJump(*found, {}, base) if found else None

    async def _of_a_member(self, walked: Walked, base: Path | None) -> tuple[Landmark, Path] | None:
        """The parameters of an author of this commit, as a file of canonical bytes."""
        commit, own = walked.decision.commit, self._mixing.own
        assert commit is not None, "only commits are kept"
        others = [entry for entry in commit.entries if entry.author != own]
        for entry in sorted(others, key=lambda each: sha256(own.encode() + each.digest)):
            try:
                payload = await self._payload_of(commit, entry)
                parameters = await asyncio.to_thread(
                    self._mixing.parameters_in, commit.round, payload, base
                )
            except (NotRetainedError, RemoteProtocolError, TimeoutError) as error:
                about = {"round": commit.round, "peer": entry.author, "reason": str(error)}
                log.info("no parameters of a member", extra=about)
                continue
            path = await asyncio.to_thread(self._snapshots.put_aside, parameters)
            log.info("goes on from a member's parameters", extra={"peer": entry.author})
            return Landmark(walked.position, entry.digest, state_digest(parameters)), path
        return None

    async def _payload_of(self, commit: Commit, entry: Entry) -> bytes:
        alone = replace(commit, entries=(entry,))
        async with asyncio.timeout(TRY_S):
            payloads = await self._swarm.collect(alone, [[entry.author]])
        self._swarm.settle(commit.round, [entry.digest])
        return payloads[0]


def _recorded(decision: Decision, position: Position) -> Landmark | None:
    """The recorded snapshot of a mean; None while members have not agreed on it."""
    if not decision.snapshot_sha256 or decision.recorded_digest is None:
        return None
    return Landmark(position, parse_digest(decision.snapshot_sha256), decision.recorded_digest)


def catch_up_for(
    info: RunInfo,
    replica: Replica,
    snapshots: Snapshots,
    swarm: PeersAndPayloads,
    fetch_commits: Callable[[int], Awaitable[wire.Commits]],
    *,
    status: NodeStatus,
) -> CatchUp:
    """The catching up of a run, by its algorithm."""
    parts = snapshots, swarm, fetch_commits
    if info.spec.algorithm.facts.replicas_equal:
        return CatchUp(info, replica, *parts, status=status)
    return NeighbourStart(info, cast("MixingReplica", replica), *parts, status=status)

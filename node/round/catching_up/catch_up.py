"""Snapshots for nodes that come late: writing them, and going on from one when the log cannot be
replayed from here.

    replay     commits from the coordinator, payloads from any member that retains them: the rule
    snapshot   when no member retains the payloads: the parameters after some newer commit, then
               replay from there

A node looks for a snapshot seldom, and only when it is further behind than members retain payloads:

    replaying --too far behind: find--> found: adopted --near the end of the log--> searched
        |                                   ^
        '--too far behind: find, in vain--> searched --a newer snapshot may exist: find--'

A restart from a checkpoint is a snapshot too, named by its entry in the chain: those before it are
history.

After a snapshot was adopted the log comes first, because members retain the payloads after it.

The commit that a snapshot belongs to is found by walking the chain of commits, each checked, from
where this node stands (`node.round.catching_up.landmarks`). Its file comes from the members
(`node.round.catching_up.snapshot_fetch`).

Rounds go on meanwhile. Members keep a snapshot that is being fetched, and the payloads after it
(`node.replica.snapshot`, `node.gossip.payload_log`). So a node that has begun to fetch a snapshot
finishes it, even if newer ones appear, and replays from there; it begins with a newer one only when
no member holds the rest.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from enum import Enum

from node.control.decisions import DecisionLog
from node.replica.position import Position
from node.replica.snapshot import Snapshots
from node.round.catching_up.landmarks import Landmark, SnapshotJump, Walk, position_at
from node.round.catching_up.snapshot_fetch import (
    BlobSource,
    MissingSnapshot,
    ParameterSource,
    SnapshotFetch,
)
from node.status import NodeStatus
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.errors import StorageError
from protocol.ids import parse_digest
from protocol.run_info import RunInfo

log = logging.getLogger("lockstep.node")

RETRY_S = 2
"""Pause between two attempts when neither the log nor a snapshot is available."""


class SnapshotSearch(Enum):
    """Where a node is in its search for a snapshot."""

    REPLAYING = "replaying"
    """No snapshot was looked for yet."""
    SEARCHED = "searched"
    """The log is followed again until the run has gone on by as far as the node was behind."""
    ADOPTED = "adopted"
    """A snapshot was found; the log after it comes first."""


class NotFound(Enum):
    """Why a search ended without a snapshot; the value is for people."""

    NOT_RECORDED = "no snapshot is recorded"
    NOT_HELD = "no member has a snapshot"
    INCOMPLETE = "the rest of a snapshot cannot be had now; its fetch goes on later"


class CatchUp:
    """Writes this node's snapshots, and fetches those of others."""

    def __init__(
        self,
        info: RunInfo,
        replica: ParameterSource,
        snapshots: Snapshots,
        peers: BlobSource,
        fetch_commits: Callable[[int], Awaitable[wire.Commits]],
        *,
        status: NodeStatus,
    ) -> None:
        self._info, self._replica, self._snapshots = info, replica, snapshots
        self._fetch = SnapshotFetch(replica, snapshots, peers, status=status)
        self._fetch_commits = fetch_commits
        self._status = status
        self._search = SnapshotSearch.REPLAYING
        self._search_again_round = -1

    # ---- for others

    def write(self, commit: Commit) -> bytes:
        """Save a snapshot after this commit if one is due. Returns its SHA-256, empty when there is
        none. Blocks: for a thread. A full disk costs others a source, not this node its life.
        """
        if not self._is_due(commit):
            return b""
        try:
            return self._snapshots.write(commit.round, self._replica.committed)
        except StorageError as error:
            log.warning("no snapshot written", extra={"round": commit.round, "reason": str(error)})
            return b""

    def _is_due(self, commit: Commit) -> bool:
        return self._info.spec.retention.snapshot_due(commit.step)

    # ---- from others

    def too_far_behind(self, next_round: int, decided_round: int) -> bool:
        """Whether members no longer retain the payloads of `next_round`, and a search may help."""
        retention = self._info.spec.retention
        if decided_round - next_round < retention.log_rounds:
            return False
        match self._search:
            case SnapshotSearch.REPLAYING:
                return True
            case SnapshotSearch.SEARCHED:
                return decided_round >= self._search_again_round
            case SnapshotSearch.ADOPTED:
                return False

    def follow(self, next_round: int, decided_round: int) -> None:
        """The replica has reached `next_round`. Near the end of the log the snapshot is needed no
        more: a node that is far behind again may look for another one.
        """
        near = decided_round - next_round < self._info.spec.retention.log_rounds
        if near and self._search is SnapshotSearch.ADOPTED:
            self._search = SnapshotSearch.SEARCHED

    async def find(
        self,
        start: Position,
        decided_round: int,
        rounds: Collection[int],
        known: DecisionLog | None = None,
    ) -> SnapshotJump | NotFound:
        """The newest recorded snapshot beyond `start` that a member gives, for the replica to
        adopt.

        `known` is a log whose entries of the chain are known. The result has the payloads of
        `rounds` that were committed on the way. Can be cancelled: what has come is kept. Raises
        `RemoteProtocolError` when the chain of commits does not hold.
        """
        if self._search is SnapshotSearch.REPLAYING:
            self._search = SnapshotSearch.SEARCHED
        wait = max(decided_round - start.next_round, self._info.spec.retention.snapshot_every)
        self._search_again_round = decided_round + wait  # as far as it is behind: the log is first
        self._status.says(f"looks for a snapshot after round {start.head_round}")
        walker = self._walker(start, decided_round)
        if known is not None:
            walker.know(known)
        walk = await self._walk(walker, rounds)
        for landmark in walk.by_preference:
            found = await self._fetch.obtain(landmark)
            if not isinstance(found, MissingSnapshot):
                self._search = SnapshotSearch.ADOPTED
                log.info("snapshot adopted", extra={"round": landmark.position.head_round})
                return walk.jump_to(landmark, found)
            outdated = found is MissingSnapshot.ABSENT and landmark != walk.landmarks[-1]
            if self._snapshots.begun(landmark.sha256) and not outdated:
                return NotFound.INCOMPLETE  # another one would throw away the ranges of this
        return NotFound.NOT_HELD if walk.landmarks else NotFound.NOT_RECORDED

    def _walker(self, start: Position, decided_round: int) -> DecisionLog:
        """A log of its own that walks the chain of commits from `start` to the newest one."""
        walker = DecisionLog(
            self._info.run_id, self._info.coordinator_key, self._fetch_commits, walks=True
        )
        walker.resume(start)
        walker.saw_decided(decided_round)
        return walker

    async def _walk(self, walker: DecisionLog, rounds: Collection[int]) -> Walk:
        walk = Walk()
        await self._pass_restarts(walker, walk)
        while walker.behind():
            decision = await walker.next()
            walker.settled()
            if decision.round in rounds:
                walk.asked[decision.round] = decision
            if await self._pass_restarts(walker, walk):
                continue  # what this commit has on record is not the state behind it any more
            if decision.snapshot_sha256 and decision.recorded_digest is not None:
                position = position_at(walker.place)
                sha256 = parse_digest(decision.snapshot_sha256)
                await self._add(walk, Landmark(position, sha256, decision.recorded_digest))
        return walk

    async def _pass_restarts(self, walker: DecisionLog, walk: Walk) -> bool:
        """No snapshot from before a restart leads over it; returns whether the walk met one."""
        restarted = bool(walker.passed)
        while walker.passed:
            restart, place = walker.passed.pop(0)
            walk.landmarks.clear()
            walk.begun, position = None, position_at(place)
            await self._add(walk, Landmark(position, restart.sha256, restart.state_digest))
        return restarted

    async def _add(self, walk: Walk, landmark: Landmark) -> None:
        walk.landmarks.append(landmark)
        if await asyncio.to_thread(self._snapshots.begun, landmark.sha256):
            walk.begun = landmark

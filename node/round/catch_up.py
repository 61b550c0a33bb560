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

A snapshot is trusted for its SHA-256, which the majority reported and the coordinator recorded. The
commit that it belongs to is found by walking the chain of commits, each checked, from where this
node stands. Its ranges come from several members at once and are checked for place and size as they
arrive. When the whole has another SHA-256 no member can be blamed, so it is fetched again from one
member at a time, and the member that lies is named.

Rounds go on meanwhile. Members keep a snapshot that is being fetched, and the payloads after it
(`node.replica.snapshot`, `node.gossip.payload_log`). So a node that has begun to fetch a snapshot
finishes it, even if newer ones appear, and replays from there; it begins with a newer one only when
no member holds the rest.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from torch import Tensor

from node.control.decisions import DecisionLog, Place
from node.links.frames import Part
from node.links.network import BlobRange, NotHeldError
from node.replica.canonical import canonical_size
from node.replica.digest import state_digest
from node.replica.position import Position
from node.replica.snapshot import Partial, Snapshots
from node.status import NodeStatus
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.errors import RemoteProtocolError, StorageError, UnavailableError
from protocol.ids import Digest, PeerId, parse_digest, short
from protocol.run_info import RunInfo

log = logging.getLogger("lockstep.node")

SOURCES_MAX = 4
"""Members that a snapshot is fetched from at once: several thin uplinks fill a downlink."""

SNAPSHOTS_TRIED = 4
"""Newest recorded snapshots that are asked for: members keep two, and a member that lags has older
ones."""

RETRY_S = 2
"""Pause between two attempts when neither the log nor a snapshot can be had."""


class Search(Enum):
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


class _Lack(Enum):
    """Why the file of a snapshot is not there."""

    ABSENT = "every member that was asked says that it does not hold it"
    UNREACHABLE = "some member may hold it"


class ParameterSource(Protocol):
    """The owner of the committed parameters."""

    @property
    def committed(self) -> Mapping[str, Tensor]:
        """The committed parameters, by name."""


class BlobSource(Protocol):
    """The members as a source of blobs; `node.gossip.swarm.Swarm` is one."""

    @property
    def peers(self) -> list[PeerId]:
        """The other members, sorted."""

    def fetch(self, peer: PeerId, blob: BlobRange) -> AsyncGenerator[Part, None]:
        """The parts of a peer's blob, unchecked: see `node.links.network.PeerNetwork.fetch`."""


@dataclass(frozen=True, slots=True)
class Landmark:
    """A recorded snapshot: its place in the log and its digests, by the majority or by a restart
    from a checkpoint.
    """

    position: Position
    sha256: Digest
    state_digest: int


@dataclass(frozen=True, slots=True)
class Jump:
    """A snapshot to go on from."""

    landmark: Landmark
    path: Path
    """Its file, verified."""
    kept: dict[int, list[Digest]]
    """Payloads committed in the rounds that were asked about and that the snapshot has passed."""
    own: dict[int, Digest]
    """This node's payloads that the snapshot has passed and that were committed, by round."""
    base: Path | None = None
    """Where nodes differ, a snapshot of the newest mean before it; None: as before."""


@dataclass(slots=True)
class Walk:
    """A stretch of the log, read from the chain of commits."""

    landmarks: deque[Landmark] = field(default_factory=lambda: deque(maxlen=SNAPSHOTS_TRIED))
    """The newest recorded snapshots, oldest first."""
    kept: dict[int, list[Digest]] = field(default_factory=dict)
    """Payloads committed in the rounds that were asked about."""
    begun: Landmark | None = None
    """The newest recorded snapshot of which ranges are here already."""
    own: dict[int, Digest] = field(default_factory=dict)
    """This node's payloads that were committed, by round."""

    @property
    def by_preference(self) -> list[Landmark]:
        """The snapshots in the order to try them: the one that is begun, then the newest."""
        newest_first = [landmark for landmark in reversed(self.landmarks) if landmark != self.begun]
        return [self.begun, *newest_first] if self.begun else newest_first

    def jump_to(self, landmark: Landmark, path: Path) -> Jump:
        """The jump to one of the snapshots, whose file is at `path`."""
        passed = landmark.position.next_round
        kept = {round: digests for round, digests in self.kept.items() if round < passed}
        own = {round: digest for round, digest in self.own.items() if round < passed}
        return Jump(landmark, path, kept, own)


def position_at(place: Place) -> Position:
    """The position of a state at a place in the chain, with nothing announced beyond it."""
    return Position(
        place.next_round,
        place.head,
        place.head_round,
        voids=place.voids,
        void_count=place.void_count,
    )


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
        self._info, self._replica, self._snapshots, self._peers = info, replica, snapshots, peers
        self._fetch_commits = fetch_commits
        self._status = status
        self._search = Search.REPLAYING
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
            case Search.REPLAYING:
                return True
            case Search.SEARCHED:
                return decided_round >= self._search_again_round
            case Search.ADOPTED:
                return False

    def follow(self, next_round: int, decided_round: int) -> None:
        """The replica has come to `next_round`. Near the end of the log the snapshot has done its
        service: a node that is far behind again may look for another one.
        """
        near = decided_round - next_round < self._info.spec.retention.log_rounds
        if near and self._search is Search.ADOPTED:
            self._search = Search.SEARCHED

    async def find(
        self,
        start: Position,
        decided_round: int,
        rounds: Collection[int],
        own: PeerId,
        known: DecisionLog | None = None,
    ) -> Jump | NotFound:
        """The newest recorded snapshot beyond `start` that a member gives, for the replica to
        adopt.

        `known` is a log whose entries of the chain are known. The result has the payloads of
        `rounds`, and those of author `own`, that were committed on the way. Can be cancelled: what
        has come is kept. Raises `RemoteProtocolError` when the chain of commits does not hold.
        """
        if self._search is Search.REPLAYING:
            self._search = Search.SEARCHED
        wait = max(decided_round - start.next_round, self._info.spec.retention.snapshot_every)
        self._search_again_round = decided_round + wait  # as far as it is behind: the log is first
        self._status.phase = f"looks for a snapshot after round {start.head_round}"
        walker = DecisionLog(
            self._info.run_id, self._info.coordinator_key, self._fetch_commits, walks=True
        )
        walker.resume(start)
        walker.saw_decided(decided_round)
        if known is not None:
            walker.know(known)
        walk = await self._walk(walker, rounds, own)
        for landmark in walk.by_preference:
            found = await self._obtain(landmark)
            if not isinstance(found, _Lack):
                self._search = Search.ADOPTED
                log.info("snapshot adopted", extra={"round": landmark.position.head_round})
                return walk.jump_to(landmark, found)
            outdated = found is _Lack.ABSENT and landmark != walk.landmarks[-1]
            if self._snapshots.begun(landmark.sha256) and not outdated:
                return NotFound.INCOMPLETE  # another one would throw away the ranges of this
        return NotFound.NOT_HELD if walk.landmarks else NotFound.NOT_RECORDED

    async def _walk(self, walker: DecisionLog, rounds: Collection[int], own: PeerId) -> Walk:
        walk = Walk()
        await self._pass_restarts(walker, walk)
        while walker.behind():
            decision = await walker.next()
            walker.settled()
            entries = decision.commit.entries if decision.commit else ()
            if decision.round in rounds:
                walk.kept[decision.round] = decision.kept
            for entry in entries:
                if entry.author == own and entry.digest in decision.kept:
                    walk.own[decision.round] = entry.digest
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

    def _here(self, landmark: Landmark) -> Path | None:
        """The file of a snapshot on this node's disk; written now if its parameters are this
        node's.
        """
        path = self._snapshots.path(landmark.sha256)
        if path is None and state_digest(self._replica.committed) == landmark.state_digest:
            self._snapshots.write(landmark.position.head_round, self._replica.committed)
            path = self._snapshots.path(landmark.sha256)
        return path

    async def _obtain(self, landmark: Landmark) -> Path | _Lack:
        """The file of a snapshot, verified: from this node's disk, from all members together, or
        from one of them.
        """
        digest, round = landmark.sha256, landmark.position.head_round
        if path := await asyncio.to_thread(self._here, landmark):
            return path
        size, peers = canonical_size(self._replica.committed), self._peers.peers
        lack = _Lack.UNREACHABLE
        for sources in (peers, *([peer] for peer in peers)):
            partial = await asyncio.to_thread(self._snapshots.partial, digest, size)
            lack = await self._fetch(partial, sources)
            if partial.missing:
                if sources is peers:
                    return lack  # its ranges are kept for the next attempt
                continue
            if await asyncio.to_thread(self._snapshots.adopt, partial, round):
                return self._snapshots.path(digest) or _Lack.UNREACHABLE
            log.warning(
                "snapshot refused: its SHA-256 is not the recorded one",
                extra={"round": round, "peers": ",".join(map(short, sources))},
            )
            await asyncio.to_thread(partial.clear)
        return lack

    async def _fetch(self, partial: Partial, sources: Sequence[PeerId]) -> _Lack:
        """Fill a partial, as far as the sources have it; returns why the rest would be missing."""
        willing, absent = list(sources), set[PeerId]()
        while partial.missing and willing:
            ranges, asked = deque(partial.missing), willing[:SOURCES_MAX]
            tasks = [
                asyncio.create_task(self._fetch_ranges(partial, peer, ranges, absent))
                for peer in asked
            ]
            try:
                gave_up = await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
            willing = [peer for peer in willing if peer not in gave_up]
        all_absent = bool(sources) and absent.issuperset(sources)
        return _Lack.ABSENT if all_absent else _Lack.UNREACHABLE

    async def _fetch_ranges(
        self, partial: Partial, peer: PeerId, ranges: deque[int], absent: set[PeerId]
    ) -> PeerId | None:
        """Fetch ranges from one member while there are any. Returns the member if it stopped giving
        them.
        """
        while ranges:
            offset = ranges.popleft()
            try:
                blob = await self._fetch_range(partial, peer, offset)
            except (UnavailableError, RemoteProtocolError) as error:
                about = {"sha256": partial.digest.hex()[:8], "peer": short(peer)}
                log.info("no snapshot range", extra=about | {"reason": str(error)})
                if isinstance(error, NotHeldError):
                    absent.add(peer)
                return peer
            await asyncio.to_thread(partial.put, offset, blob)
            done = partial.size - sum(map(partial.length, partial.missing))
            self._status.phase = f"fetches a snapshot: {done} of {partial.size} bytes"
        return None

    async def _fetch_range(self, partial: Partial, peer: PeerId, offset: int) -> bytearray:
        blob, length = bytearray(), partial.length(offset)
        async with aclosing(
            self._peers.fetch(peer, BlobRange(partial.digest, offset, length))
        ) as parts:
            async for part in parts:
                expected = (offset + len(blob), partial.size)
                if (found := (part.offset, part.total_bytes)) != expected:
                    raise RemoteProtocolError(
                        f"expected a part at (offset, total) {expected}, got {found}"
                    )
                blob += part.data
                if len(blob) >= length:
                    return blob
        raise UnavailableError(f"{short(peer)} ended a transfer at {len(blob)} of {length} bytes")

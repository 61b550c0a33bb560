"""Snapshots for those who come late: writing them, and going on from one when the log cannot be
replayed from here.

    replay     commits from the coordinator, payloads from any member that retains them: the rule
    snapshot   when nobody retains the payloads any more: the parameters as they were after some newer commit,
               then replay from there

A snapshot is trusted for its SHA-256, which the majority reported and the coordinator recorded, and
which commit it belongs to is found by walking the chain of commits, each checked, from where this
node stands. Its ranges come from several members at once and are checked for place and size as they
arrive. When the whole has another SHA-256 nobody can be blamed, so it is fetched again from one
member at a time, and the one that lies is named.

Rounds go on meanwhile. Members keep a snapshot that is being fetched, and the payloads after it
(`node.replica.snapshot`, `node.gossip.payload_log`), so who has begun with one stays with it,
however new the newest is, and replays from there, however far it is behind by then: only when
nobody holds what it needs does it begin with a newer one.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from node.control.client import RunInfo
from node.control.decisions import DecisionLog
from node.links.frames import Part
from node.links.network import BlobRange, NotHeldError
from node.replica.canonical import canonical_size
from node.replica.position import Position
from node.replica.replica import Replica
from node.replica.snapshot import Partial, Snapshots
from node.status import NodeStatus
from protocol import wire_pb2 as wire
from protocol.commits import Commit
from protocol.errors import RemoteProtocolError, StorageError, UnavailableError
from protocol.ids import Digest, PeerId, parse_digest, short

log = logging.getLogger("lockstep.node")

SOURCES_MAX = 4
"""Members that a snapshot is fetched from at once: enough to fill a downlink from several thin
uplinks."""

SNAPSHOTS_TRIED = 4
"""Newest recorded snapshots that are asked for: members keep two, and one that lags has older
ones."""

RETRY_SECONDS = 2
"""Between two attempts when neither the log nor a snapshot can be had."""


class BlobSource(Protocol):
    """The members as a source of blobs; `node.gossip.swarm.Swarm` is one."""

    @property
    def peers(self) -> list[PeerId]:
        """The other members, sorted."""

    def fetch(self, peer: PeerId, blob: BlobRange) -> AsyncGenerator[Part, None]:
        """The parts of a peer's blob, unchecked: see `node.links.network.Link.fetch`."""


@dataclass(frozen=True, slots=True)
class Landmark:
    """A recorded snapshot: where in the log it stands and what the majority said of it."""

    position: Position
    sha256: Digest
    state_digest: int


@dataclass(slots=True)
class Walk:
    """What the chain of commits tells of a stretch of the log."""

    landmarks: deque[Landmark] = field(default_factory=lambda: deque(maxlen=SNAPSHOTS_TRIED))
    """The newest recorded snapshots, oldest first."""
    kept: dict[int, list[Digest]] = field(default_factory=dict)
    """Payloads committed in the rounds that were asked about."""
    begun: Landmark | None = None
    """The newest recorded snapshot of which something has come already."""
    own: dict[int, Digest] = field(default_factory=dict)
    """This node's payloads that were committed, by round."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A snapshot to go on from."""

    landmark: Landmark
    path: Path
    """Its file, verified."""
    kept: dict[int, list[Digest]]
    """Payloads committed in the rounds that were asked about and that the snapshot has passed."""
    own: dict[int, Digest]
    """This node's payloads that were committed in rounds that the snapshot has passed, by round,
    oldest first."""


class CatchUp:
    """Writes one node's snapshots, and takes another's."""

    def __init__(
        self,
        info: RunInfo,
        replica: Replica,
        snapshots: Snapshots,
        peers: BlobSource,
        fetch_commits: Callable[[int], Awaitable[wire.Commits]],
        *,
        progress: NodeStatus,
    ) -> None:
        self._info, self._replica, self._snapshots, self._peers = info, replica, snapshots, peers
        self._fetch_commits = fetch_commits
        self._progress = progress
        self._tried_round = -1
        self._jumped = False
        self._gone = False

    # ---- for others

    def write(self, commit: Commit) -> bytes:
        """Keep a snapshot after this commit if one is due; its SHA-256, or nothing. Blocks: for a
        thread.

        A disk that cannot hold one costs the others a source, not this node its life.
        """
        if not self._info.spec.retention.snapshot_due(commit.step):
            return b""
        try:
            return self._snapshots.write(commit.round, self._replica.committed)
        except StorageError as error:
            log.warning("no snapshot round=%s reason=%s", commit.round, str(error))
            return b""

    # ---- from others

    def too_far_behind(self, ledger: DecisionLog) -> bool:
        """Is the log that members retain too short to reach back to here? Said once per snapshot
        that may help, and not after one was adopted: its keepers have what comes after it.
        """
        retention = self._info.spec.retention
        if ledger.decided_round - ledger.next_round < retention.log_rounds:
            self._jumped = False
            return False
        if self._jumped:
            return False
        return (
            self._tried_round < 0
            or ledger.decided_round >= self._tried_round + retention.snapshot_every
        )

    async def find(
        self, start: Position, decided_round: int, rounds: Collection[int], own: PeerId
    ) -> Jump | None:
        """The newest recorded snapshot beyond `start` that a member gives, for the replica to
        adopt, or None.

        Tells which payloads of `rounds`, and which of `own`, were committed on the way there. Can
        be cancelled: what has come is kept. Raises `RemoteProtocolError` when the chain of commits
        does not hold.
        """
        self._tried_round = decided_round
        self._progress.phase = f"looks for a snapshot after round {start.head_round}"
        walk = await self._walk(start, decided_round, rounds, own)
        newest_first = [landmark for landmark in reversed(walk.landmarks) if landmark != walk.begun]
        for landmark in [walk.begun, *newest_first] if walk.begun else newest_first:
            path = await self._obtain(landmark)
            if path is not None:
                self._jumped, passed = True, landmark.position.next_round
                log.info("goes on from a snapshot round=%s", landmark.position.head_round)
                kept = {round: digests for round, digests in walk.kept.items() if round < passed}
                return Jump(
                    landmark,
                    path,
                    kept,
                    {round: digest for round, digest in walk.own.items() if round < passed},
                )
            outdated = self._gone and landmark != walk.landmarks[-1]
            if self._snapshots.begun(landmark.sha256) and not outdated:
                return None  # to begin with another one would throw away what has come of this one
        return None

    async def _walk(
        self, start: Position, decided_round: int, rounds: Collection[int], own: PeerId
    ) -> Walk:
        walker = DecisionLog(self._info.run_id, self._info.coordinator_key, self._fetch_commits)
        walker.resume(start.next_round, start.head, start.head_round)
        walker.saw_decided(decided_round)
        walk = Walk()
        while walker.behind():
            word = await walker.next()
            entries = word.commit.entries if word.commit else ()
            if word.round in rounds:
                walk.kept[word.round] = [entry.digest for entry in entries]
            for entry in entries:
                if entry.author == own:
                    walk.own[word.round] = entry.digest
            if word.snapshot_sha256 and word.recorded_digest is not None:
                position = Position(walker.next_round, walker.head, walker.head_round)
                landmark = Landmark(
                    position, parse_digest(word.snapshot_sha256), word.recorded_digest
                )
                walk.landmarks.append(landmark)
                if await asyncio.to_thread(self._snapshots.begun, landmark.sha256):
                    walk.begun = landmark
        return walk

    async def _obtain(self, landmark: Landmark) -> Path | None:
        """The file of a snapshot, verified: from our own disk, from all members together, or from
        one of them.
        """
        digest, round = landmark.sha256, landmark.position.head_round
        if path := await asyncio.to_thread(self._snapshots.path, digest):
            return path
        size, peers = canonical_size(self._replica.committed), self._peers.peers
        for sources in (peers, *([peer] for peer in peers)):
            partial = await asyncio.to_thread(self._snapshots.partial, digest, size)
            await self._fetch(partial, sources)
            if partial.missing:
                if sources is peers:
                    return (
                        None  # nobody has the rest now; what has come is kept for the next attempt
                    )
                continue
            if await asyncio.to_thread(self._snapshots.adopt, partial, round):
                return self._snapshots.path(digest)
            names = ",".join(map(short, sources))
            log.warning(
                "snapshot refused, its SHA-256 is not the recorded one round=%s peers=%s",
                round,
                names,
            )
            await asyncio.to_thread(partial.clear)
        return None

    async def _fetch(self, partial: Partial, sources: Sequence[PeerId]) -> None:
        """Fill a partial, as far as the sources have it; `_gone` says whether all of them say that
        they do not.
        """
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
        self._gone = bool(sources) and absent.issuperset(sources)

    async def _fetch_ranges(
        self, partial: Partial, peer: PeerId, ranges: deque[int], absent: set[PeerId]
    ) -> PeerId | None:
        """Fetch ranges from one member while there are any; the member, if it stopped giving
        them.
        """
        while ranges:
            offset = ranges.popleft()
            try:
                blob = await self._fetch_range(partial, peer, offset)
            except (UnavailableError, RemoteProtocolError) as error:
                log.info(
                    "no snapshot sha256=%s peer=%s reason=%s",
                    partial.digest.hex()[:8],
                    short(peer),
                    str(error),
                )
                if isinstance(error, NotHeldError):
                    absent.add(peer)
                return peer
            await asyncio.to_thread(partial.put, offset, blob)
            done = partial.size - sum(map(partial.length, partial.missing))
            self._progress.phase = f"fetches a snapshot: {done} of {partial.size} bytes"
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

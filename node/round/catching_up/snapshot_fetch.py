"""The file of a recorded snapshot: from this node's disk, or from the members that hold it.

A snapshot is trusted for its SHA-256, which the majority reported and the coordinator recorded. Its
ranges come from several members at once and are checked for place and size as they arrive. When the
whole has another SHA-256 no member can be blamed, so it is fetched again from one member at a time,
and the member that lies is named.

What has come is kept: the fetch of a snapshot goes on where it ended, also after a restart.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from enum import Enum
from pathlib import Path
from typing import Protocol

from torch import Tensor

from node.links.frames import Part
from node.links.network import BlobRange, NotHeldError
from node.replica.canonical import canonical_size
from node.replica.digest import state_digest
from node.replica.snapshot import Partial, Snapshots
from node.round.catching_up.landmarks import Landmark
from node.status import NodeStatus
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import PeerId, short

log = logging.getLogger("lockstep.node")

SOURCES_MAX = 4
"""Members that a snapshot is fetched from at once: several thin uplinks fill a downlink."""


class MissingSnapshot(Enum):
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


class SnapshotFetch:
    """Fetches the files of snapshots to one node's folder."""

    def __init__(
        self,
        replica: ParameterSource,
        snapshots: Snapshots,
        peers: BlobSource,
        *,
        status: NodeStatus,
    ) -> None:
        self._replica, self._snapshots, self._peers = replica, snapshots, peers
        self._status = status

    async def obtain(self, landmark: Landmark) -> Path | MissingSnapshot:
        """The file of a snapshot, verified: from this node's disk, from all members together, or
        from one of them.
        """
        digest, round = landmark.sha256, landmark.position.head_round
        if path := await asyncio.to_thread(self._here, landmark):
            return path
        size, peers = canonical_size(self._replica.committed), self._peers.peers
        lack = MissingSnapshot.UNREACHABLE
        for sources in (peers, *([peer] for peer in peers)):
            partial = await asyncio.to_thread(self._snapshots.partial, digest, size)
            lack = await self._fetch(partial, sources)
            if partial.missing:
                if sources is peers:
                    return lack  # its ranges are kept for the next attempt
                continue
            if await asyncio.to_thread(self._snapshots.adopt, partial, round):
                return self._snapshots.path(digest) or MissingSnapshot.UNREACHABLE
            log.warning(
                "snapshot refused: its SHA-256 is not the recorded one",
                extra={"round": round, "peers": ",".join(map(short, sources))},
            )
            await asyncio.to_thread(partial.clear)
        return lack

    def _here(self, landmark: Landmark) -> Path | None:
        """The file of a snapshot on this node's disk; written now if its parameters are this
        node's.
        """
        path = self._snapshots.path(landmark.sha256)
        if path is None and state_digest(self._replica.committed) == landmark.state_digest:
            self._snapshots.write(landmark.position.head_round, self._replica.committed)
            path = self._snapshots.path(landmark.sha256)
        return path

    async def _fetch(self, partial: Partial, sources: Sequence[PeerId]) -> MissingSnapshot:
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
        return MissingSnapshot.ABSENT if all_absent else MissingSnapshot.UNREACHABLE

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
            self._status.says(f"fetches a snapshot: {done} of {partial.size} bytes")
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

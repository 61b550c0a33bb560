"""The archive of a relay: the payloads of every commit, from the first round on, on its disk.

    live       the swarm collects what a commit names, as any relay does
    before     the log of the coordinator names what came before this relay, or while it was away;
               members give it for as long as they keep it

So a run that has an archive from its beginning can be audited from its first round. What nobody
gives is noted and asked for again; what the disk has no room for is dropped, the oldest first, and
counted. The note on disk says how far the archive is complete, so that a restart goes on there.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from node.control.members import MemberList
from node.gossip.payload_log import PayloadLog
from node.gossip.transfer import Transfer
from node.links.network import BlobRange, PeerAddress, PeerNetwork, Purpose
from node.system.run_notes import RunNote, read_note, write_note
from protocol import wire_pb2 as wire
from protocol.codec.chain import SignedEntry, Void, open_entry
from protocol.codec.commits import Commit, SignedCommit, open_commit
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, short
from protocol.run_info import RunInfo

log = logging.getLogger("lockstep.relay")

ARCHIVE_NAME = "archive.json"
"""Name of the note in the relay's directory."""

POLL_S = 1.0
"""Pause between two looks for new commits."""

FETCH_S = 30.0
"""Longest time for one payload from one peer."""

LIVE_S = 10.0
"""Longest wait for a payload that the swarm is at work on."""

RETRY_S = 30.0
"""Pause between two attempts to get the payloads that nobody gave."""

RETRIES_MAX = 64
"""Payloads that one attempt asks for."""

MISSING_MAX = 65_536
"""Payloads that are noted as missing; an archive that lacks more begins later."""


class Note(RunNote):
    """How far the archive of a run is complete."""

    round: int = -1
    """Round of the last commit whose payloads were asked for."""
    missing: list[tuple[int, str]] = msgspec.field(default_factory=list)
    """Round and digest, in hexadecimal, of each payload that nobody gave; oldest first."""
    lost: int = 0
    """Payloads that nobody gave and that are not asked for any more."""


class Archive:
    """The committed payloads in `payloads`. `own` is this relay; `collected(round)` returns when
    the swarm is not, or no longer, at work on a round.
    """

    def __init__(
        self,
        info: RunInfo,
        own: PeerId,
        payloads: PayloadLog,
        network: PeerNetwork,
        members: MemberList,
        *,
        collected: Callable[[int], Awaitable[object]],
        path: Path,
    ) -> None:
        self._info, self._own, self._payloads = info, own, payloads
        self._network, self._members, self._collected = network, members, collected
        self._path = path
        self._note = read_note(path, Note(info.run_id), log, "archive begins again")
        self._favourite: PeerId | None = None
        """The peer that gave the last payload: it is asked first."""
        self._slow: set[PeerId] = set()
        """Peers that did not send a payload in time: they are asked last."""
        self._told_dropped = False

    def document(self) -> dict[str, Any]:
        """The archive for /status.json."""
        return {
            "first_round": self._payloads.first_round,
            "round": self._note.round,
            "missing": len(self._note.missing) + self._note.lost,
            "rounds_dropped": self._payloads.rounds_dropped,
        }

    async def payload(self, round: int, digest: Digest) -> bytes:
        """A committed payload: from the disk, or from a peer that keeps it, and then on the disk
        too.

        Raises `UnavailableError` when nobody gives it now.
        """
        blob = await asyncio.to_thread(self._payloads.get, digest)
        if blob is not None:
            return blob
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIVE_S):
                await self._collected(round)
        if self._payloads.size(digest) is not None:
            return await self.payload(round, digest)
        sources, refusals = self._sources(), list[str]()
        for source in sources:
            try:
                async with asyncio.timeout(FETCH_S):
                    fetched = await self._fetch(source, round, digest)
                await asyncio.to_thread(self._payloads.put, round, fetched, digest)
            except TimeoutError:
                self._slow.add(source.peer_id)
                refusals.append(f"{short(source.peer_id)}: not done within {FETCH_S:.0f} s")
            except (UnavailableError, RemoteProtocolError) as error:
                refusals.append(f"{short(source.peer_id)}: {error}")
            else:
                self._favourite = source.peer_id
                return bytes(fetched)
        raise UnavailableError(
            f"expected payload {digest.hex()[:16]} of round {round} from one of {len(sources)} "
            f"peers, got it from none: {'; '.join(refusals[:3]) or 'nobody is here'}"
        )

    async def fill(self, fetch_commits: Callable[[int], Awaitable[wire.Commits]]) -> None:
        """Complete the archive, and keep it complete, until cancelled. `fetch_commits(after_round)`
        asks until the coordinator answers.

        Raises `StorageError`, and `RemoteProtocolError` for a commit that another key signed.
        """
        retried_s = time.monotonic()
        while True:
            reply = await fetch_commits(self._note.round)
            missing = len(self._note.missing)
            for recorded in reply.commits:
                await self._complete(recorded)
            if reply.commits:
                await asyncio.to_thread(self._save)
                self._say_missing(len(self._note.missing) - missing)
            else:
                await asyncio.sleep(POLL_S)
            if self._note.missing and time.monotonic() - retried_s >= RETRY_S:
                await self._retry()
                retried_s = time.monotonic()

    async def _complete(self, recorded: wire.Committed) -> None:
        """Get all payloads of a commit that are not here and not void."""
        key, run_id = self._info.coordinator_key, self._info.run_id
        commit = open_commit(SignedCommit(recorded.body, recorded.signature), key)
        await self._collected(commit.round)
        chained = [
            open_entry(SignedEntry(entry.body, entry.signature), key, run_id)
            for entry in recorded.voids
        ]
        voids = {entry.digest for entry in chained if isinstance(entry, Void)}
        for each in commit.needed:
            if each.digest not in voids and not await self._obtain(commit.round, each.digest):
                self._note.missing.append((commit.round, each.digest.hex()))
        while len(self._note.missing) > MISSING_MAX:
            del self._note.missing[0]
            self._note.lost += 1
        await self._settle(commit)
        self._note.round = commit.round

    async def _obtain(self, round: int, digest: Digest) -> bool:
        """Whether a payload is here now."""
        if self._payloads.size(digest) is not None:
            return True
        try:
            await self.payload(round, digest)
        except UnavailableError:
            return False
        return True

    async def _settle(self, commit: Commit) -> None:
        await asyncio.to_thread(self._keep, commit)
        if self._payloads.rounds_dropped and not self._told_dropped:
            self._told_dropped = True
            log.warning(
                "the archive is full: its oldest rounds are dropped from now on, and the run can "
                "no longer be audited from its first round; give it more with --disk",
                extra={"first_round": self._payloads.first_round},
            )

    def _keep(self, commit: Commit) -> None:
        """Settle a round: what its commit names stays; in a round with sums all, as lists and parts
        are for whoever audits it. Blocks: for a thread.
        """
        self._payloads.settle(commit.round, commit.staying())

    def _say_missing(self, count: int) -> None:
        """Say once for a page of the log that nobody gave some of its payloads."""
        if count <= 0:
            return
        round, name = self._note.missing[-1]
        log.warning(
            "payloads that nobody gives: they are asked for again",
            extra={"count": count, "round": round, "digest": name[:16]},
        )

    async def _retry(self) -> None:
        """Ask for the oldest missing payloads again."""
        asked = self._note.missing[:RETRIES_MAX]
        later = self._note.missing[RETRIES_MAX:]
        lacking = [
            (round, name)
            for round, name in asked
            if not await self._obtain(round, Digest(bytes.fromhex(name)))
        ]
        self._note.missing = [*later, *lacking]  # the others have their turn first
        await asyncio.to_thread(self._save)

    async def _fetch(self, source: PeerAddress, round: int, digest: Digest) -> bytearray:
        transfer = Transfer(round, self._info.spec.rounds.payload_bytes_max)
        parts = self._network.fetch(source, BlobRange(digest), Purpose.CATCH_UP)
        async with aclosing(parts):
            async for part in parts:
                if transfer.append(part, source.peer_id, None):
                    return transfer.buffer
        raise UnavailableError("it ended a transfer early")

    def _sources(self) -> Sequence[PeerAddress]:
        """All other peers: the one that gave the last payload first, slow ones last."""
        known = {**self._members.members, **self._members.relays}
        self._slow &= known.keys()  # no more than there are peers
        others = [PeerAddress(peer, at) for peer, at in known.items() if peer != self._own]
        return sorted(others, key=self._rank)

    def _rank(self, peer: PeerAddress) -> tuple[bool, bool, PeerId]:
        return peer.peer_id in self._slow, peer.peer_id != self._favourite, peer.peer_id

    def _save(self) -> None:
        write_note(self._path, self._note)

"""The heads that nodes show to their coordinator: each must be a commit of its own journal.

    signed by another key       counted; the node is heard as if it had shown none
    a commit of the journal     nothing new, however old
    a newer one                 this directory is an old copy, or a new one with an old key
    another one of its step     this key has signed two histories: the proof is kept

In the last two cases this coordinator must decide nothing more: it would sign a second history, or
go on with one. `fault` holds the reason then, `failed` raises it, and the process ends.
"""

import asyncio
from bisect import bisect_left
from pathlib import Path
from typing import Any

from border.files import whole_file
from coordinator.journal import Journal, RecordedCommit
from coordinator.machine.events.effects import CommitRound
from coordinator.sequencer import Outcome
from protocol import wire_pb2 as wire
from protocol.codec.commits import open_commit
from protocol.codec.heads import PROOF_NAME, Equivocation, Head, conflict, head_of, open_head
from protocol.errors import EquivocationError, LockstepError, RemoteProtocolError, StorageError
from protocol.ids import PeerId, RunId, short

TOO_OLD = (
    "it was started from an old copy of its directory, or with nothing but its key: it lacks a "
    "commit that a node has, and stops"
)
TWO_HISTORIES = "its key has signed two histories of this run: it stops"


class HeadDesk:
    """The heads of one run. `directory` is the coordinator's."""

    def __init__(
        self, journal: Journal, run_id: RunId, coordinator_key: bytes, directory: Path
    ) -> None:
        self._journal, self._directory = journal, directory
        self._run_id, self._key = run_id, coordinator_key
        self.newest: Head | None = None
        """The newest commit that is on disk and may be told."""
        self.forged = 0
        """Heads shown that this run's key has not signed."""
        self.fault: LockstepError | None = None
        self._failed = asyncio.Event()

    def recover(self) -> None:
        """Take the newest commit of the journal; blocks. Raises `StorageError`."""
        for row in self._journal.last_commits(1):
            self.newest = self._head(row)

    def follow(self, outcome: Outcome) -> None:
        """Commits are on disk, and will be told."""
        for effect in outcome.effects:
            if isinstance(effect, CommitRound):
                signed = outcome.signed[effect.commit.round]
                self.newest = head_of(effect.commit, signed)

    async def objection(self, peer: PeerId, said: wire.NodeMessage) -> str:
        """Why this coordinator can go on with nobody, in words for a node, once a message of one
        has shown a commit that it lacks; else empty.
        """
        kind = said.WhichOneof("kind")
        holder = said.hello if kind == "hello" else said.heartbeat
        if not self.fault and kind in ("hello", "heartbeat") and holder.HasField("head"):
            self.fault = await asyncio.to_thread(self._flaw, peer, holder.head)
        if self.fault is None:
            return ""
        self._failed.set()
        return TWO_HISTORIES if isinstance(self.fault, EquivocationError) else TOO_OLD

    def document(self) -> dict[str, Any]:
        """The heads for /status.json."""
        return {"forged": self.forged, "fault": str(self.fault or "")}

    async def failed(self) -> None:
        """Wait until there is a `fault`, and raise it."""
        await self._failed.wait()
        if self.fault:
            raise self.fault

    def _flaw(self, peer: PeerId, said: wire.Head) -> LockstepError | None:
        newest = self.newest
        if newest and said.digest == newest.digest:
            return None
        try:
            head = open_head(said, self._key, self._run_id)
        except RemoteProtocolError:
            self.forged += 1
            return None
        if newest is None or head.step > newest.step:
            return self._too_old(peer, head)
        own = self._of_step(head.step, newest.round)
        return self._two_histories(own, head) if conflict(own, head) else None

    def _too_old(self, peer: PeerId, head: Head) -> StorageError:
        newest = self.newest
        here = f"the newest one here is of round {newest.round}" if newest else "none is here"
        return StorageError(
            f"{self._directory} is an old copy of this coordinator's directory, or a new one with "
            f"its key: node {short(peer)} has shown the commit of round {head.round}, which this "
            f"run's key signed, and {here}. Nothing was decided since. Put the directory back from "
            "a copy that has that commit. Where there is none this run cannot go on: begin a new "
            "one from its newest checkpoint, in another --directory"
        )

    def _two_histories(self, own: Head, head: Head) -> EquivocationError:
        proof = Equivocation(self._run_id, self._key, own, head)
        path = self._directory / PROOF_NAME
        kept = f"the proof is in {path}"
        try:
            with whole_file(path) as part:
                part.write_bytes(proof.document())
        except OSError as error:
            kept = f"the proof is not kept: {error.strerror or error}"
        return EquivocationError(
            f"{proof.words}: this directory is not the only one at work with the key, or an older "
            f"copy of it was put back; {kept}. Who sees it leaves, so begin a new run from the "
            "newest checkpoint, with another key"
        )

    def _of_step(self, step: int, newest_round: int) -> Head:
        """The commit of a step, which is not behind that of `newest_round`."""

        def first_from(round: int) -> Head:
            return self._head(self._journal.commits(round - 1, 1)[0])

        by_step = bisect_left(range(newest_round), step, key=lambda each: first_from(each).step)
        return first_from(by_step)

    def _head(self, row: RecordedCommit) -> Head:
        try:
            return head_of(open_commit(row.signed, self._key), row.signed)
        except RemoteProtocolError as error:
            raise StorageError(
                f"the journal's commit of round {row.round} is damaged: {error}; put the directory "
                "back from its newest copy"
            ) from None

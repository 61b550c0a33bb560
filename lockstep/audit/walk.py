"""One walk through the record of a run: the chain is checked, the payloads are applied.

    genesis, or a recorded snapshot
        -> for each commit: signature, link, rates, payloads by digest, apply;
           a payload that a later entry of the chain makes void is passed over
        -> a restart in the chain: its snapshot

`lockstep verify` walks to the end and stops at the first state that members did not report; the
auditor walks beside a live run, rests, goes back, and goes on after a difference.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

import torch

from lockstep.audit.differences import Difference, difference_of
from lockstep.audit.findings import Findings
from lockstep.audit.ledger import ChainLedger
from lockstep.audit.published import PublishedCheckpoint
from lockstep.audit.records import RunRecord
from lockstep.audit.restarts import names_restart, snapshot_of
from lockstep.audit.sums.authors import flaw_of_authors
from lockstep.audit.sums.parts import WholePayloads
from node.own_genesis import genesis_of
from node.replica.digest import canonical_sha256
from node.replica.factory import replica_for
from node.replica.position import Position
from node.replica.snapshot import file_sha256
from protocol import wire_pb2 as wire
from protocol.codec.commits import (
    Commit,
    SignedCommit,
    check_link,
    commit_digest,
    genesis_digest,
    open_commit,
)
from protocol.errors import DivergedError, RemoteProtocolError, StorageError
from protocol.ids import Digest

GENESIS_DIRECTORY = Path("~/.lockstep/genesis")
"""Where an audit keeps the published checkpoints from which runs begin."""


class LogWalk:
    """One walk through a record, which fills `findings`. Making one builds the model."""

    def __init__(
        self,
        record: RunRecord,
        findings: Findings,
        snapshot: Path | None = None,
        published: PublishedCheckpoint | None = None,
        snapshots: Iterable[Path] = (),
    ) -> None:
        """`snapshot` is where to begin; None: genesis. `published` is compared with the state on
        the way. In the directories `snapshots` the snapshots of restarts are looked for.
        """
        self._record, self.findings, self._published = record, findings, published
        info = record.info
        genesis = genesis_of(info.spec, GENESIS_DIRECTORY.expanduser())
        self.replica = replica_for(info.spec, info.run_id, torch.device("cpu"), 1, genesis=genesis)
        """The state that the log has led to."""
        self.payloads = WholePayloads(record.payload, info.run_id, self.replica.shape)
        """The payloads of the authors of all commits that were yielded."""
        self._snapshot = snapshot
        self._awaited = file_sha256(snapshot) if snapshot else None
        """SHA-256 of the snapshot to begin at, until the walk has come to it."""
        self._begins_at_restart: bool | None = None
        """Whether an entry of the chain names that snapshot; None: nobody has looked."""
        self._ledger = ChainLedger(info)
        self._head = genesis_digest(info.run_id)
        self._snapshots = ((snapshot.parent,) if snapshot else ()) + tuple(snapshots)
        self._compare_state(-1)

    async def commits(self) -> AsyncGenerator[tuple[Commit, wire.Committed, frozenset[Digest]]]:
        """Yields the commits behind the place in order, each signed by the coordinator and linked
        to the one before, with their void payloads; `Difference` for one that is not.

        The last one is the newest at the beginning: a live run may go on faster than its replay.
        """
        info, findings = self._record.info, self.findings
        if self._awaited and self._begins_at_restart is None:
            self._begins_at_restart = await names_restart(self._record, self._awaited)
        head, last = self._head, None
        while last is None or findings.round < last or self._ledger.ahead:
            reply = await self._record.commits(findings.round)
            last = reply.head_round if last is None else last
            for recorded in reply.commits:
                before = findings.round
                try:
                    about = recorded.body, recorded.signature, recorded.author_list
                    commit = open_commit(SignedCommit(*about), info.coordinator_key)
                    head = self._ledger.walk(head, recorded.before, commit)
                    check_link(commit, info.run_id, head, before)
                    voids = self._ledger.obey(commit, recorded.voids)
                except RemoteProtocolError as error:
                    raise difference_of(
                        before + 1, f"the commit that follows round {before}", error
                    ) from None
                await self._pass_restarts()
                if flaw := self._ledger.flaw(commit) or flaw_of_authors(commit, info.spec):
                    raise Difference(commit.round, flaw)
                head, findings.round = commit_digest(commit), commit.round
                self._head = head
                findings.commits += 1
                self.payloads.passed(commit)
                yield commit, recorded, voids
            head = self._head = self._end_of_page(head, reply)
            await self._pass_restarts()
            if not reply.commits:
                return

    async def take(
        self, commit: Commit, recorded: wire.Committed, voids: frozenset[Digest]
    ) -> bool:
        """Fetch the payloads of a commit and make its step, or begin at its snapshot. Returns
        whether the replica holds the state after it: not before the snapshot that is awaited.
        """
        if self._awaited is None:
            await self._apply(commit, voids)
        elif recorded.snapshot_sha256 == self._awaited and not self._begins_at_restart:
            self._begin_here(commit)
        if self._awaited is None:
            self._compare_state(commit.round)
        return self._awaited is None

    def _end_of_page(self, head: Digest, reply: wire.Commits) -> Digest:
        """Walks over the entries behind the last commit; the end of the log must hold every void
        that was obeyed.
        """
        try:
            head = self._ledger.walk(head, reply.tail)
        except RemoteProtocolError as error:
            raise difference_of(self.findings.round, "behind the last commit", error) from None
        self.findings.voids = self._ledger.found
        self.findings.schedules = self._ledger.schedules
        if not reply.commits and (missing := self._ledger.ahead):
            raise Difference(missing[0], "a payload is called void, and the chain does not say so")
        return head

    async def _apply(self, commit: Commit, voids: frozenset[Digest]) -> None:
        payloads = []
        for each in commit.needed:
            if each.digest in voids:
                payloads.append(b"")
                continue
            try:
                payloads.append(await self._record.payload(commit.round, each))
            except DivergedError as error:
                raise Difference(commit.round, str(error)) from None
            self.findings.payload_bytes += len(payloads[-1])
        await asyncio.to_thread(self.replica.apply, commit, payloads)
        self.findings.replayed += 1
        self.findings.replayed_by_sums += commit.sums is not None

    def _begin_here(self, commit: Commit) -> None:
        assert self._snapshot is not None, "only a snapshot is awaited"
        try:
            self.replica.adopt(self._snapshot)
        except StorageError as error:
            raise Difference(commit.round, str(error)) from None
        self._begin_after(commit.round)

    def _begin_after(self, round: int) -> None:
        self._awaited, self.findings.began_after = None, round

    async def _pass_restarts(self) -> None:
        """Go on from the checkpoints of the restarts that the walk has just met; one before the
        snapshot to begin at needs none.
        """
        while self._ledger.restarts:
            restart = self._ledger.restarts.pop(0)
            self.findings.restarts += 1
            if self._awaited not in (None, restart.sha256):
                continue
            path = self._snapshot if self._awaited else None
            if path is None:
                path = await asyncio.to_thread(snapshot_of, restart, self._snapshots)
            try:
                await asyncio.to_thread(self.replica.adopt, path)
            except StorageError as error:
                raise Difference(restart.round, str(error)) from None
            if self.replica.digest != restart.state_digest:
                raise Difference(
                    restart.round,
                    f"the checkpoint from which the run goes on has state "
                    f"{self.replica.digest:016x}, its entry says {restart.state_digest:016x}",
                )
            if self._awaited:
                self._begin_after(restart.round)
            self._compare_state(restart.round)

    def _compare_state(self, round: int) -> None:
        """The replica holds the state after a round: hold the published checkpoint against it."""
        self.findings.state_digest = f"{self.replica.digest:016x}"
        if self._published and self._awaited is None:
            self._published.compare(round, self.replica)

    # ---- places

    @property
    def place(self) -> Position:
        """The place behind the last commit that `commits` yielded; its state is the replica's once
        the commit is applied.
        """
        round, voids = self.findings.round, self._ledger
        return Position(
            round + 1, self._head, round, voids=voids.unmet, void_count=voids.found_or_unmet
        )

    def resume(self, place: Position) -> None:
        """Go on at a place; the replica and the counts of the findings are put there by others."""
        self._head, self.findings.round = place.head, place.head_round
        self._ledger.resume(place.voids, place.void_count, place.head_round)
        self._awaited = None

    def begin_again(self) -> None:
        """Go on at the beginning: at genesis, or on the way to the snapshot."""
        self.resume(Position(0, genesis_digest(self._record.info.run_id), -1))
        self._awaited = file_sha256(self._snapshot) if self._snapshot else None

    def finish(self) -> None:
        """The walk is at the end of the log; `DivergedError` when that has no place at which the
        snapshot begins, or none for the published checkpoint.
        """
        findings = self.findings
        if self._awaited:
            raise DivergedError(
                f"{self._snapshot}: no commit records a snapshot with SHA-256 {self._awaited.hex()}"
            )
        if self._published:
            self._published.require_compared(findings.began_after, findings.round)
            findings.checkpoint = self._published.verdict
        findings.canonical_sha256 = canonical_sha256(self.replica.committed).hex()

    @property
    def awaits_snapshot(self) -> bool:
        """Whether the walk has not come to the commit that records the snapshot to begin at."""
        return self._awaited is not None

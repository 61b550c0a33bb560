"""`lockstep verify DIR|URL`: replays the log of a run and compares the result with its checkpoint.

    genesis, or a recorded snapshot
        -> for each commit: signature, link, payloads by digest, apply, recorded state digest;
           a payload that a later entry of the chain makes void is passed over
        -> the parameters, bit for bit -> the published checkpoint

The run file determines the genesis, the commits name every payload and every scalar, and the
arithmetic is exact: a replay of the record gives the same bits on any machine. The audit ends at
the first round that differs, and names it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from lockstep.audit.copies.check import CopyCheck
from lockstep.audit.copies.payloads import Payloads
from lockstep.audit.differences import Difference, difference_of
from lockstep.audit.findings import Findings, in_words
from lockstep.audit.published import Published
from lockstep.audit.rates import RateBook
from lockstep.audit.records import Record, RecordInFiles, RecordOverNetwork
from lockstep.audit.restarts import (
    names_restart,
    snapshot_directories,
    snapshot_file,
    snapshot_of,
)
from lockstep.audit.voids import VoidBook
from lockstep.audit.work.check import WorkCheck
from lockstep.audit.work.proofs import ProofCheck
from lockstep.audit.work.start import recomputer_for
from lockstep.console import Advance, output, progress, write_json
from lockstep.service.signals import run_event_loop
from node.own_genesis import genesis_of
from node.replica.digest import canonical_sha256
from node.replica.factory import replica_for
from node.replica.position import Position
from node.replica.replica import Replica
from node.replica.snapshot import file_sha256
from node.system.device import use_threads
from node.system.malloc import keep_freed_memory
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
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


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """Settings of one audit."""

    target: str
    """Directory of a coordinator or a demo, or the address of a coordinator."""

    checkpoint: Path | None = None
    """Published checkpoint to compare; None: that of a demo's directory, if there is one."""

    snapshot: Path | None = None
    """Snapshot or checkpoint to begin at; None: genesis."""

    payloads: tuple[Path, ...] = ()
    """Directories of payloads; empty: those beside the coordinator's."""

    threads: int = 0
    """CPU threads; 0: as many as cores. They change only the time."""

    json_path: str | None = None
    """File for the findings; "-" is standard output."""

    work: Path | None = None
    """The run's prepared data, to compute the evidence against authors again; None: it is not."""


def verify(settings: VerifySettings) -> None:
    """Replays, compares and prints the findings; `DivergedError` when something differs."""
    keep_freed_memory()
    use_threads(settings.threads)
    findings = run_event_loop(_verify(settings))
    if settings.json_path != "-":
        output.print(in_words(findings), soft_wrap=True)


async def _verify(settings: VerifySettings) -> Findings:
    local = _is_directory(settings.target)
    record: RecordInFiles | RecordOverNetwork
    if local:
        record = RecordInFiles(Path(settings.target), settings.payloads)
    else:
        record = await RecordOverNetwork.connect(parse_link(settings.target))
    findings, started_s = Findings(record.info.run_id), time.monotonic()
    try:
        beside = str(Path(settings.target) / "checkpoint")
        checkpoint = settings.checkpoint or (
            Path(beside) if local and _is_directory(beside) else None
        )
        published = Published(checkpoint, findings.run_id) if checkpoint else None
        with (
            progress("replaying", "commits") as advance,
            TemporaryDirectory(prefix="lockstep-verify-") as scratch,
        ):
            snapshot = settings.snapshot
            if snapshot:
                snapshot = snapshot_file(snapshot, record.info, Path(scratch))
            audit = Audit(record, findings, published, snapshot)
            if local:
                audit.snapshots = snapshot_directories(Path(settings.target), settings.payloads)
            accusations = await record.evidence()
            evidence = [each.evidence for each in accusations]
            audit.proofs = ProofCheck(accusations, record.info.spec)
            audit.copies = CopyCheck(evidence)
            if settings.work:
                recomputer = await asyncio.to_thread(recomputer_for, record.info, settings.work)
                audit.work = WorkCheck(evidence, recomputer)
            await audit.replay(advance)
        findings.verified = True
        return findings
    except Difference as error:
        findings.first_difference = {"round": error.round, "reason": error.reason}
        raise
    finally:
        findings.seconds = round(time.monotonic() - started_s, 3)
        await record.close()
        if settings.json_path is not None:
            write_json(settings.json_path, asdict(findings))


def _is_directory(path: str) -> bool:
    return Path(path).is_dir()


class Audit:
    """One walk through a record, which fills `findings`."""

    def __init__(
        self, record: Record, findings: Findings, published: Published | None, snapshot: Path | None
    ) -> None:
        self._record, self._findings, self._published = record, findings, published
        info = record.info
        genesis = genesis_of(info.spec, GENESIS_DIRECTORY.expanduser())
        self._replica = replica_for(info.spec, info.run_id, torch.device("cpu"), 1, genesis=genesis)
        self._snapshot = snapshot
        self._awaited = file_sha256(snapshot) if snapshot else None
        self._first = -1
        self._voids, self._rates = VoidBook(info), RateBook(info.spec)
        self._head = genesis_digest(info.run_id)
        self._begins_at_restart = False
        self.snapshots: tuple[Path, ...] = ()
        """Directories in which the snapshots of restarts are looked for."""
        self.proofs: ProofCheck | None = None
        """Evidence that is judged by the published rule."""
        self.work: WorkCheck | None = None
        """Evidence that is computed again on the way."""
        self.copies: CopyCheck | None = None
        """Evidence of copies that is compared again on the way."""

    async def replay(self, advance: Advance) -> None:
        """Walks to the end of the log; `Difference` at the first round that differs."""
        findings, replica = self._findings, self._replica
        self._compare_state(-1)
        if self._awaited:
            self._begins_at_restart = await names_restart(self._record, self._awaited)
        async for commit, recorded, voids in self._chain():
            if self._awaited is None:
                payload = self._record.payload
                if self.proofs:
                    self.proofs.before(commit)
                if self.copies:
                    read = Payloads(payload, replica.shape)
                    await self.copies.before(commit, voids, read)
                if self.work:
                    await self.work.before(commit, recorded, voids, replica, payload)
                await self._apply(commit, voids)
            elif recorded.snapshot_sha256 == self._awaited and not self._begins_at_restart:
                self._begin_here(commit)
            else:
                continue
            self._check_digest(commit, recorded)
            self._compare_state(commit.round)
            advance(findings.commits, self._record.info.spec.schedule.steps)
        if self._awaited:
            raise DivergedError(
                f"{self._snapshot}: no commit records a snapshot with SHA-256 {self._awaited.hex()}"
            )
        if self.proofs:
            findings.evidence_proven = self.proofs.proven()
        if self.copies:
            findings.copies_checked = self.copies.checked
            findings.copies_unchecked = self.copies.unchecked
        if self.work:
            self.work.require_complete()
            findings.work_checked = self.work.checked
        if self._published:
            self._published.require_compared(self._first, findings.round)
            findings.checkpoint = self._published.verdict
        findings.canonical_sha256 = canonical_sha256(replica.committed).hex()

    async def _chain(
        self,
    ) -> AsyncIterator[tuple[Commit, wire.Committed, frozenset[Digest]]]:
        """Yields the commits in order, each signed by the coordinator and linked to the one before,
        with their void payloads.

        The last one is the newest at the beginning: a live run may go on faster than its replay.
        """
        info, findings = self._record.info, self._findings
        head, last = self._head, None
        while last is None or findings.round < last or self._voids.ahead:
            reply = await self._record.commits(findings.round)
            last = reply.head_round if last is None else last
            for recorded in reply.commits:
                before = findings.round
                try:
                    commit = open_commit(
                        SignedCommit(recorded.body, recorded.signature), info.coordinator_key
                    )
                    head = self._voids.walk(head, recorded.before, commit)
                    check_link(commit, info.run_id, head, before)
                    voids = self._voids.obey(commit, recorded.voids)
                except RemoteProtocolError as error:
                    raise difference_of(
                        before + 1, f"the commit that follows round {before}", error
                    ) from None
                await self._pass_restarts()
                self._check_rates(commit)
                head, findings.round = commit_digest(commit), commit.round
                self._head = head
                findings.commits += 1
                yield commit, recorded, voids
            head = self._head = self._end_of_page(head, reply)
            await self._pass_restarts()
            if not reply.commits:
                return

    def _end_of_page(self, head: Digest, reply: wire.Commits) -> Digest:
        """Walks over the entries behind the last commit; the end of the log must hold every void
        that was obeyed.
        """
        try:
            head = self._voids.walk(head, reply.tail)
        except RemoteProtocolError as error:
            raise difference_of(self._findings.round, "behind the last commit", error) from None
        self._findings.voids = self._voids.found
        if not reply.commits and (missing := self._voids.ahead):
            raise Difference(missing[0], "a payload is called void, and the chain does not say so")
        return head

    async def _apply(self, commit: Commit, voids: frozenset[Digest]) -> None:
        payloads = []
        for entry in commit.entries:
            if entry.digest in voids:
                payloads.append(b"")
                continue
            try:
                payloads.append(await self._record.payload(commit.round, entry))
            except DivergedError as error:
                raise Difference(commit.round, str(error)) from None
            self._findings.payload_bytes += len(payloads[-1])
        await asyncio.to_thread(self._replica.apply, commit, payloads)
        self._findings.replayed += 1

    def _begin_here(self, commit: Commit) -> None:
        assert self._snapshot is not None, "only a snapshot is awaited"
        try:
            self._replica.adopt(self._snapshot)
        except StorageError as error:
            raise Difference(commit.round, str(error)) from None
        self._first, self._awaited = commit.round, None
        self._findings.began_after = commit.round

    async def _pass_restarts(self) -> None:
        """Go on from the checkpoints of the restarts that the walk has just met; one before the
        snapshot to begin at needs none.
        """
        while self._voids.restarts:
            restart = self._voids.restarts.pop(0)
            self._findings.restarts += 1
            if self._awaited not in (None, restart.sha256):
                continue
            path = self._snapshot if self._awaited else None
            if path is None:
                named = (self._snapshot.parent,) if self._snapshot else ()
                path = await asyncio.to_thread(snapshot_of, restart, (*named, *self.snapshots))
            try:
                await asyncio.to_thread(self._replica.adopt, path)
            except StorageError as error:
                raise Difference(restart.round, str(error)) from None
            if self._replica.digest != restart.state_digest:
                raise Difference(
                    restart.round,
                    f"the checkpoint from which the run goes on has state "
                    f"{self._replica.digest:016x}, its entry says {restart.state_digest:016x}",
                )
            if self._awaited:
                self._first, self._awaited = restart.round, None
                self._findings.began_after = restart.round
            self._compare_state(restart.round)

    def _check_rates(self, commit: Commit) -> None:
        while self._voids.schedules:
            self._rates.meet(self._voids.schedules.pop(0))
        self._findings.schedules = self._rates.changes
        if flaw := self._rates.flaw(commit):
            raise Difference(commit.round, flaw)

    def _check_digest(self, commit: Commit, recorded: wire.Committed) -> None:
        if not recorded.digest_reports:
            return  # no majority reported it: the replay decides
        if recorded.state_digest != self._replica.digest:
            raise Difference(
                commit.round,
                f"the replay leads to state {self._replica.digest:016x}, the nodes reported "
                f"{recorded.state_digest:016x}",
            )
        self._findings.digests_compared += 1

    def _compare_state(self, round: int) -> None:
        self._findings.state_digest = f"{self._replica.digest:016x}"
        if self._published and self._awaited is None:
            self._published.compare(round, self._replica)

    # ---- for an audit that follows a live run

    @property
    def replica(self) -> Replica:
        """The state that the log has led to."""
        return self._replica

    @property
    def place(self) -> Position:
        """The place behind the last commit that `commits` yielded; its state is the replica's once
        the commit is applied.
        """
        round, voids = self._findings.round, self._voids
        return Position(
            round + 1, self._head, round, voids=voids.unmet, void_count=voids.found_or_unmet
        )

    def resume(self, place: Position) -> None:
        """Go on at a place; the replica and the counts of the findings are put there by others."""
        self._head, self._findings.round = place.head, place.head_round
        self._voids.resume(place.voids, place.void_count)
        self._rates.resume(place.head_round)
        self._awaited = None

    def begin_again(self) -> None:
        """Go on at the beginning: at genesis, or on the way to the snapshot."""
        self.resume(Position(0, genesis_digest(self._record.info.run_id), -1))
        self._awaited = file_sha256(self._snapshot) if self._snapshot else None

    @property
    def awaits_snapshot(self) -> bool:
        """Whether the walk has not come to the commit that records the snapshot to begin at."""
        return self._awaited is not None

    def commits(self) -> AsyncIterator[tuple[Commit, wire.Committed, frozenset[Digest]]]:
        """The commits behind the place up to the newest, with their void payloads."""
        return self._chain()

    async def take(
        self, commit: Commit, recorded: wire.Committed, voids: frozenset[Digest]
    ) -> bool:
        """Fetch the payloads of a commit and make its step, or begin at its snapshot. Returns
        whether the replica holds the state after it: not before the snapshot that is awaited.
        """
        if self._awaited is None:
            await self._apply(commit, voids)
        elif recorded.snapshot_sha256 == self._awaited:
            self._begin_here(commit)
        return self._awaited is None

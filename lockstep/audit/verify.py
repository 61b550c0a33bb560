"""`lockstep verify DIR|URL`: replays the log of a run and compares the result with its checkpoint.

    the walk (`lockstep.audit.walk`) -> after each commit: the recorded state digest
                                     -> the parameters, bit for bit -> the published checkpoint

The run file determines the genesis, the commits name every payload and every scalar, and the
arithmetic is exact: a replay of the record gives the same bits on any machine. The audit ends at
the first round that differs, and names it.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.audit.copies.check import CopyCheck
from lockstep.audit.copies.payloads import Payloads
from lockstep.audit.differences import Difference
from lockstep.audit.findings import Findings, in_words
from lockstep.audit.published import PublishedCheckpoint
from lockstep.audit.records import RecordInFiles, RecordOverNetwork, RunRecord
from lockstep.audit.restarts import snapshot_directories, snapshot_file
from lockstep.audit.settings import VerifySettings
from lockstep.audit.sums.adding import RangeAdder
from lockstep.audit.sums.check import SumsCheck
from lockstep.audit.sums.parts import WholePayloads
from lockstep.audit.walk import LogWalk
from lockstep.audit.work.check import WorkCheck
from lockstep.audit.work.proofs import ProofCheck
from lockstep.audit.work.published import Accusation
from lockstep.audit.work.recompute import Recomputer
from lockstep.audit.work.start import recomputer_for
from lockstep.console import Advance, output, progress, write_json
from lockstep.service.signals import run_event_loop
from node.replica.replica import Replica
from node.system.device import use_threads
from node.system.malloc import keep_freed_memory
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
from protocol.codec.commits import Commit
from protocol.ids import Digest
from protocol.runfile import RunSpec


def verify(settings: VerifySettings) -> None:
    """Replays, compares and prints the findings; `DivergedError` when something differs."""
    keep_freed_memory()
    use_threads(settings.threads)
    findings = run_event_loop(_verify(settings))
    if settings.json_path != "-":
        output.print(in_words(findings), soft_wrap=True)


async def _verify(settings: VerifySettings) -> Findings:
    local = await asyncio.to_thread(Path(settings.target).is_dir)
    record: RecordInFiles | RecordOverNetwork
    if local:
        record = RecordInFiles(Path(settings.target), settings.payloads)
    else:
        record = await RecordOverNetwork.connect(parse_link(settings.target))
    findings, started_s = Findings(record.info.run_id), time.monotonic()
    try:
        beside = Path(settings.target) / "checkpoint"
        checkpoint = settings.checkpoint or (beside if local and beside.is_dir() else None)
        published = PublishedCheckpoint(checkpoint, findings.run_id) if checkpoint else None
        with (
            progress("replaying", "commits") as advance,
            TemporaryDirectory(prefix="lockstep-verify-") as scratch,
        ):
            snapshot = settings.snapshot
            if snapshot:
                snapshot = snapshot_file(snapshot, record.info, Path(scratch))
            places, recomputer = tuple[Path, ...](), None
            if local:
                places = snapshot_directories(Path(settings.target), settings.payloads)
            walk = LogWalk(record, findings, snapshot, published, places)
            if settings.work:
                recomputer = await asyncio.to_thread(recomputer_for, record.info, settings.work)
            said, spec = await record.evidence(), record.info.spec
            evidence = EvidenceCheck(said, walk.payloads, spec, recomputer)
            adder = RangeAdder(walk.payloads, walk.replica.shape, spec.algorithm)
            sums = SumsCheck(adder) if settings.sums else None
            await replay(record, walk, findings, evidence, sums, advance)
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


class EvidenceCheck:
    """Published evidence against one walk through a record: judged by the published rule, copies
    compared again, and with a `recomputer` work computed again.
    """

    def __init__(
        self,
        accusations: Sequence[Accusation],
        payloads: WholePayloads,
        spec: RunSpec,
        recomputer: Recomputer | None,
    ) -> None:
        evidence = [each.evidence for each in accusations]
        self._payload = payloads.payload
        self._proofs = ProofCheck(accusations, spec)
        self._copies = CopyCheck(evidence)
        self._work = WorkCheck(evidence, recomputer) if recomputer else None

    async def before(
        self, commit: Commit, recorded: wire.Committed, voids: frozenset[Digest], replica: Replica
    ) -> None:
        """A commit is about to be applied; `DivergedError` for what is said of it and is not so."""
        self._proofs.before(commit)
        await self._copies.before(commit, voids, Payloads(self._payload, replica.shape))
        if self._work:
            await self._work.before(commit, recorded, voids, replica, self._payload)

    def tell(self, findings: Findings) -> None:
        """The walk is at its end: what was proven, compared and computed again."""
        findings.evidence_proven = self._proofs.proven()
        findings.copies_checked = self._copies.checked
        findings.copies_unchecked = self._copies.unchecked
        if self._work:
            self._work.require_complete()
            findings.work_checked = self._work.checked


async def replay(
    record: RunRecord,
    walk: LogWalk,
    findings: Findings,
    evidence: EvidenceCheck,
    sums: SumsCheck | None,
    advance: Advance,
) -> None:
    """Walks to the end of the log; `Difference` at the first round that differs."""
    async for commit, recorded, voids in walk.commits():
        if not walk.awaits_snapshot:
            await evidence.before(commit, recorded, voids, walk.replica)
            if sums:
                await sums.before(commit, recorded, voids)
        if await walk.take(commit, recorded, voids):
            _check_digest(commit, recorded, walk.replica, findings)
            advance(findings.commits, record.info.spec.schedule.steps)
    walk.finish()
    evidence.tell(findings)
    if sums:
        findings.sums_added, findings.sums_unadded = sums.added, sums.unadded


def _check_digest(
    commit: Commit, recorded: wire.Committed, replica: Replica, findings: Findings
) -> None:
    if not recorded.digest_reports:
        return  # no majority reported it: the replay decides
    if recorded.state_digest != replica.digest:
        raise Difference(
            commit.round,
            f"the replay leads to state {replica.digest:016x}, the nodes reported "
            f"{recorded.state_digest:016x}",
        )
    findings.digests_compared += 1

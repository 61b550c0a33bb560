"""Follows a live run: replays each commit as it comes, with the code of `lockstep verify`, and
compares the state with what the members reported.

    genesis, or the saved state --> replays up to the newest commit --> compares --> waits
              ^                            |          ^                                |
              |                            |          '------- new commits ------------'
              '-- a payload that was applied became void
                                           '-- the chain does not hold: halted

It goes on after a difference, with an alarm: the archive and the count of later rounds are of use
then more than ever. When the chain itself does not hold there is nothing to go on with. Either way
the process ends with exit code 9 when it is told to end.
"""

import asyncio
import contextlib
import logging
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

from lockstep.audit.differences import Difference, LateVoid
from lockstep.audit.findings import Findings
from lockstep.audit.records import RunRecord
from lockstep.audit.shelf import AuditShelf, Counts, counts_of, put_into
from lockstep.audit.sums.adding import RangeAdder
from lockstep.audit.sums.auditing import SumsAudit
from lockstep.audit.tally import KeepingUp, Tally
from lockstep.audit.walk import LogWalk
from lockstep.audit.words import Words
from lockstep.audit.work.authors import AuthorAudit
from node.replica.digest import canonical_sha256
from node.replica.position import Position
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, SignedCommit, genesis_digest, open_commit
from protocol.codec.payload import decode
from protocol.codec.payload_header import Blob, Header
from protocol.errors import UnavailableError
from protocol.ids import Digest
from protocol.limits import COMMITS_PER_REPLY

log = logging.getLogger("lockstep.auditor")

POLL_S = 1.0
"""Pause between two looks for new commits and digests: a reply is as old at most."""


PASS_COMMITS = COMMITS_PER_REPLY
"""Commits that are replayed before what was reported is compared again: a run that differs in
every round must not push its first difference out of `Tally.waiting`."""


class LiveRecord(RunRecord, Protocol):
    """The record of a run that goes on."""

    @property
    def newest_round(self) -> int:
        """Round of the newest commit that is known; -1 before the first."""


class Follower:
    """One audit of a live run, with its state in `directory`. Making one builds the model."""

    def __init__(
        self,
        record: LiveRecord,
        directory: Path,
        save_every: int,
        snapshot: Path | None = None,
        words: Words | None = None,
        *,
        authors: AuthorAudit | None = None,
        sums_share: float = 0.0,
    ) -> None:
        """`snapshot` is where to begin when nothing is saved; None: genesis. `words` are told the
        state after each round. `authors` are audited beside the replay, and this share of all
        sums.
        """
        self._authors = authors or AuthorAudit()
        self._told = Words(lambda message: None) if words is None else words
        self._record = record
        self._shelf = AuditShelf(directory, record.info.run_id, save_every)
        self._tally = Tally()
        self._walk = LogWalk(record, Findings(record.info.run_id), snapshot)
        shape, algorithm = self._walk.replica.shape, record.info.spec.algorithm
        adder = RangeAdder(self._walk.payloads, shape, algorithm)
        self._sums = SumsAudit(adder, sums_share, self._told.refute)
        self._place = self._walk.place
        self._ignored_before = 0
        """Payloads that counted for nothing before this replica was made or sent back."""
        self._late: set[tuple[int, Digest]] = set()
        self._keeping_up = KeepingUp()
        self._looks = 0
        self._words = "starts"
        self._halted = ""
        self._leaving = asyncio.Event()

    # ---- for others

    @property
    def alarm(self) -> str:
        """The first difference in words; empty when there is none."""
        first = self._tally.first_difference
        return f"the first difference is in round {first.round}: {first.reason}" if first else ""

    @property
    def audited_round(self) -> int:
        """Round of the last commit that was replayed; -1 before the first."""
        return self._place.head_round

    @property
    def behind(self) -> int:
        """Rounds up to the newest commit that are not replayed."""
        return max(0, self._record.newest_round - self.audited_round)

    def header_of(self, round: int, payload: Blob) -> Header:
        """The header of a payload that decodes to the run's shape; `RemoteProtocolError` for
        another one.
        """
        return decode(payload, self._walk.replica.shape)[0]

    @property
    def _ignored(self) -> int:
        return self._ignored_before + self._walk.replica.payloads_ignored

    def document(self) -> dict[str, Any]:
        """The audit for /status.json."""
        first = self._tally.first_difference
        return {
            "words": self._halted or "; ".join(filter(None, (self._words, self._keeping_up.words))),
            "round": self.audited_round,
            "behind_rounds": self.behind,
            "keeps_up": not self._keeping_up.words,
            "began_after": self._walk.findings.began_after,
            "rounds_replayed": self._walk.findings.replayed,
            "rounds_equal": self._tally.compared,
            "rounds_different": self._tally.differences,
            "rounds_unreported": self._tally.unreported,
            "rounds_waiting": len(self._tally.waiting),
            "first_difference": {"round": first.round, "reason": first.reason} if first else None,
            "halted": self._halted,
            "payloads_ignored": self._ignored,
            "payloads_void": self._walk.findings.voids,
            "state_digest": f"{self._walk.replica.digest:016x}",
            **self._authors.document(),
            "sums": self._sums.document(),
        }

    # ---- life

    async def run(self) -> None:
        """Follow until cancelled, or until the chain does not hold. Raises `StorageError`."""
        if found := await asyncio.to_thread(self._shelf.load, self._walk):
            self._begin_at(*found)
            log.info("goes on", extra={"next_round": self._place.next_round})
        elif not self._walk.awaits_snapshot:
            self._told.replayed(-1, self._walk.replica.digest, None, 0)
        while not self._halted:
            try:
                while await self._pass():
                    self._words = "catches up with the run"
                self._words = self._at_the_end()
            except LateVoid as error:
                await self._go_back(error)
            except Difference as error:
                await self._halt(error)
            except UnavailableError as error:
                self._walk.resume(self._place)
                self._wait(f"waits: {error}")
            self._say()
            await self._rest()
            if self._leaving.is_set():
                if not self._walk.awaits_snapshot:
                    await self._write()
                await self._authors.close()
                return

    async def _rest(self) -> None:
        """Wait for `POLL_S`, or until told to leave. Meanwhile audit sums and work in turn: neither
        waits until the other has nothing left.
        """
        until_s = time.monotonic() + POLL_S
        while not self._leaving.is_set() and time.monotonic() < until_s:
            added = await self._sums.step()
            left_s = max(0.0, until_s - time.monotonic())
            if not await self._authors.step(self._walk.payloads.payload, left_s) and not added:
                break
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                await self._leaving.wait()

    def _at_the_end(self) -> str:
        if self._walk.awaits_snapshot:
            return "waits for a commit that records the snapshot to begin at"
        return "follows the run"

    def _wait(self, words: str) -> None:
        if self._words != words:
            log.warning("no payload", extra={"round": self.audited_round, "reason": words})
        self._words = words

    def leave(self) -> None:
        """End `run` after the commit in hand, with the state on disk."""
        self._leaving.set()

    async def _write(self) -> None:
        """Keep the state and its counts on disk."""
        counts = counts_of(self._walk.findings, self._place, self._ignored, self._tally)
        await asyncio.to_thread(self._shelf.save, self._walk, self._place, counts)

    # ---- one pass

    async def _pass(self) -> bool:
        """Replay what is new, at most `PASS_COMMITS`, then compare what was reported since; whether
        there is more.
        """
        self._looks += 1
        until = self._walk.findings.replayed + PASS_COMMITS
        async with aclosing(self._walk.commits()) as commits:
            async for commit, recorded, voids in commits:
                if not self._walk.awaits_snapshot:
                    await self._look_at_authors(commit, recorded, voids)
                    self._sums.look(commit, recorded)
                if not await self._walk.take(commit, recorded, voids):
                    continue
                self._place = self._walk.place
                self._tally.replayed(commit.round, self._walk.replica.digest)
                await self._tell(commit)
                await self._look_at(commit.round, recorded)
                if commit.round - self._shelf.saved_round >= self._shelf.save_every:
                    await self._write()
                self._say()
                if self._leaving.is_set():
                    return False
                if self._walk.findings.replayed >= until:
                    break
        if not self._walk.awaits_snapshot:
            self._place = self._walk.place
        await self._compare_waiting()
        return self._walk.findings.replayed >= until

    async def _look_at_authors(
        self, commit: Commit, recorded: wire.Committed, voids: frozenset[Digest]
    ) -> None:
        await self._authors.before(
            commit,
            recorded,
            voids,
            self._walk.replica,
            self._walk.payloads.payload,
            behind=self._record.newest_round - commit.round,
            restarts=self._walk.findings.restarts,
        )

    async def _tell(self, commit: Commit) -> None:
        """Tell the coordinator the state after a commit."""
        replica, sha256 = self._walk.replica, None
        if self._record.info.spec.retention.snapshot_due(commit.step):
            sha256 = await asyncio.to_thread(canonical_sha256, replica.committed)
        passed_over = self._place.void_count + self._walk.findings.restarts
        self._told.replayed(commit.round, replica.digest, sha256, passed_over)

    async def _compare_waiting(self) -> None:
        """Look again at all rounds that wait, page by page of the log."""
        waiting, key = sorted(self._tally.waiting), self._record.info.coordinator_key
        while waiting:
            reply = await self._record.commits(waiting[0] - 1)
            round = waiting[0]
            for recorded in reply.commits:
                round = open_commit(SignedCommit(recorded.body, recorded.signature), key).round
                await self._look_at(round, recorded)
            waiting = [later for later in waiting if later > round and reply.commits]

    async def _look_at(self, round: int, recorded: wire.Committed) -> None:
        if not recorded.digest_reports:
            return  # no majority has reported it yet
        if reason := self._tally.reported(round, recorded.state_digest, self._looks):
            log.error("DIFFERENCE", extra={"round": round, "reason": reason})
            await self._write()

    def _say(self) -> None:
        """Say how far the audit is: from time to time, and when it falls behind or comes back."""
        now_s = time.monotonic()
        equal, different = self._tally.compared, self._tally.differences
        about = {"round": self.audited_round, "behind_rounds": self.behind}
        if self._keeping_up.look(now_s, self.behind):
            words = self._keeping_up.words
            if words:
                log.warning("the auditor falls behind", extra=about | {"reason": words})
            else:
                log.info("the auditor keeps up again", extra=about)
        if self._keeping_up.due(now_s):
            log.info("audited", extra=about | {"equal": equal, "different": different})

    # ---- going back

    def _begin_at(self, place: Position, counts: Counts) -> None:
        put_into(self._walk.findings, counts)
        self._ignored_before = counts.payloads_ignored - self._walk.replica.payloads_ignored
        self._tally = counts.tally
        self._walk.resume(place)
        self._place, self._shelf.saved_round = place, place.head_round

    async def _go_back(self, error: LateVoid) -> None:
        """A payload that was applied is void: replay from before its round."""
        if error.void in self._late:
            await self._halt(error)  # the record announces it with its commit, or it lies
            return
        self._late.add(error.void)
        self._authors.drop()
        first = self._tally.first_difference
        found = await asyncio.to_thread(self._shelf.load, self._walk, error.void[0])
        genesis = Position(0, genesis_digest(self._record.info.run_id), -1)
        self._begin_at(*(found or (genesis, Counts(next_round=0))))
        if found is None:
            self._walk.begin_again()
        self._tally.first_difference = first or self._tally.first_difference
        self._told.take_back(self._place.head_round)
        about = {"round": error.void[0], "next_round": self._place.next_round}
        log.warning("a payload that was replayed is void; replays from before it", extra=about)

    async def _halt(self, error: Difference) -> None:
        self._tally.differences += 1
        self._tally.found(error.round, error.reason)
        self._halted = f"halted: {error}; the archive is kept and served"
        log.error("DIFFERENCE", extra={"round": error.round, "reason": self._halted})
        self._walk.resume(self._place)
        await self._write()

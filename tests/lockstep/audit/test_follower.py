"""An audit that follows a live run: it goes on from where it stopped, waits, goes back, and says
where the run differs.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from lockstep.audit import follower as following
from lockstep.audit import tally as tallying
from lockstep.audit.copies.payloads import Payload
from lockstep.audit.copies.watching import CopyWatch
from lockstep.audit.follower import Follower
from lockstep.audit.records import RecordInFiles
from lockstep.audit.shelf import COUNTS_NAME
from lockstep.audit.sums.auditing import SumsAudit
from lockstep.audit.words import Words
from lockstep.audit.work.authors import AuthorAudit
from lockstep.service.keys import load_or_create_key
from node.replica.replica import Replica
from protocol import wire_pb2 as wire
from protocol.codec.chain import Void, sign_entry
from protocol.codec.commits import Commit, Entry, SignedCommit, commit_digest, open_commit
from protocol.codec.evidence import Evidence
from protocol.errors import UnavailableError
from tests.lockstep.audit.runs import STEPS
from tests.support.waiting import until

LAST = STEPS - 1


class GrowingRecord(RecordInFiles):
    """The record of a finished run as if it went on: commits up to `upto` are there."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, ())
        self.upto, self.newest_round = LAST, -1
        self.asked: list[int] = []
        self.lacking: set[int] = set()
        self.change: Callable[[int, wire.Committed], object] = lambda round, commit: None
        self.tail: list[wire.ChainEntry] = []

    def opened(self, recorded: wire.Committed) -> Commit:
        signed = SignedCommit(recorded.body, recorded.signature, recorded.author_list)
        return open_commit(signed, self.info.coordinator_key)

    async def commits(self, after_round: int) -> wire.Commits:
        self.asked.append(after_round)
        reply = await super().commits(after_round)
        shown = [row for row in reply.commits if self.opened(row).round <= self.upto]
        for row in shown:
            self.change(self.opened(row).round, row)
        self.newest_round = self.upto
        return wire.Commits(
            commits=shown, decided_round=self.upto, head_round=self.upto, tail=self.tail
        )

    async def payload(self, round: int, entry: Entry) -> bytes:
        if round in self.lacking:
            raise UnavailableError("nobody gives it")
        return await super().payload(round, entry)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    torch.set_num_threads(1)


@pytest.fixture
async def record(finished: Path, tmp_path: Path) -> AsyncIterator[GrowingRecord]:
    copy = shutil.copytree(finished, tmp_path / "record")
    growing = GrowingRecord(Path(copy))
    yield growing
    await growing.close()


@asynccontextmanager
async def audit(
    record: GrowingRecord, directory: Path, save_every: int = 100, snapshot: Path | None = None
) -> AsyncIterator[Follower]:
    """A follower at work; it leaves at the end."""
    follower = Follower(record, directory, save_every, snapshot)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        follower.leave()
        await task


async def test_it_replays_what_comes_and_finds_it_equal(
    record: GrowingRecord, tmp_path: Path
) -> None:
    record.upto = 3
    async with audit(record, tmp_path) as follower:
        await until(lambda: follower.document()["rounds_equal"] == 4)
        assert follower.audited_round == 3
        record.upto = LAST
        await until(lambda: follower.document()["rounds_equal"] == STEPS)
        document = follower.document()
    assert (document["behind_rounds"], document["rounds_waiting"]) == (0, 0)
    assert document["words"] == "follows the run"
    assert document["first_difference"] is None
    assert follower.alarm == ""
    last = (await record.commits(LAST - 1)).commits[0]
    assert document["state_digest"] == f"{last.state_digest:016x}"


async def test_every_payload_is_looked_at_for_copies_and_honest_nodes_make_none(
    record: GrowingRecord, tmp_path: Path
) -> None:
    found: list[Evidence] = []
    path = tmp_path / "copies.json"
    copies = CopyWatch(record.info, secret=b"s", tell=found.append, path=path)
    follower = Follower(record, tmp_path, 100, authors=AuthorAudit(copies))
    task = asyncio.create_task(follower.run())
    await until(lambda: follower.document()["rounds_equal"] == STEPS)
    entries = sum(len(record.opened(row).entries) for row in (await record.commits(-1)).commits)
    assert follower.document()["copies"]["payloads"] == entries
    assert not found
    follower.leave()
    await task
    assert path.is_file(), "what was seen outlives a restart"


async def test_work_is_audited_however_many_ranges_wait_to_be_added_again(
    record: GrowingRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def added(sums: SumsAudit) -> bool:
        await asyncio.sleep(following.POLL_S)
        return True

    class Steps(AuthorAudit):
        made = 0

        async def step(self, payload: Payload, seconds: float) -> bool:
            self.made += 1
            return False

    monkeypatch.setattr(SumsAudit, "step", added)
    authors = Steps()
    follower = Follower(record, tmp_path, 100, authors=authors)
    task = asyncio.create_task(follower.run())
    await until(lambda: authors.made >= 3)
    follower.leave()
    await task


async def test_it_tells_the_coordinator_every_state_from_genesis_on(
    record: GrowingRecord, tmp_path: Path
) -> None:
    said: list[wire.Audited] = []
    words = Words(lambda message: said.append(message.audited))
    follower = Follower(record, tmp_path, 100, words=words)
    genesis = follower.document()["state_digest"]
    task = asyncio.create_task(follower.run())
    await until(lambda: follower.document()["rounds_equal"] == STEPS)
    follower.leave()
    await task
    assert [word.round for word in said] == [-1, *range(STEPS)]
    assert f"{said[0].state_digest:016x}" == genesis
    rows = (await record.commits(-1)).commits
    assert [word.state_digest for word in said[1:]] == [row.state_digest for row in rows]
    assert [word.snapshot_sha256 for word in said[1:]] == [row.snapshot_sha256 for row in rows]


async def test_it_goes_on_where_it_stopped_with_its_counts(
    record: GrowingRecord, tmp_path: Path
) -> None:
    record.upto = 3
    async with audit(record, tmp_path) as follower:
        await until(lambda: follower.document()["rounds_equal"] == 4)
    record.upto, record.asked = LAST, []
    async with audit(record, tmp_path) as follower:
        await until(lambda: follower.document()["rounds_equal"] == STEPS)
    assert min(record.asked) == 3
    assert follower.document()["rounds_replayed"] == STEPS


async def test_when_the_first_payloads_are_gone_it_begins_at_a_snapshot_that_a_commit_records(
    record: GrowingRecord, tmp_path: Path
) -> None:
    [snapshot] = (tmp_path / "record" / "node-1" / "snapshots").glob("5-*")
    record.lacking, record.upto = set(range(6)), 4
    async with audit(record, tmp_path, snapshot=snapshot) as follower:
        await until(lambda: "waits for a commit" in follower.document()["words"])
    assert follower.audited_round == -1
    record.upto = 6
    async with audit(record, tmp_path, snapshot=snapshot) as follower:
        await until(lambda: follower.document()["rounds_equal"] == 2)
    record.upto = LAST
    async with audit(record, tmp_path, snapshot=snapshot) as follower:
        await until(lambda: follower.document()["rounds_equal"] == 3)
    document = follower.document()
    assert (document["began_after"], document["rounds_replayed"]) == (5, 2)
    last = (await record.commits(LAST - 1)).commits[0]
    assert document["state_digest"] == f"{last.state_digest:016x}"


async def test_a_kill_between_its_two_writes_costs_only_the_rounds_since_the_first(
    record: GrowingRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.upto = 3
    async with audit(record, tmp_path) as follower:
        await until(lambda: follower.document()["rounds_equal"] == 4)
    for record.upto in (LAST, 5):
        with monkeypatch.context() as killed:
            killed.setattr(Replica, "save", lambda *_: None)
            async with audit(record, tmp_path) as follower:
                await until(lambda: follower.document()["rounds_equal"] == record.upto + 1)
    record.asked, record.upto = [], LAST
    async with audit(record, tmp_path) as follower:
        await until(lambda: follower.document()["rounds_equal"] == STEPS)
    assert min(record.asked) == 3
    assert follower.document()["rounds_replayed"] == STEPS


@pytest.mark.parametrize("damaged", [COUNTS_NAME, "audit.safetensors"])
async def test_what_was_saved_and_is_damaged_costs_a_replay_from_genesis(
    record: GrowingRecord, tmp_path: Path, damaged: str
) -> None:
    async with audit(record, tmp_path) as follower:
        await until(lambda: follower.document()["rounds_equal"] == STEPS)
    (tmp_path / damaged).write_bytes(b"{")
    record.asked = []
    async with audit(record, tmp_path) as follower:
        await until(lambda: follower.document()["rounds_equal"] == STEPS)
    assert min(record.asked) == -1
    assert follower.document()["rounds_replayed"] == STEPS


async def test_a_difference_raises_the_alarm_and_the_audit_goes_on(
    record: GrowingRecord, tmp_path: Path
) -> None:
    def lie(round: int, recorded: wire.Committed) -> None:
        if round >= 5:
            recorded.state_digest = 7

    record.change = lie
    async with audit(record, tmp_path) as follower:
        await until(lambda: follower.document()["rounds_different"] == STEPS - 5)
        assert follower.document()["rounds_equal"] == 5
    assert "the first difference is in round 5: the replay leads to state" in follower.alarm
    async with audit(record, tmp_path) as again:
        await until(lambda: again.alarm == follower.alarm)


async def test_the_first_difference_is_found_although_every_later_round_differs(
    record: GrowingRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late auditor takes in more rounds at once than wait for a comparison."""
    monkeypatch.setattr(following, "PASS_COMMITS", 2)
    monkeypatch.setattr(tallying, "WAITING_MAX", 4)

    def lie(round: int, recorded: wire.Committed) -> None:
        recorded.state_digest = 7

    record.change = lie
    async with audit(record, tmp_path) as follower:
        await until(lambda: follower.document()["rounds_different"] == STEPS)
    assert "the first difference is in round 0" in follower.alarm


async def test_a_commit_that_does_not_follow_ends_the_audit_with_its_round(
    record: GrowingRecord, tmp_path: Path
) -> None:
    def forge(round: int, recorded: wire.Committed) -> None:
        if round == 4:
            recorded.signature = bytes(64)

    record.change = forge
    record.upto = 3
    async with audit(record, tmp_path) as follower:
        await until(lambda: follower.document()["rounds_equal"] == 4)
        record.upto = LAST
        await until(lambda: follower.document()["halted"])
    assert "the first difference is in round 4" in follower.alarm
    assert follower.audited_round == 3


async def test_a_payload_that_nobody_gives_is_waited_for(
    record: GrowingRecord, tmp_path: Path
) -> None:
    record.lacking = {4}
    async with audit(record, tmp_path) as follower:
        await until(lambda: "nobody gives it" in follower.document()["words"])
        assert follower.audited_round == 3
        record.lacking = set()
        await until(lambda: follower.document()["rounds_equal"] == STEPS)
    assert follower.document()["rounds_replayed"] == STEPS


@pytest.mark.parametrize("save_every", [4, 100])
async def test_a_payload_that_becomes_void_after_its_replay_is_replayed_without(
    record: GrowingRecord, tmp_path: Path, save_every: int
) -> None:
    """From the saved state before it, or from genesis."""
    async with audit(record, tmp_path, save_every) as follower:
        await until(lambda: follower.document()["rounds_equal"] == STEPS)
        before = follower.document()["state_digest"]
        newest = (await record.commits(-1)).commits
        poisoned, last = record.opened(newest[5]), record.opened(newest[-1])
        digest = poisoned.entries[0].digest
        void = Void(record.info.run_id, 5, digest, "most lack it", commit_digest(last))
        signed = sign_entry(void, load_or_create_key(tmp_path / "record" / "coordinator"))
        entry = wire.ChainEntry(body=signed.body, signature=signed.signature)

        def tell(round: int, recorded: wire.Committed) -> None:
            if round == 5:
                recorded.voids.append(entry)
            if round >= 5:
                recorded.digest_reports = 0  # withdrawn

        record.change, record.tail = tell, [entry]
        await until(lambda: follower.document()["payloads_void"] == 1)
        await until(lambda: follower.audited_round == LAST)
        document = follower.document()
    assert document["state_digest"] != before
    assert (document["rounds_replayed"], document["first_difference"]) == (STEPS, None)
    assert follower.alarm == ""

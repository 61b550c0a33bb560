"""The sequencer: journal first, effects after; a journal must lead to the commits on record."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from coordinator.journal import Journal
from coordinator.machine.events.effects import Evict
from coordinator.machine.events.inputs import (
    Announced,
    Disconnected,
    Event,
    Heartbeat,
    Holding,
    Joined,
    Lapsed,
    Ready,
    Restarted,
)
from coordinator.machine.machine import RunMachine
from coordinator.machine.state.records import Record
from coordinator.sequencer import Outcome, Sequencer
from protocol.codec.commits import open_commit
from protocol.errors import RemoteProtocolError, StorageError
from protocol.handshake import public_bytes
from protocol.ids import PeerId
from protocol.runfile import RunSpec
from tests.coordinator.client import COORDINATOR_KEY, quiet_spec
from tests.coordinator.disk import refuse_writes
from tests.coordinator.machine.driver import RUN, A, B, C, payload_digest, run_spec
from tests.simulation.checkers import portrait


class Desk:
    """A sequencer with its journal and every outcome that it let out."""

    def __init__(self, directory: Path, spec: RunSpec) -> None:
        self.journal = Journal(directory / "journal.sqlite")
        self.journal.bind(RUN, b"{}")
        self.outcomes: list[Outcome] = []
        self._told = asyncio.Event()
        self.sequencer = Sequencer(RunMachine(spec, RUN), self.journal, COORDINATOR_KEY, self._emit)

    def _emit(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        stored = {row.round for row in self.journal.commits(-1, 1000)}
        assert outcome.signed.keys() <= stored, "told before it was written"
        self._told.set()

    def left_ms(self) -> int:
        """Time until the oldest undecided round must be decided."""
        commit_by = self.sequencer.rounds.state.undecided[0].instants.commit_by
        return commit_by - self.sequencer.now_ms()

    async def told(self, condition: Callable[[], bool]) -> None:
        """Return when something was told after which the condition holds."""
        async with asyncio.timeout(20):
            while not condition():
                self._told.clear()
                await self._told.wait()


@asynccontextmanager
async def desk_of(directory: Path, spec: RunSpec | None = None) -> AsyncIterator[Desk]:
    desk = Desk(directory, spec or quiet_spec())
    desk.sequencer.recover()
    task = asyncio.create_task(desk.sequencer.run())
    try:
        yield desk
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, StorageError):
            await task
        desk.journal.close()


def joining(peer: PeerId) -> list[Event]:
    return [Joined(peer, (), "", "", ""), Ready(peer, -1, 1)]


def announcement(peer: PeerId, round: int, samples: int = 1) -> Announced:
    return Announced(peer, round, payload_digest(peer, round), 100, samples, 10, 2.0)


def a_round(round: int) -> list[Event]:
    return [
        announcement(A, round),
        announcement(B, round),
        Holding(A, round, (payload_digest(B, round),)),
        Holding(B, round, (payload_digest(A, round),)),
    ]


async def submit(desk: Desk, *events: Event) -> None:
    for event in events:
        await asyncio.wait_for(desk.sequencer.submit(event), 20)


async def test_an_event_is_on_disk_when_submit_returns(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A))
        assert [event for _, event in desk.journal.events()] == joining(A)


async def test_heartbeats_are_not_journalled(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), Heartbeat(A), Heartbeat(A))
        assert len(list(desk.journal.events())) == 2


async def test_a_refused_event_raises_to_its_sender_alone_and_leaves_no_trace(
    tmp_path: Path,
) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B))
        results = await asyncio.gather(
            desk.sequencer.submit(announcement(A, 0, samples=999)),
            desk.sequencer.submit(announcement(B, 0)),
            return_exceptions=True,
        )
        assert isinstance(results[0], RemoteProtocolError)
        assert results[1] is None
        assert announcement(A, 0, samples=999) not in [event for _, event in desk.journal.events()]


async def test_commits_are_signed_and_written_before_they_are_told(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), *a_round(0), *a_round(1))
        signed = {round: row for outcome in desk.outcomes for round, row in outcome.signed.items()}
        assert sorted(signed) == [0, 1]
        assert open_commit(signed[1], public_bytes(COORDINATOR_KEY)).round == 1
        assert (desk.sequencer.decided_round, desk.sequencer.head_round) == (1, 1)


async def test_instants_come_without_events(tmp_path: Path) -> None:
    spec = run_spec(
        rounds={"compute_ms": 1, "publish_ms": 1, "exchange_ms": 1}, membership={"start_members": 1}
    )
    async with desk_of(tmp_path, spec) as desk:
        await submit(desk, *joining(A), *joining(B))
        await desk.told(lambda: desk.sequencer.decided_round >= 2)
        assert desk.sequencer.rounds.state.totals.skipped >= 3


async def test_events_that_have_arrived_go_before_instants_that_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow write must not evict a member whose heartbeat is waiting in the queue."""
    desk = Desk(tmp_path, quiet_spec(membership={"lease_ms": 2000, "heartbeat_ms": 1000}))
    desk.sequencer.recover()
    clock_ms = desk.sequencer.now_ms()
    monkeypatch.setattr(desk.sequencer, "now_ms", lambda: clock_ms)
    for event in joining(A):
        desk.sequencer.rounds.handle(event, clock_ms)
    clock_ms += 2000
    waiting = asyncio.create_task(desk.sequencer.submit(Heartbeat(A)))
    await asyncio.sleep(0)
    task = asyncio.create_task(desk.sequencer.run())
    await asyncio.wait_for(waiting, 20)
    task.cancel()
    assert desk.sequencer.rounds.members.get(A) is not None
    desk.journal.close()


async def test_a_coordinator_that_was_stopped_for_an_hour_evicts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP, a suspended machine: the timers of leases and rounds are long over when it wakes."""
    async with desk_of(tmp_path, run_spec(membership={"start_members": 2})) as desk:
        await submit(desk, *joining(A), *joining(B))
        now_ms = desk.sequencer.now_ms
        monkeypatch.setattr(desk.sequencer, "now_ms", lambda: now_ms() + 3_600_000)
        await submit(desk, Heartbeat(A))
        assert [member.peer for member in desk.sequencer.rounds.members] == [A, B]
        assert desk.sequencer.rounds.state.undecided
        assert Restarted() in [event for _, event in desk.journal.events()]


async def test_a_restart_continues_where_the_journal_ends(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), *a_round(0), announcement(A, 1))
        before = portrait(desk.sequencer.rounds, with_leases=False)
    again = Desk(tmp_path, quiet_spec())
    assert again.sequencer.recover() == 9
    after = portrait(again.sequencer.rounds, with_leases=False)
    for state in (before, after):  # a restart moves instants, and nothing else
        del state["end"]["conclude_by_ms"]
        for undecided in state["undecided"]:
            del undecided["instants"], undecided["disturbed"]
    assert after == before
    assert (again.sequencer.decided_round, again.sequencer.head_round) == (0, 0)
    assert isinstance([event for _, event in again.journal.events()][-1], Restarted)
    again.journal.close()


async def test_a_first_start_records_no_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path, quiet_spec())
    assert desk.sequencer.recover() == 0
    assert list(desk.journal.events()) == []
    desk.journal.close()


async def test_the_clock_goes_on_from_the_journal_when_the_wall_clock_was_set_back(
    tmp_path: Path,
) -> None:
    future_ms = 10**14
    desk = Desk(tmp_path, quiet_spec())
    desk.journal.append([(future_ms, joining(A)[0])], [], [])
    desk.sequencer.recover()
    assert desk.sequencer.now_ms() >= future_ms
    desk.journal.close()


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_a_wall_clock_that_is_set_while_it_runs_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B))
        before_ms, real = desk.sequencer.now_ms(), time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        await submit(desk, *a_round(0))
        assert 0 <= desk.sequencer.now_ms() - before_ms < 60_000
        assert desk.sequencer.decided_round == 0
        assert Restarted() not in [event for _, event in desk.journal.events()]


@pytest.mark.parametrize("jump_s", [366 * 86_400.0, -366 * 86_400.0])
async def test_a_restart_under_a_wall_clock_a_year_off_keeps_members_and_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), announcement(A, 0))
        left_ms = desk.left_ms()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    async with desk_of(tmp_path) as desk:
        assert [member.peer for member in desk.sequencer.rounds.members] == [A, B]
        again_ms = desk.left_ms()
        assert left_ms - 60_000 < again_ms <= left_ms + 60_000
        await submit(desk, announcement(B, 0), *a_round(0)[2:])
        assert desk.sequencer.decided_round == 0


async def test_a_wall_clock_that_was_days_ahead_once_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set three days ahead across a restart and back again across the next one: the run's clock
    counts neither, and a key that is refused for an hour stays refused for an hour.
    """
    real = time.time
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B))
        began_ms = desk.sequencer.rounds.state.last_ms  # where a restart takes the clock up
        assert abs(began_ms - 1000 * real()) < 60_000, "a run begins at the wall clock"
    for days in (3, 0, -3):
        wall_s = real() + days * 86_400
        monkeypatch.setattr(time, "time", lambda at_s=wall_s: at_s)
        async with desk_of(tmp_path) as desk:
            assert 0 <= desk.sequencer.now_ms() - began_ms < 60_000
            verdicts = desk.sequencer.rounds.state.verdicts
            record = verdicts.records.setdefault(C, Record())
            record.refused_until_ms = began_ms + 3_600_000
            words = verdicts.refusal(C, desk.sequencer.now_ms())
            assert "refused for 60 more minutes" in words or "refused for 59" in words
            await submit(desk, Heartbeat(A), Disconnected(B))


async def test_a_journal_that_does_not_lead_to_its_commits_is_refused(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), *a_round(0), *a_round(1))
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database, database:
        database.execute("DELETE FROM events WHERE sequence > 8")
    again = Desk(tmp_path, quiet_spec())
    with pytest.raises(
        StorageError, match="end at a commit of round 0, the newest on record is of round 1"
    ):
        again.sequencer.recover()
    again.journal.close()


async def test_a_journal_that_another_release_would_decide_differently_is_refused(
    tmp_path: Path,
) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), announcement(A, 0, samples=8))
    again = Desk(tmp_path, quiet_spec(rounds={"share_samples_first": 4}))
    with pytest.raises(
        StorageError, match=r"journal event 5 .* does not replay: .*at most 4 samples used, got 8"
    ):
        again.sequencer.recover()
    again.journal.close()


async def test_a_failed_write_ends_the_sequencer_and_lets_no_effect_out(tmp_path: Path) -> None:
    desk = Desk(tmp_path, quiet_spec())
    desk.sequencer.recover()
    task = asyncio.create_task(desk.sequencer.run())
    await submit(desk, *joining(A), *joining(B), *a_round(0)[:3])
    told = len(desk.outcomes)
    refuse_writes(desk.journal)
    last = asyncio.create_task(desk.sequencer.submit(a_round(0)[3]))
    with pytest.raises(StorageError, match="cannot use the journal"):
        await asyncio.wait_for(task, 20)
    assert len(desk.outcomes) == told
    assert not last.done()
    assert desk.sequencer.decided_round == -1
    last.cancel()
    desk.journal.close()


async def test_members_that_fall_silent_are_evicted_by_time_alone(tmp_path: Path) -> None:
    async with desk_of(tmp_path, run_spec(membership={"lease_ms": 2, "heartbeat_ms": 1})) as desk:
        await submit(desk, joining(A)[0])
        await desk.told(
            lambda: any(isinstance(effect, Evict) for effect in desk.outcomes[-1].effects)
        )
        assert desk.sequencer.rounds.members.get(A) is None
        assert [event for _, event in desk.journal.events()] == [joining(A)[0], Lapsed(A)]

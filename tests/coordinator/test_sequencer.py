"""The core: journal first, effects after, and a journal that must lead to the commits on record."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from coordinator.journal import Journal
from coordinator.machine.events import (
    Announced,
    Event,
    Evict,
    Heartbeat,
    Holding,
    Joined,
    Lapsed,
    Ready,
    Restarted,
)
from coordinator.machine.rounds import Rounds
from coordinator.sequencer import Outcome, Sequencer
from protocol.commits import open_commit
from protocol.errors import RemoteProtocolError, StorageError
from protocol.handshake import public_bytes
from protocol.ids import PeerId
from protocol.runfile import RunSpec
from tests.coordinator.client import COORDINATOR_KEY, quiet_spec
from tests.coordinator.machine.driver import RUN, A, B, payload_digest, run_spec
from tests.simulation.checkers import portrait


class Desk:
    """A core with its journal and everything that it let out."""

    def __init__(self, directory: Path, spec: RunSpec) -> None:
        self.journal = Journal(directory / "journal.sqlite")
        self.journal.bind(RUN, b"{}")
        self.outcomes: list[Outcome] = []
        self._told = asyncio.Event()
        self.core = Sequencer(Rounds(spec, RUN), self.journal, COORDINATOR_KEY, self._emit)

    def _emit(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        stored = {row.round for row in self.journal.commits(-1, 1000)}
        assert outcome.signed.keys() <= stored, "told before it was written"
        self._told.set()

    async def told(self, condition: Callable[[], bool]) -> None:
        """Return when something was told after which the condition holds."""
        async with asyncio.timeout(20):
            while not condition():
                self._told.clear()
                await self._told.wait()


@asynccontextmanager
async def desk_of(directory: Path, spec: RunSpec | None = None) -> AsyncIterator[Desk]:
    desk = Desk(directory, spec or quiet_spec())
    desk.core.recover()
    task = asyncio.create_task(desk.core.run())
    try:
        yield desk
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, StorageError):
            await task
        desk.journal.close()


def joining(peer: PeerId) -> list[Event]:
    return [Joined(peer, (), "", "", ""), Ready(peer, -1, 1, True)]


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
        await asyncio.wait_for(desk.core.submit(event), 20)


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
            desk.core.submit(announcement(A, 0, samples=999)),
            desk.core.submit(announcement(B, 0)),
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
        assert (desk.core.decided_round, desk.core.head_round) == (1, 1)


async def test_instants_come_without_events(tmp_path: Path) -> None:
    spec = run_spec(
        rounds={"compute_ms": 1, "publish_ms": 1, "exchange_ms": 1}, membership={"start_members": 1}
    )
    async with desk_of(tmp_path, spec) as desk:
        await submit(desk, *joining(A), *joining(B))
        await desk.told(lambda: desk.core.decided_round >= 2)
        assert desk.core.rounds.skipped >= 3


async def test_what_has_arrived_goes_before_what_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow write must not evict a member whose heartbeat is waiting in the queue."""
    desk = Desk(tmp_path, quiet_spec(membership={"lease_ms": 2000, "heartbeat_ms": 1000}))
    desk.core.recover()
    clock_ms = desk.core.now_ms()
    monkeypatch.setattr(desk.core, "now_ms", lambda: clock_ms)
    for event in joining(A):
        desk.core.rounds.handle(event, clock_ms)
    clock_ms += 2000
    waiting = asyncio.create_task(desk.core.submit(Heartbeat(A)))
    await asyncio.sleep(0)
    task = asyncio.create_task(desk.core.run())
    await asyncio.wait_for(waiting, 20)
    task.cancel()
    assert desk.core.rounds.members.get(A) is not None
    desk.journal.close()


async def test_a_coordinator_that_was_stopped_for_an_hour_evicts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP, a suspended machine: the timers of leases and rounds are long over when it wakes."""
    async with desk_of(tmp_path, run_spec(membership={"start_members": 2})) as desk:
        await submit(desk, *joining(A), *joining(B))
        now_ms = desk.core.now_ms
        monkeypatch.setattr(desk.core, "now_ms", lambda: now_ms() + 3_600_000)
        await submit(desk, Heartbeat(A))
        assert [member.peer for member in desk.core.rounds.members] == [A, B]
        assert desk.core.rounds.in_flight
        assert Restarted() in [event for _, event in desk.journal.events()]


async def test_a_restart_continues_where_the_journal_ends(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), *a_round(0), announcement(A, 1))
        before = portrait(desk.core.rounds, with_leases=False)
    again = Desk(tmp_path, quiet_spec())
    assert again.core.recover() == 9
    after = portrait(again.core.rounds, with_leases=False)
    for state in (before, after):  # a restart moves instants, and nothing else
        del state["conclude_by_ms"]
        for flight in state["in_flight"]:
            del flight["instants"], flight["disturbed"]
    assert after == before
    assert (again.core.decided_round, again.core.head_round) == (0, 0)
    assert isinstance([event for _, event in again.journal.events()][-1], Restarted)
    again.journal.close()


async def test_a_first_start_records_no_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path, quiet_spec())
    assert desk.core.recover() == 0
    assert list(desk.journal.events()) == []
    desk.journal.close()


async def test_the_clock_goes_on_from_the_journal_when_the_wall_clock_was_set_back(
    tmp_path: Path,
) -> None:
    future_ms = 10**14
    desk = Desk(tmp_path, quiet_spec())
    desk.journal.append([(future_ms, joining(A)[0])], [], [])
    desk.core.recover()
    assert desk.core.now_ms() >= future_ms
    desk.journal.close()


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_a_wall_clock_that_is_set_while_it_runs_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B))
        before_ms, real = desk.core.now_ms(), time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        await submit(desk, *a_round(0))
        assert 0 <= desk.core.now_ms() - before_ms < 60_000
        assert desk.core.decided_round == 0
        assert Restarted() not in [event for _, event in desk.journal.events()]


@pytest.mark.parametrize("jump_s", [366 * 86_400.0, -366 * 86_400.0])
async def test_a_restart_under_a_wall_clock_a_year_off_keeps_members_and_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), announcement(A, 0))
        left_ms = desk.core.rounds.in_flight[0].instants.commit_by - desk.core.now_ms()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    async with desk_of(tmp_path) as desk:
        assert [member.peer for member in desk.core.rounds.members] == [A, B]
        again_ms = desk.core.rounds.in_flight[0].instants.commit_by - desk.core.now_ms()
        assert left_ms - 60_000 < again_ms <= left_ms + 60_000
        await submit(desk, announcement(B, 0), *a_round(0)[2:])
        assert desk.core.decided_round == 0


async def test_a_journal_that_does_not_lead_to_its_commits_is_refused(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), *a_round(0), *a_round(1))
    with sqlite3.connect(tmp_path / "journal.sqlite") as database:
        database.execute("DELETE FROM events WHERE sequence > 8")
    database.close()
    again = Desk(tmp_path, quiet_spec())
    with pytest.raises(
        StorageError, match="end at a commit of round 0, the newest on record is of 1"
    ):
        again.core.recover()
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
        again.core.recover()
    again.journal.close()


async def test_a_failed_write_ends_the_core_and_tells_nobody(tmp_path: Path) -> None:
    desk = Desk(tmp_path, quiet_spec())
    desk.core.recover()
    task = asyncio.create_task(desk.core.run())
    await submit(desk, *joining(A), *joining(B), *a_round(0)[:3])
    told = len(desk.outcomes)
    desk.journal._database.execute("PRAGMA query_only = ON")
    last = asyncio.create_task(desk.core.submit(a_round(0)[3]))
    with pytest.raises(StorageError, match="cannot use the journal"):
        await asyncio.wait_for(task, 20)
    assert len(desk.outcomes) == told
    assert not last.done()
    assert desk.core.decided_round == -1
    last.cancel()
    desk.journal.close()


async def test_members_that_fall_silent_are_evicted_by_time_alone(tmp_path: Path) -> None:
    async with desk_of(tmp_path, run_spec(membership={"lease_ms": 2, "heartbeat_ms": 1})) as desk:
        await submit(desk, joining(A)[0])
        await desk.told(
            lambda: any(isinstance(effect, Evict) for effect in desk.outcomes[-1].effects)
        )
        assert desk.core.rounds.members.get(A) is None
        assert [event for _, event in desk.journal.events()] == [joining(A)[0], Lapsed(A)]

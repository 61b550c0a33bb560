"""How long the desk waits for a member that was drawn to write a checkpoint."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.checkpoints.desk import NOTE_MS, PATIENCE_MS, CheckpointDesk
from coordinator.checkpoints.store import PROGRESS, CheckpointStore
from coordinator.history import Contributions
from coordinator.machine.events.inputs import CheckpointFailed
from coordinator.machine.state.checkpoints import Checkpoints, Work
from protocol.ids import sha256
from tests.coordinator.machine.driver import A, B, C

BEGIN_MS = 1_000_000


class Sequencer:
    """A run in which A writes the checkpoint of round 9; its clock is the test's."""

    def __init__(self) -> None:
        self.now, self.submitted = BEGIN_MS, list[object]()
        self.work = Work(9, 9, A, B)
        state = SimpleNamespace(checkpoints=Checkpoints(work=self.work, room_bytes=1, kept=1))
        self.rounds = SimpleNamespace(state=state)
        self.patience = SimpleNamespace(outlast=lambda work: work())

    def now_ms(self) -> int:
        return self.now

    async def submit(self, event: object) -> None:
        self.submitted.append(event)


async def began(run: Any, place: Path) -> CheckpointDesk:
    desk = CheckpointDesk(run, CheckpointStore(place), lambda: Contributions((), 0))
    await desk.start(1, 1)
    await desk.stop()  # the test looks by itself
    return desk


async def failed_after(run: Sequencer, desk: CheckpointDesk, milliseconds: int) -> list[object]:
    run.now += milliseconds
    await desk._look()
    return run.submitted


def names_in(place: Path) -> list[str]:
    return [path.name for path in place.iterdir()]


async def test_a_member_that_does_nothing_fails_after_the_patience(tmp_path: Path) -> None:
    run = Sequencer()
    desk = await began(run, tmp_path)
    assert not await failed_after(run, desk, PATIENCE_MS)
    [failed] = await failed_after(run, desk, 1)
    assert isinstance(failed, CheckpointFailed)
    assert (failed.peer, failed.round) == (A, 9)


async def test_restarts_give_no_time_anew(tmp_path: Path) -> None:
    run, step_ms = Sequencer(), PATIENCE_MS // 3
    for _ in range(3):
        assert not await failed_after(run, await began(run, tmp_path), step_ms)
    assert await failed_after(run, await began(run, tmp_path), 1)


async def test_progress_gives_time_also_over_a_restart(tmp_path: Path) -> None:
    run = Sequencer()
    desk = await began(run, tmp_path)
    assert not await failed_after(run, desk, PATIENCE_MS)
    run.work.said[A] = (7, sha256(b"state"))
    assert not await failed_after(run, desk, 1)
    desk = await began(run, tmp_path)
    assert not await failed_after(run, desk, PATIENCE_MS)
    assert await failed_after(run, desk, 1)


async def test_another_writer_has_its_own_time(tmp_path: Path) -> None:
    run = Sequencer()
    assert not await failed_after(run, await began(run, tmp_path), NOTE_MS)
    run.now += 10 * PATIENCE_MS
    run.rounds.state.checkpoints.work = Work(9, 9, C, B)
    assert not await failed_after(run, await began(run, tmp_path), PATIENCE_MS)


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_note_goes_with_the_work(tmp_path: Path, restarted: bool) -> None:
    run = Sequencer()
    desk = await began(run, tmp_path)
    await failed_after(run, desk, 1)
    assert names_in(tmp_path) == [PROGRESS]
    run.rounds.state.checkpoints.work = None
    await failed_after(run, await began(run, tmp_path) if restarted else desk, 1)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("note", [b"", b"{}", b"\xff", b'{"round":9,"writer":"x","moved_ms":"y"}'])
async def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, note: bytes) -> None:
    run = Sequencer()
    (tmp_path / PROGRESS).write_bytes(note)
    assert not await failed_after(run, await began(run, tmp_path), PATIENCE_MS)

"""A node that is to end waits for nothing that may never come, and what it leaves undone it finds
again.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from node import trainer as trainer_module
from node.gossip.swarm import NotRetainedError
from node.replica.position import Position
from node.round.deadline import Deadline, DeadlinePassedError
from protocol import wire_pb2 as wire
from protocol.commits import Commit
from protocol.ids import PeerId
from tests.node.test_trainer import Stage, playing
from tests.support.tiny import tiny_corpus
from tests.support.waiting import PATIENCE_SECONDS, until


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


# ---- patience itself


async def test_without_a_limit_what_is_waited_for_comes() -> None:
    assert await Deadline().wait(asyncio.sleep(0, "here")) == "here"


async def test_a_limit_ends_the_wait_that_is_going_on_and_every_later_one() -> None:
    patience = Deadline()
    waiting = asyncio.create_task(patience.wait(asyncio.Event().wait()))
    await asyncio.sleep(0)
    patience.limit(0)
    with pytest.raises(DeadlinePassedError):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    with pytest.raises(DeadlinePassedError):
        await patience.wait(asyncio.Event().wait())


async def test_the_newest_limit_holds_also_when_it_is_later() -> None:
    patience, came = Deadline(), asyncio.Event()
    patience.limit(0.05)
    waiting = asyncio.create_task(patience.wait(came.wait()))
    await asyncio.sleep(0)
    patience.limit(PATIENCE_SECONDS)
    await asyncio.sleep(0.1)
    came.set()
    assert await waiting


async def test_a_timeout_of_what_is_waited_for_is_not_the_end_of_patience() -> None:
    async def late() -> None:
        raise TimeoutError("the disk")

    with pytest.raises(TimeoutError, match="the disk"):
        await Deadline().wait(late())


# ---- a node that is to end


def slots_take(patch: pytest.MonkeyPatch, milliseconds: int) -> None:
    patch.setattr(
        trainer_module, "longest_slot", lambda _: type("Slot", (), {"milliseconds": milliseconds})
    )


class Alone(Stage):
    """Whose members have all left: nobody gives a payload of the rounds that are named."""

    def __init__(self, directory: Path, overlap: int, lost_from: int) -> None:
        super().__init__(directory, overlap)
        self.lost_from, self.waits, self.given = lost_from, asyncio.Event(), self.swarm.collect
        self.swarm.collect = self.collect  # type: ignore[method-assign]

    async def collect(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        if commit.round >= self.lost_from:
            self.waits.set()
            await asyncio.Event().wait()
        return await self.given(commit, holders)


async def log_of(corpus: Path, rounds: int) -> Stage:
    """A stage that has trained so many rounds; its log and its payloads are for another one to
    replay.
    """
    stage = Stage(corpus, 0)
    async with playing(stage):
        stage.welcome()
        for round in range(rounds):
            stage.open(round)
            announced = await stage.announced(round + 1)
            stage.commit(round, [announced.digest])
            await until(lambda round=round: stage.progress.round == round)  # type: ignore[misc]
    return stage


def newcomer(corpus: Path, log: Stage, lost_from: int) -> Alone:
    late = Alone(corpus, 0, lost_from)
    late.commits, late.decided, late.swarm.blobs = log.commits, log.decided, log.swarm.blobs
    return late


def where(position: Position) -> tuple[int, int]:
    return position.next_round, position.head_round


async def test_asked_to_leave_a_node_does_not_wait_for_what_it_catches_up_with(
    corpus: Path,
) -> None:
    log = await log_of(corpus, 4)
    late = newcomer(corpus, log, lost_from=2)
    async with playing(late) as task:
        late.welcome()
        await late.waits.wait()
        late.trainer.leave()
        assert "asked to leave" in await asyncio.wait_for(task, PATIENCE_SECONDS)
    position = late.trainer.position
    assert where(position) == (2, 1)
    # and the state is that of round 1: going on from it leads to what the log has
    late.trainer = type(late.trainer)(late.trainer._parts)
    late.lost_from = 1000
    async with playing(late):
        late.welcome()
        await until(lambda: late.progress.round == 3)
    assert late.replica.digest == log.replica.digest


async def test_who_leaves_while_the_coordinator_is_away_waits_for_its_word_only_a_moment(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot of the run is longer than any test would wait."""
    monkeypatch.setattr(trainer_module, "AWAY_S", 0.5)
    slots_take(monkeypatch, 10**9)
    stage = Stage(corpus, 0)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        stage.client.state = "lost the coordinator; reconnecting"
        stage.trainer.leave()
        assert "asked to leave" in await asyncio.wait_for(task, PATIENCE_SECONDS)
    position = stage.trainer.position
    assert where(position) == (0, -1)
    assert [pending.digest for pending in position.pending] == [announced.digest]


@pytest.mark.parametrize("leaves", [True, False], ids=["leave", "finished"])
async def test_at_its_end_a_node_waits_for_a_last_word_only_so_long(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """The coordinator has fallen silent in the middle of a round, or the others are gone when the
    run is finished.
    """
    log = await log_of(corpus, 1)
    monkeypatch.setattr(trainer_module, "FINISHED_S", 0.5)
    slots_take(monkeypatch, 500)
    stage = Alone(corpus, 0, lost_from=1)
    stage.swarm.blobs = log.swarm.blobs
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        if leaves:
            stage.trainer.leave()
        else:
            stage.commit(0, [announced.digest])
            await until(lambda: stage.progress.round == 0)
            stage.open(1)
            announced = await stage.announced(2)
            stage.commit(1, [announced.digest])
            await stage.waits.wait()
            finished = wire.RunFinished(reason="all steps are done")
            stage.trainer.received(wire.CoordinatorMessage(finished=finished))
        await asyncio.wait_for(task, PATIENCE_SECONDS)
    position = stage.trainer.position
    assert where(position) == ((0, -1) if leaves else (1, 0))
    assert [pending.digest for pending in position.pending] == [announced.digest]


async def test_to_look_again_for_what_nobody_keeps_is_no_new_wait(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look ends long before the limit; together they must not outlast it."""
    monkeypatch.setattr(trainer_module, "RETRY_SECONDS", 0.1)
    slots_take(monkeypatch, 1000)
    stage, looks = Stage(corpus, 1), 0

    async def gone(commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        nonlocal looks
        looks += 1
        raise NotRetainedError("no member keeps it any more")

    monkeypatch.setattr(stage.swarm, "collect", gone)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        stage.commit(0, [(await stage.announced(1)).digest])
        await until(lambda: looks > 1)
        stage.trainer.leave()
        assert "asked to leave" in await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert where(stage.trainer.position) == (0, -1)
    assert looks > 2, "it should go on looking until then"


async def test_asked_to_leave_a_node_still_takes_the_last_word_of_its_round(corpus: Path) -> None:
    stage = Stage(corpus, 0)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        stage.trainer.leave()
        await asyncio.sleep(0.2)
        assert not task.done()
        stage.commit(0, [announced.digest])
        await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert where(stage.trainer.position) == (1, 0)
    assert stage.progress.rounds_counted == 1

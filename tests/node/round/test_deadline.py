"""A node that is to end waits for nothing that may never come, and finds again what it left
undone.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from node import trainer as trainer_module
from node.gossip.swarm import NotRetainedError
from node.replica.position import Position
from node.round import agenda
from node.round.deadline import Deadline, DeadlinePassedError
from protocol import wire_pb2 as wire
from protocol.clock import Slot
from protocol.codec.commits import Commit
from protocol.ids import Digest, PeerId
from tests.node.test_trainer import Stage, playing
from tests.support.tiny import tiny_corpus
from tests.support.virtual_time import loop_ms, virtually
from tests.support.waiting import PATIENCE_SECONDS, until


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


# ---- the deadline itself, in virtual time

HOUR_MS = 3_600_000


async def after(milliseconds: int) -> str:
    await asyncio.sleep(milliseconds / 1000)
    return "here"


async def passed(deadline: Deadline, milliseconds: int) -> bool:
    """Whether the deadline ends a wait of this length."""
    try:
        await deadline.wait(after(milliseconds))
    except DeadlinePassedError:
        return True
    return False


def test_without_a_limit_a_result_is_waited_for_however_long_it_takes() -> None:
    assert virtually(Deadline().wait(after(HOUR_MS))) == "here"


def test_a_limit_ends_the_wait_that_is_going_on_and_every_later_one() -> None:
    async def play() -> None:
        deadline = Deadline()
        waiting = asyncio.create_task(passed(deadline, HOUR_MS))
        await after(10)
        deadline.limit(500)
        assert await waiting
        assert loop_ms() == 510
        assert await passed(deadline, 1)
        assert loop_ms() == 510, "its time is up already"

    virtually(play())


def test_a_limit_does_not_end_a_wait_that_is_shorter() -> None:
    async def play() -> None:
        deadline = Deadline()
        deadline.limit(500)
        assert not await passed(deadline, 499)

    virtually(play())


@pytest.mark.parametrize("newest_ms", [1, HOUR_MS])
def test_the_newest_limit_holds_be_it_earlier_or_later(newest_ms: int) -> None:
    async def play() -> None:
        deadline = Deadline()
        deadline.limit(50)
        waiting = asyncio.create_task(passed(deadline, 2 * HOUR_MS))
        await after(10)
        deadline.limit(newest_ms)
        assert await waiting
        assert loop_ms() == 10 + newest_ms

    virtually(play())


async def test_a_timeout_of_the_awaited_itself_is_not_the_end_of_the_time() -> None:
    async def late() -> None:
        raise TimeoutError("the disk")

    with pytest.raises(TimeoutError, match="the disk"):
        await Deadline().wait(late())


# ---- a node that is to end


def slots_take(patch: pytest.MonkeyPatch, milliseconds: int) -> None:
    patch.setattr(agenda, "longest_slot", lambda _: Slot(milliseconds, 0, 0))


class Alone(Stage):
    """A node whose members have all left: nobody gives a payload from round `lost_from` on."""

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
    """A stage that has trained `rounds` rounds; another stage may replay its log and payloads."""
    stage = Stage(corpus, 0)
    async with playing(stage):
        stage.welcome()
        for round in range(rounds):
            stage.open(round)
            announced = await stage.announced(round + 1)
            stage.commit(round, [announced.digest])
            await until(lambda round=round: stage.status.round == round)  # type: ignore[misc]
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
        assert "stopped by its owner" in await asyncio.wait_for(task, PATIENCE_SECONDS)
    position = late.trainer.position
    assert where(position) == (2, 1)
    # and the state is that of round 1: going on from it leads to what the log has
    late.change()
    late.lost_from = 1000
    async with playing(late):
        late.welcome()
        await until(lambda: late.status.round == 3)
    assert late.replica.digest == log.replica.digest


async def test_a_node_that_leaves_while_the_coordinator_is_away_waits_only_a_moment(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot of the run is longer than any test would wait."""
    monkeypatch.setattr(agenda, "AWAY_MS", 500)
    slots_take(monkeypatch, 10**9)
    stage = Stage(corpus, 0)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        await stage.announced(1)
        stage.client.offline = "lost the coordinator; reconnecting"
        stage.trainer.leave()
        assert "stopped by its owner" in await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert where(stage.trainer.position) == (0, -1)


@pytest.mark.parametrize("leaves", [True, False], ids=["leave", "finished"])
async def test_at_its_end_a_node_waits_for_a_last_decision_no_longer_than_its_limit(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """The coordinator has fallen silent in the middle of a round, or the others are gone when the
    run is finished.
    """
    log = await log_of(corpus, 1)
    monkeypatch.setattr(agenda, "FINISHED_MS", 500)
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
            await until(lambda: stage.status.round == 0)
            stage.open(1)
            announced = await stage.announced(2)
            stage.commit(1, [announced.digest])
            await stage.waits.wait()
            stage.tell(finished=wire.RunFinished(reason="all steps are done"))
        await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert where(stage.trainer.position) == ((0, -1) if leaves else (1, 0))


async def test_to_look_again_for_a_payload_that_nobody_keeps_is_no_new_wait(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look ends long before the limit; together they must not outlast it."""
    monkeypatch.setattr(trainer_module, "RETRY_S", 0.1)
    slots_take(monkeypatch, 1000)
    stage, looks = Stage(corpus, 1), 0

    async def gone(commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        nonlocal looks
        looks += 1
        raise NotRetainedError("no member keeps it any more", Digest(bytes(32)))

    monkeypatch.setattr(stage.swarm, "collect", gone)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        stage.commit(0, [(await stage.announced(1)).digest])
        await until(lambda: looks > 1)
        stage.trainer.leave()
        assert "stopped by its owner" in await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert where(stage.trainer.position) == (0, -1)
    assert looks > 2, "it should go on looking until then"


async def test_asked_to_leave_a_node_still_takes_the_decision_of_its_round(corpus: Path) -> None:
    stage = Stage(corpus, 0)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        stage.trainer.leave()
        await until(lambda: stage.status.phase == "exchanges round 0")
        assert not task.done()
        stage.commit(0, [announced.digest])
        await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert where(stage.trainer.position) == (1, 0)
    assert stage.status.work.rounds_counted == 1

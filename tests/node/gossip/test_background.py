"""Promises of background tasks: none dies unseen, and writes end before the stop."""

import asyncio

import pytest

from node.gossip.background import Background
from protocol.errors import StorageError


class Deaths:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


async def die() -> None:
    raise StorageError("the disk is full")


async def test_a_task_that_dies_is_told_once_and_its_exception_is_raised_from_then_on() -> None:
    deaths = Deaths()
    background = Background(deaths)
    background.check()
    failing = asyncio.create_task(background.failed())
    task = background.spawn(die())
    await asyncio.wait([task])
    with pytest.raises(StorageError, match="the disk is full"):
        await failing
    with pytest.raises(StorageError, match="the disk is full"):
        background.check()
    assert deaths.count == 1


async def test_the_first_death_is_the_one_that_is_raised() -> None:
    async def die_later() -> None:
        raise ValueError("second")

    background = Background(lambda: None)
    for work in (die(), die_later()):
        await asyncio.wait([background.spawn(work)])
    with pytest.raises(StorageError):
        background.check()


async def test_a_stop_cancels_tasks_and_lets_writes_end() -> None:
    written, go = list[str](), asyncio.Event()

    async def write() -> None:
        await go.wait()
        written.append("whole")

    deaths = Deaths()
    background = Background(deaths)
    waiting = background.spawn(asyncio.Event().wait())  # type: ignore[arg-type]
    background.spawn_write(write())
    stopping = asyncio.create_task(background.stop())
    await asyncio.wait([waiting])
    assert not stopping.done()
    go.set()
    await stopping
    assert (written, waiting.cancelled(), deaths.count) == (["whole"], True, 0)

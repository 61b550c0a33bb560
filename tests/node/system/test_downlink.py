"""A limit on the download: bytes are taken no faster, whoever takes them, and none is forgotten."""

import asyncio
from collections.abc import Callable

import pytest

from node.system.downlink import HEADERS_SHARE, Downlink
from node.system.rate_limit import BURST_S, FILL_SHARE
from tests.support.virtual_time import loop_ms, virtually

LIMIT = 100_000


def nothing(_: int) -> None:
    """What is taken is not looked at."""


def seconds_of(take: Callable[[Downlink], object], limit: int = LIMIT) -> float:
    """Virtual seconds that a coroutine takes with a downlink of this limit."""

    async def main() -> float:
        await take(Downlink(limit, loop_ms))  # type: ignore[misc]
        return loop_ms() / 1000

    return virtually(main())


@pytest.mark.parametrize("takers", [1, 8])
def test_bytes_are_taken_as_fast_as_the_limit_and_no_faster(takers: int) -> None:
    async def take(downlink: Downlink) -> None:
        every = [downlink.pace(1_000_000 // takers, nothing) for _ in range(takers)]
        await asyncio.gather(*every)

    paid_s = (HEADERS_SHARE * 1_000_000 - BURST_S * LIMIT) / (FILL_SHARE * LIMIT)
    assert seconds_of(take) == pytest.approx(paid_s, rel=0.02)


def test_without_a_limit_nothing_waits() -> None:
    async def take(downlink: Downlink) -> None:
        taken: list[int] = []
        await downlink.pace(10**9, taken.append)
        assert taken == [10**9]

    assert seconds_of(take, 0) == 0


def test_a_taker_that_is_cancelled_leaves_no_byte_behind() -> None:
    """What a link has not acknowledged would hold its sender back for ever."""

    async def take(downlink: Downlink) -> None:
        taken: list[int] = []
        task = asyncio.create_task(downlink.pace(500_000, taken.append))
        await asyncio.sleep(1)
        assert 0 < sum(taken) < 500_000
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert sum(taken) == 500_000

    assert seconds_of(take) == 1


def test_several_takers_share_the_limit_evenly() -> None:
    async def take(downlink: Downlink) -> None:
        taken = [0, 0]

        def count(place: int) -> Callable[[int], None]:
            def add(size: int) -> None:
                taken[place] += size

            return add

        tasks = [asyncio.create_task(downlink.pace(5_000_000, count(place))) for place in range(2)]
        await asyncio.sleep(10)
        assert taken[0] == pytest.approx(taken[1], rel=0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    seconds_of(take)


def test_another_limit_holds_from_now_on() -> None:
    async def take(downlink: Downlink) -> None:
        task = asyncio.create_task(downlink.pace(1_000_000, nothing))
        await asyncio.sleep(1)
        downlink.limit(0)
        await task

    assert seconds_of(take) == pytest.approx(1, abs=0.2)

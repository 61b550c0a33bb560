"""A process that was away notices it from a clock that goes on meanwhile, in virtual time."""

import asyncio

import pytest

from node.system.absence import clock_s, watch_absence
from tests.support.virtual_time import virtually

LEAST_S = 8.0


def absences(*slept: tuple[float, float]) -> list[float]:
    """What is told in an hour in which the machine sleeps at (time, seconds): its timers do not
    count the sleep, its clock does.
    """

    async def main() -> list[float]:
        loop, told = asyncio.get_running_loop(), list[float]()

        def clock() -> float:
            now_s = loop.time()
            return now_s + sum(seconds for at_s, seconds in slept if at_s <= now_s)

        watching = asyncio.create_task(watch_absence(told.append, LEAST_S, clock))
        await asyncio.sleep(3600)
        watching.cancel()
        return [round(seconds, 1) for seconds in told]

    return virtually(main())


def test_each_sleep_is_told_once_with_its_length(caplog: pytest.LogCaptureFixture) -> None:
    assert absences((100.5, 20.0), (200.5, 8 * 3600.0)) == [20.0, 8 * 3600.0]
    assert [record.getMessage() for record in caplog.records] == ["was away"] * 2


def test_a_pause_that_costs_no_session_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    assert absences((100.5, LEAST_S - 0.1)) == []
    assert not caplog.records


def test_the_clock_goes_on() -> None:
    first = clock_s()
    assert clock_s() >= first

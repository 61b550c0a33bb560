"""A node computes in no more than its part of the time, and is in time for the bell."""

import asyncio

import pytest

from node.system.duty_cycle import DutyCycle, DutyKeeper


@pytest.mark.parametrize("percent", [5, 50, 90])
def test_over_a_long_time_no_more_than_the_share_is_work(percent: int) -> None:
    duty, now_ms, worked_ms = DutyCycle(percent), 1000.0, 0.0
    for number in range(500):
        now_ms += duty.rest_ms(now_ms)
        took_ms = 10.0 + 37 * (number % 5)
        duty.worked(now_ms, now_ms + took_ms)
        now_ms, worked_ms = now_ms + took_ms, worked_ms + took_ms
    now_ms += duty.rest_ms(now_ms)
    assert worked_ms / (now_ms - 1000) == pytest.approx(percent / 100)


def test_waiting_for_others_is_rest_and_is_not_saved_up() -> None:
    duty = DutyCycle(50)
    duty.worked(0, 100)
    assert duty.rest_ms(100) == 100
    assert duty.rest_ms(170) == 30
    assert duty.rest_ms(5000) == 0
    duty.worked(5000, 5100)
    assert duty.rest_ms(5100) == 100, "4800 ms of waiting earn nothing"


def test_work_that_could_not_wait_is_paid_later() -> None:
    duty = DutyCycle(25)
    duty.worked(0, 100)
    duty.worked(100, 200)
    assert duty.rest_ms(200) == 600


def test_with_all_the_time_nothing_is_to_be_paid() -> None:
    duty = DutyCycle()
    duty.worked(0, 10**9)
    assert duty.rest_ms(10**9) == 0


class Clock:
    """Virtual time that moves by sleeping and by working."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0

        async def sleep(seconds: float) -> None:
            self.now_ms += 1000 * seconds

        async def in_thread(call, *args):  # type: ignore[no-untyped-def]
            return call(*args)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(asyncio, "to_thread", in_thread)

    def work(self, milliseconds: float) -> float:
        self.now_ms += milliseconds
        return self.now_ms


async def train(keeper: DutyKeeper, clock: Clock, bell_ms: float, pass_ms: float) -> int:
    """Passes that a node makes until the bell."""
    passes = 0
    while clock.now_ms < bell_ms and await keeper.rest(bell_ms - clock.now_ms):
        await keeper.make_pass(clock.work, pass_ms)
        passes += 1
    return passes


@pytest.mark.parametrize(("percent", "passes"), [(100, 10), (50, 5), (20, 2), (10, 1)])
async def test_fewer_passes_are_made_and_the_bell_is_met(
    monkeypatch: pytest.MonkeyPatch, percent: int, passes: int
) -> None:
    clock = Clock(monkeypatch)
    keeper = DutyKeeper(percent, lambda: clock.now_ms)
    assert await train(keeper, clock, bell_ms=1000, pass_ms=100) == passes
    assert clock.now_ms <= 1000


async def test_where_no_pass_can_be_paid_a_round_goes_by_without_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    keeper = DutyKeeper(10, lambda: clock.now_ms)
    made = []
    for number in range(30):
        made.append(await train(keeper, clock, 1000.0 * (number + 1), pass_ms=400))
        clock.now_ms = 1000.0 * (number + 1)
    assert sum(made) * 400 <= 0.1 * 30_000 + 400
    assert sum(made) >= 6, "it trains as often as it may"


async def test_a_share_that_changes_while_a_node_works_holds_from_the_next_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    keeper = DutyKeeper(100, lambda: clock.now_ms)
    assert await train(keeper, clock, 500, 100) == 5
    keeper.limit(50)
    assert await train(keeper, clock, 1500, 100) == 5


async def test_work_that_fails_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    keeper = DutyKeeper(50, lambda: clock.now_ms)

    def fail() -> None:
        clock.work(100)
        raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        await keeper.compute(fail)
    assert await keeper.rest(1000)
    assert clock.now_ms == 200

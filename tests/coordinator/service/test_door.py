"""The door: counts by host and key, that cost nobody else anything."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from coordinator.service import door as door_module
from coordinator.service.calls import Replies
from coordinator.service.door import (
    CALLS_PER_HOST,
    CATCH_UP_PER_HOST,
    JOINS_PER_HOST,
    JOINS_PER_KEY,
    MESSAGES_PER_KEY,
    STREAMS_PER_HOST_MAX,
    Door,
)
from protocol import wire_pb2 as wire
from protocol.ids import PeerId
from tests.coordinator.machine.driver import A, B
from tests.support.virtual_time import loop_ms, virtually

BEAT = wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=1))


class Clock:
    """Milliseconds that only the test moves."""

    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


class Desk(NamedTuple):
    door: Door
    clock: Clock


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    clock = Clock()
    return Desk(Door(tmp_path, clock), clock)


def keys() -> Iterator[PeerId]:
    return (PeerId(f"{number:032x}") for number in range(100_000))


def test_a_host_has_a_bounded_number_of_open_sessions(desk: Desk) -> None:
    for _ in range(STREAMS_PER_HOST_MAX):
        assert desk.door.open_stream("a", "a:1") == ""
    assert "open sessions from one host" in desk.door.open_stream("a", "a:1")
    assert desk.door.open_stream("b", "b:1") == ""
    desk.door.close_stream("a")
    assert desk.door.open_stream("a", "a:1") == ""


def test_a_connection_has_few_sessions_without_a_hello(desk: Desk) -> None:
    with desk.door.awaiting_hello("a:1"), desk.door.awaiting_hello("a:1"):
        assert "expected a hello" in desk.door.open_stream("a", "a:1")
        assert desk.door.open_stream("a", "a:2") == ""
    assert desk.door.open_stream("a", "a:1") == ""


def test_one_key_joins_a_few_times_and_then_once_a_second(desk: Desk) -> None:
    answers = [desk.door.refuses_join(A, "a", known=True) for _ in range(JOINS_PER_KEY[1] + 1)]
    assert [bool(answer) for answer in answers] == [False] * JOINS_PER_KEY[1] + [True]
    assert desk.door.refuses_join(B, "a", known=True) == ""
    desk.clock.now_ms = 1000
    assert desk.door.refuses_join(A, "a", known=True) == ""


def test_new_keys_from_one_host_join_at_a_bounded_rate(desk: Desk) -> None:
    new = keys()
    joined = sum(not desk.door.refuses_join(next(new), "a", known=False) for _ in range(1000))
    assert joined == JOINS_PER_HOST[1]
    assert desk.door.refuses_join(next(new), "b", known=False) == ""
    desk.clock.now_ms = 10_000
    joined = sum(not desk.door.refuses_join(next(new), "a", known=False) for _ in range(1000))
    assert joined == 10 * JOINS_PER_HOST[0]


def test_a_nearly_full_disk_takes_no_new_member_and_keeps_the_old_ones(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "DISK_FREE_BYTES_MIN", 2**62)
    assert "disk is nearly full" in desk.door.refuses_join(A, "a", known=False)
    assert desk.door.refuses_join(A, "a", known=True) == ""


def test_a_fast_sender_is_read_at_the_rate_and_nobody_else_waits() -> None:
    async def measure() -> tuple[int, int]:
        door = Door(Path(), loop_ms)
        for _ in range(int(MESSAGES_PER_KEY[1] + 10 * MESSAGES_PER_KEY[0])):
            await door.pace(A, "a", BEAT)
        fast_ms = loop_ms()
        await door.pace(B, "a", BEAT)
        return fast_ms, loop_ms() - fast_ms

    fast_ms, other_ms = virtually(measure())
    assert 9_900 <= fast_ms <= 11_000
    assert other_ms == 0


def test_a_long_receipt_costs_as_much_as_many_messages() -> None:
    async def measure() -> int:
        door = Door(Path(), loop_ms)
        digests = [bytes(32)] * 4096
        for _ in range(20):
            await door.pace(A, "a", wire.NodeMessage(holding=wire.Holding(digests=digests)))
        return loop_ms()

    assert virtually(measure()) > 30_000


def test_calls_and_commits_of_a_host_are_bounded(desk: Desk) -> None:
    refusals = [desk.door.refuses_call("a") for _ in range(1000)]
    assert refusals.count("") == CALLS_PER_HOST[1]
    assert desk.door.refuses_call("b") == ""
    desk.door.charge_catch_up("b", 2 * CATCH_UP_PER_HOST[1])
    assert "reads commits too fast" in desk.door.refuses_call("b")
    desk.clock.now_ms = 60_000
    assert desk.door.refuses_call("b") == ""


async def test_a_reply_is_made_once_for_all_that_ask_together() -> None:
    replies: Replies[int] = Replies()
    made = []

    async def make() -> int:
        made.append(1)
        await asyncio.sleep(0)
        return len(made)

    impatient = asyncio.create_task(replies.get("status", make))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await asyncio.gather(*(replies.get("status", make) for _ in range(64))) == [1] * 64

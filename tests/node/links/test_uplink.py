"""Promises of the uplink, in virtual time: a person's limit holds over any five seconds, turns come
by urgency.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN, PART_FRAME_OVERHEAD
from node.links.uplink import (
    ACKNOWLEDGED_SHARE,
    HEADERS_SHARE,
    PACKET_BYTES,
    Uplink,
)
from node.links.upload_queue import Upload
from node.system.rate_limit import FILL_SHARE, LIMIT_BYTES_PER_SECOND_MIN, rate_bucket
from protocol.errors import SettingsError
from protocol.ids import Digest
from tests.node.links.net import peer_of
from tests.support.virtual_time import loop_ms, virtually

WINDOW_MS = 5_000
CONTROL_BYTES = 2_000

PER_MS = FILL_SHARE * 100
"""Bytes that a limit of 100 kB/s lets leave in a millisecond."""

Sent = list[tuple[int, float]]
"""(when, bytes on the wire)"""

limits = st.integers(LIMIT_BYTES_PER_SECOND_MIN, 20_000_000)
pauses_ms = st.one_of(st.just(0), st.integers(0, 50), st.integers(0, 3_000))


def heaviest(sent: Sent) -> float:
    """The most bytes that any window of five seconds carried."""
    most = total = 0.0
    first = 0
    for at_ms, size in sent:
        total += size
        while sent[first][0] <= at_ms - WINDOW_MS:
            total -= sent[first][1]
            first += 1
        most = max(most, total)
    return most


def upload(number: int) -> Upload:
    return Upload(peer_of(number), Digest(bytes([number]) * 32))


# ---- the limit


@settings(max_examples=60)
@given(
    limits,
    st.lists(st.tuples(pauses_ms, st.integers(1, 40), st.booleans()), min_size=1, max_size=25),
)
def test_no_five_seconds_carry_more_than_the_limit(
    limit: int, bursts: list[tuple[int, int, bool]]
) -> None:
    """Bursts of parts from several links, after pauses, with control frames among them that never
    wait.
    """
    sent: Sent = []

    async def one_link(uplink: Uplink, parts: int, small: bool) -> None:
        for _ in range(parts):
            data = PART_BYTES_MIN if small else uplink.part_bytes_max
            await uplink.acquire(data + PART_FRAME_OVERHEAD)
            sent.append((loop_ms(), HEADERS_SHARE * (data + PART_FRAME_OVERHEAD)))

    async def main() -> None:
        uplink, links = Uplink(limit, loop_ms), list[asyncio.Task[None]]()
        for pause_ms, parts, small in bursts:
            await asyncio.sleep(pause_ms / 1000)
            control = min(CONTROL_BYTES, limit * pause_ms // 10_000)
            uplink.sent(control)
            sent.append((loop_ms(), HEADERS_SHARE * control + PACKET_BYTES))
            links.append(asyncio.create_task(one_link(uplink, parts, small)))
        await asyncio.gather(*links)

    virtually(main())
    # What never waits, and a clock of whole milliseconds.
    at_once = HEADERS_SHARE * CONTROL_BYTES + PACKET_BYTES + limit / 1000
    assert heaviest(sent) <= WINDOW_MS * limit / 1000 + at_once


@settings(max_examples=30)
@given(limits)
def test_a_limit_is_used_but_for_its_reserve(limit: int) -> None:
    async def main() -> float:
        uplink, data = Uplink(limit, loop_ms), 0
        while loop_ms() < 30_000:
            await uplink.acquire(uplink.part_bytes_max + PART_FRAME_OVERHEAD)
            data += uplink.part_bytes_max
        return data / 30

    assert virtually(main()) >= 0.85 * limit


def test_control_frames_never_wait_and_delay_the_parts_behind_them() -> None:
    async def main() -> list[int]:
        uplink = Uplink(100_000, loop_ms)
        uplink.sent(25_000)  # the whole bucket
        await uplink.acquire(950)
        first = loop_ms()
        uplink.received(1_000_000)  # acknowledging it is upload too
        await uplink.acquire(950)
        return [first, loop_ms() - first]

    first, second = virtually(main())
    assert first == pytest.approx(
        (HEADERS_SHARE * (25_000 + 950) + PACKET_BYTES - 25_000) / PER_MS, abs=2
    )
    assert second == pytest.approx(
        (ACKNOWLEDGED_SHARE * 1_000_000 + HEADERS_SHARE * 950) / PER_MS, abs=2
    )


def test_control_frames_that_leave_while_a_part_waits_make_it_wait_longer() -> None:
    async def main() -> int:
        uplink = Uplink(100_000, loop_ms)
        uplink.sent(25_000)
        part = asyncio.create_task(uplink.acquire(9_500))
        await asyncio.sleep(0.05)
        uplink.sent(9_500)
        await part
        return loop_ms()

    owed = HEADERS_SHARE * 25_000 - 25_000 + 2 * PACKET_BYTES
    assert virtually(main()) == pytest.approx((owed + HEADERS_SHARE * 19_000) / PER_MS, abs=3)


def test_parts_leave_in_the_order_of_their_takes() -> None:
    order: list[int] = []

    async def one(uplink: Uplink, number: int, size: int) -> None:
        await uplink.acquire(size)
        order.append(number)

    async def main() -> None:
        uplink = Uplink(100_000, loop_ms)
        await asyncio.gather(
            *(one(uplink, number, 12_000 if number % 2 else 1) for number in range(8))
        )

    virtually(main())
    assert order == list(range(8))


def test_without_a_limit_nothing_waits() -> None:
    async def main() -> int:
        uplink = Uplink(None, loop_ms)
        for _ in range(100):
            uplink.sent(10**9)
            uplink.received(10**9)
            await uplink.acquire(10**9)
        assert uplink.part_bytes_max == PART_BYTES_MAX
        return loop_ms()

    assert virtually(main()) == 0


@given(limits)
def test_two_parts_of_any_limit_fit_into_its_bucket(limit: int) -> None:
    part = Uplink(limit, lambda: 0).part_bytes_max
    assert PART_BYTES_MIN <= part <= PART_BYTES_MAX
    assert part <= max(PART_BYTES_MIN, rate_bucket(limit, 0).burst // 2)
    assert HEADERS_SHARE * (part + PART_FRAME_OVERHEAD) <= rate_bucket(limit, 0).burst


def test_a_limit_below_the_least_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        SettingsError, match=f"at least {LIMIT_BYTES_PER_SECOND_MIN} bytes per second, got 19999"
    ):
        Uplink(19_999, lambda: 0)


# ---- turns


def in_turns(uplink: Uplink, numbers: list[int]) -> Coroutine[Any, Any, list[int]]:
    """The order in which uploads of a megabyte that were asked for at once begin, each ending
    before the next.
    """

    async def main() -> list[int]:
        begun: list[int] = []

        async def one(number: int) -> None:
            async with uplink.turn(upload(number), 1_000_000):
                begun.append(number)
                await asyncio.sleep(10)
                assert begun[-1] == number, "a thin uplink serves one after the other"

        await asyncio.gather(*map(one, numbers))
        return begun

    return main()


@given(st.permutations(range(6)))
def test_turns_come_in_the_order_of_urgency(ranks: list[int]) -> None:
    async def main() -> list[int]:
        uplink = Uplink(None, loop_ms)
        uplink.urgency = lambda peer, digest: (ranks[digest[0]],)
        return await in_turns(uplink, list(range(6)))

    begun = virtually(main())
    assert begun[0] == 0, "nobody else was waiting yet"
    # After half a minute a waiting upload goes by age, so that none starves: that is past the
    # fourth turn.
    assert begun[1:3] == sorted(range(1, 6), key=ranks.__getitem__)[:2]
    assert sorted(begun) == list(range(6))


def test_turns_of_equal_urgency_come_in_the_order_of_their_requests() -> None:
    async def main() -> list[int]:
        return await in_turns(Uplink(None, loop_ms), [3, 1, 2, 0])

    assert virtually(main()) == [3, 1, 2, 0]


def test_an_upload_that_hardly_moves_does_not_hold_up_the_others() -> None:
    async def main() -> int:
        uplink = Uplink(None, loop_ms)

        async def slow() -> None:
            async with uplink.turn(upload(0), 1_000_000):
                while True:
                    await asyncio.sleep(0.5)
                    uplink.progressed(upload(0), 1_000)

        task = asyncio.create_task(slow())
        await asyncio.sleep(0)
        async with uplink.turn(upload(1), 1_000_000):
            task.cancel()
        return loop_ms()

    assert virtually(main()) < 10_000


def test_cancelled_waits_leak_nothing_and_the_next_begins() -> None:
    async def main() -> None:
        uplink = Uplink(None, loop_ms)

        async def one(number: int) -> None:
            async with uplink.turn(upload(number), 1_000_000):
                await asyncio.sleep(1_000)

        tasks = [asyncio.create_task(one(number)) for number in range(4)]
        await asyncio.sleep(0.01)
        for task in tasks[:3]:  # one that was served, and two that waited
            task.cancel()
            await asyncio.wait({task})
        await tasks[3]
        assert uplink.idle
        assert uplink.uploads == 0
        assert loop_ms() == pytest.approx(1_000_000, abs=50)

    virtually(main())


def test_a_peer_that_asks_twice_for_the_same_is_served_twice() -> None:
    """As when its link was replaced and the old one has not ended yet."""

    async def main() -> list[int]:
        uplink, ended = Uplink(None, loop_ms), list[int]()

        async def one(number: int) -> None:
            async with uplink.turn(upload(0), 1_000_000):
                for _ in range(10):
                    await asyncio.sleep(1)
                    uplink.progressed(upload(0), 100_000)
            ended.append(number)

        async with uplink.turn(upload(9), 1_000_000):
            tasks = [asyncio.create_task(one(number)) for number in range(2)]
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        assert uplink.idle
        assert uplink.uploads == 0
        return ended

    assert virtually(main()) == [0, 1]


def test_a_cancelled_take_charges_nothing_and_lets_the_next_one_through() -> None:
    async def main() -> int:
        uplink = Uplink(100_000, loop_ms)
        uplink.sent(25_000)
        tasks = [asyncio.create_task(uplink.acquire(9_500)) for _ in range(3)]
        await asyncio.sleep(0.01)
        for task in tasks[:2]:  # the one that sleeps, and one that waits behind it
            task.cancel()
        await tasks[2]
        return loop_ms()

    owed = HEADERS_SHARE * 25_000 - 25_000 + PACKET_BYTES
    assert virtually(main()) == pytest.approx((owed + HEADERS_SHARE * 9_500) / PER_MS, abs=3)


# ---- what was guessed too low


def test_bytes_that_were_carried_uncharged_are_charged_when_they_are_known() -> None:
    async def main() -> int:
        uplink = Uplink(100_000, loop_ms)
        await uplink.acquire(10_000)
        uplink.carried(10_000 + 40_000)  # a circuit of the daemon, say
        uplink.carried(10_000 + 40_000)  # nothing new
        await uplink.acquire(1_000)
        return loop_ms()

    assert virtually(main()) == pytest.approx(
        (50_000 + HEADERS_SHARE * 1_000 - 25_000) / PER_MS, abs=3
    )


def test_charges_in_excess_make_up_for_no_more_than_a_part() -> None:
    async def main() -> float:
        uplink = Uplink(100_000, loop_ms)
        while loop_ms() < 60_000:  # a minute in which a twentieth less left than was charged
            await uplink.acquire(9_500)
        uplink.carried(0)
        before = loop_ms()
        uplink.carried(40_000)
        await uplink.acquire(1)
        return loop_ms() - before

    assert virtually(main()) >= (40_000 - Uplink(100_000, lambda: 0).part_bytes_max) / PER_MS - 100


@settings(max_examples=40)
@given(limits, st.floats(0.0, 0.3), st.integers(1, 8))
def test_the_limit_holds_when_more_leaves_than_was_guessed(
    limit: int, more: float, links: int
) -> None:
    """The kernel is asked every second; each part takes up to a third more than the guess, from the
    start.
    """
    sent: Sent = []

    async def one_link(uplink: Uplink) -> None:
        while loop_ms() < 20_000:
            size = uplink.part_bytes_max + PART_FRAME_OVERHEAD
            await uplink.acquire(size)
            sent.append((loop_ms(), HEADERS_SHARE * size * (1 + more)))

    async def asking(uplink: Uplink) -> None:
        while loop_ms() < 20_000:
            await asyncio.sleep(1)
            uplink.carried(int(sum(size for _, size in sent)))

    async def main() -> None:
        uplink = Uplink(limit, loop_ms)
        await asyncio.gather(asking(uplink), *(one_link(uplink) for _ in range(links)))

    virtually(main())
    first_second = more * 1.25 * limit  # what is not known yet, once
    part = HEADERS_SHARE * (1 + more) * max(PART_BYTES_MIN + PART_FRAME_OVERHEAD, limit // 8)
    assert heaviest(sent) <= WINDOW_MS * limit / 1000 + first_second + part
    later = [(at_ms, size) for at_ms, size in sent if at_ms >= 3_000]
    assert heaviest(later) <= WINDOW_MS * limit / 1000 + part

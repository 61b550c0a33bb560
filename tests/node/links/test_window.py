"""The window on a modelled link in virtual time: full, without a long queue, whatever the link is
and becomes.

The model is fluid: one first-in-first-out queue that is served at a rate, then a delay there and
back; the taker acknowledges each part at once. The sender always has more to send.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN, PART_FRAME_OVERHEAD
from node.links.window import (
    BASE_MS,
    QUEUE_MS,
    WINDOW_BYTES_FIRST,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    Window,
)
from protocol.errors import RemoteProtocolError

RATES = (0.05, 0.4, 2, 20, 300)  # Mbit/s
RTTS_MS = (10, 40, 150, 300, 600)


@dataclass(frozen=True)
class Taken:
    """A part whose acknowledgement arrived."""

    at_ms: float
    sender: int
    count: int
    delay_ms: float


@dataclass
class Wire:
    """A bottleneck that windows share. `mbit(now_ms)` is its rate; `back_ms(now_ms)` what the way
    back adds.

    The taker's clock is `clock_ms` ahead of the sender's; None: it does not say when it took a
    part.
    """

    mbit: Callable[[float], float]
    rtt_ms: float
    back_ms: Callable[[float], float] = lambda now_ms: 0.0
    clock_ms: int | None = None
    taken: list[Taken] = field(default_factory=list)

    def run(
        self,
        windows: list[Window],
        until_ms: float,
        starts_ms: Iterable[float] = itertools.repeat(0.0),
    ) -> None:
        """Every window sends all it may, from its start on."""
        order = itertools.count()
        # when, order, sender, count (0: it starts), sent at, taken at
        events: list[tuple[float, int, int, int, float, float]] = []
        totals, idle_ms, back_at_ms = [0] * len(windows), 0.0, 0.0
        for sender, start_ms in zip(range(len(windows)), starts_ms, strict=False):
            heapq.heappush(events, (start_ms, next(order), sender, 0, 0.0, 0.0))
        while events and events[0][0] <= until_ms:
            now_ms, _, sender, count, sent_ms, taken_ms = heapq.heappop(events)
            window = windows[sender]
            if count:
                totals[sender] += count
                says_ms = None if self.clock_ms is None else int(taken_ms) + self.clock_ms
                window.acknowledge(totals[sender], int(now_ms), says_ms)
                self.taken.append(Taken(now_ms, sender, count, now_ms - sent_ms))
            while window.open:
                count = window.part_bytes
                window.send(count, int(now_ms))
                idle_ms = (
                    max(now_ms, idle_ms)
                    + (count + PART_FRAME_OVERHEAD) * 8 / self.mbit(now_ms) / 1000
                )
                back_at_ms = max(back_at_ms, idle_ms + self.rtt_ms + self.back_ms(idle_ms))
                there_ms = idle_ms + self.rtt_ms / 2
                heapq.heappush(events, (back_at_ms, next(order), sender, count, now_ms, there_ms))

    def share(self, begin_ms: float, end_ms: float, sender: int | None = None) -> float:
        """Of the link's bytes in a time, how many were taken."""
        taken = [
            part
            for part in self.taken
            if begin_ms <= part.at_ms < end_ms and sender in (None, part.sender)
        ]
        return (
            sum(part.count for part in taken) * 8 / 1000 / (end_ms - begin_ms) / self.mbit(begin_ms)
        )

    def queue_ms(self, begin_ms: float, end_ms: float) -> float:
        """The longest that a part took, beyond the link's round trip, in a time."""
        delays = (part.delay_ms for part in self.taken if begin_ms <= part.at_ms < end_ms)
        return max(delays, default=0.0) - self.rtt_ms


def part_ms(mbit: float) -> float:
    """How long the smallest part takes on the wire."""
    return PART_BYTES_MIN * 8 / mbit / 1000


def first_ms(mbit: float) -> float:
    """How long all of the first window takes on the wire."""
    return WINDOW_BYTES_FIRST * 8 / mbit / 1000


@pytest.mark.parametrize("rtt_ms", RTTS_MS)
@pytest.mark.parametrize("mbit", RATES)
def test_a_link_is_full_and_has_no_long_queue(mbit: float, rtt_ms: int) -> None:
    wire, window = Wire(lambda now_ms: mbit, rtt_ms), Window()
    wire.run([window], 100_000)
    fits = WINDOW_BYTES_MAX * 8 / 1000 / rtt_ms  # Mbit/s of the largest window
    assert wire.share(20_000, 100_000) >= 0.9 * min(1, fits / mbit)
    bound_ms = 2 * (QUEUE_MS + rtt_ms) + 3 * part_ms(mbit)
    assert wire.queue_ms(20_000, 100_000) <= bound_ms
    assert wire.queue_ms(0, 20_000) <= max(bound_ms, 1.3 * first_ms(mbit))


def test_a_heartbeat_gets_through_the_thinnest_home_uplink_in_a_second() -> None:
    """It leaves behind what is on its way: on 0.4 Mbit/s that is never more than a second, from the
    first byte on.
    """
    wire = Wire(lambda now_ms: 0.4, 70)
    wire.run([Window()], 600_000)
    assert 0 < wire.queue_ms(0, 600_000) <= 1000
    assert wire.share(20_000, 600_000) >= 0.95


def test_a_heartbeat_gets_through_a_line_that_is_far_too_thin_for_two_peers() -> None:
    """In less than three seconds on 0.06 Mbit/s, in one most of the time: the lease of a member may
    be six, and a router that holds three seconds loses nothing.
    """
    wire = Wire(lambda now_ms: 0.06, 60)
    wire.run([Window(), Window()], 600_000)
    assert 0 < wire.queue_ms(0, 600_000) <= 2500
    delays = sorted(part.delay_ms for part in wire.taken)
    assert delays[len(delays) // 2] <= 60 + 1000
    assert wire.share(20_000, 600_000) >= 0.9


@pytest.mark.parametrize("mbit", [0.4, 20])
def test_the_queue_of_a_link_that_is_always_full_does_not_creep_up(mbit: float) -> None:
    wire = Wire(lambda now_ms: mbit, 40)
    wire.run([Window()], 40 * BASE_MS)
    early, late = wire.queue_ms(BASE_MS, 10 * BASE_MS), wire.queue_ms(30 * BASE_MS, 40 * BASE_MS)
    assert late <= early + 100


@pytest.mark.parametrize("mbit", [2, 20, 300])
def test_a_rate_that_drops_to_a_tenth_and_comes_back_is_followed(mbit: float) -> None:
    wire = Wire(lambda now_ms: mbit / 10 if 35_000 <= now_ms < 70_000 else mbit, 40)
    wire.run([Window()], 100_000)
    assert wire.queue_ms(35_000, 45_000) <= 15 * (
        QUEUE_MS + 40
    )  # what was on its way when it dropped
    assert wire.queue_ms(45_000, 70_000) <= QUEUE_MS + 40 + 10 * part_ms(mbit) + 300
    assert wire.share(45_000, 70_000) >= 0.9
    assert wire.share(75_000, 100_000) >= 0.9


@pytest.mark.parametrize("mbit", [0.4, 2, 20])
@pytest.mark.parametrize("links", [2, 8])
def test_links_that_share_an_uplink_all_progress_and_do_not_fill_it_up_for_each_other(
    links: int, mbit: float
) -> None:
    wire = Wire(lambda now_ms: mbit, 40)
    wire.run(
        [Window() for _ in range(links)], 300_000, [3_000.0 * number for number in range(links)]
    )
    assert wire.share(60_000, 300_000) >= 0.95
    for sender in range(links):
        assert wire.share(60_000, 300_000, sender) >= 0.1 / links
    queue_ms = wire.queue_ms(0, 300_000)
    assert queue_ms <= 2 * links * (QUEUE_MS + 4 * part_ms(mbit))
    assert queue_ms <= 5_000  # a heartbeat of any of them gets through in time


@pytest.mark.parametrize("clock_ms", [0, -(10**12), 10**12])
def test_acknowledgements_that_wait_on_their_way_back_cost_nothing_when_the_peer_says_when(
    clock_ms: int,
) -> None:
    """The other end's own uplink is full of its own bytes, and its queue comes and goes within half
    a minute.
    """

    def back_ms(now_ms: float) -> float:
        return 250 * (1 - math.cos(now_ms * math.tau / 30_000))

    said, unsaid = (
        Wire(lambda now_ms: 20.0, 40, back_ms, clock_ms),
        Wire(lambda now_ms: 20.0, 40, back_ms),
    )
    for wire in (said, unsaid):
        wire.run([Window()], 120_000)
    assert said.share(20_000, 120_000) >= 0.95
    assert unsaid.share(20_000, 120_000) < said.share(20_000, 120_000)


def test_clocks_that_drift_apart_cost_nothing() -> None:
    for slower, faster in itertools.permutations((0.9999, 1.0001)):
        window, taken_ms = Window(), 0.0
        for number in range(1, 40_000):  # an hour, a part each 100 ms, 50 ms to get there
            now_ms = int(number * 100 * slower)
            taken_ms = (number * 100 + 50) * faster
            window.send(PART_BYTES_MIN, now_ms)
            window.send(PART_BYTES_MIN, now_ms)
            window.acknowledge(window.sent, now_ms + 60, int(taken_ms))
        assert window.bytes >= WINDOW_BYTES_FIRST


def test_a_taker_that_stands_still_for_seconds_is_served_in_full_soon_after() -> None:
    wire = Wire(
        lambda now_ms: 20.0,
        40,
        back_ms=lambda now_ms: max(0.0, 44_000 - now_ms) if now_ms > 40_000 else 0.0,
    )
    wire.run([Window()], 60_000)
    assert wire.share(47_000, 60_000) >= 0.9


def test_a_sender_with_little_to_send_is_never_held_up() -> None:
    window = Window()
    for now_ms in range(0, 10 * BASE_MS, 1_000):
        assert window.open
        window.send(1_000, now_ms)
        window.acknowledge(window.sent, now_ms + 40)
    assert window.bytes == WINDOW_BYTES_FIRST  # it was never full: nothing was learnt about more


def test_a_full_window_on_an_empty_link_doubles_in_a_round_trip() -> None:
    window = Window()
    window.send(PART_BYTES_MIN, 0)
    window.acknowledge(PART_BYTES_MIN, 100)
    for now_ms in range(100, 1100, 100):
        before = window.bytes
        while window.open:
            window.send(window.part_bytes, now_ms)
        taken = window.sent - window.acknowledged
        window.acknowledge(window.sent, now_ms + 100)
        assert window.bytes == min(WINDOW_BYTES_MAX, before + taken)
    assert window.bytes == WINDOW_BYTES_MAX
    assert window.part_bytes == PART_BYTES_MAX


def test_a_late_part_shrinks_the_window_to_the_bytes_that_the_link_carries_in_time() -> None:
    window = Window()
    window.send(PART_BYTES_MIN, 0)
    window.acknowledge(PART_BYTES_MIN, 50)
    while window.open:
        window.send(window.part_bytes, 100)
    window.acknowledge(window.sent, 100 + 600)
    assert window.bytes == WINDOW_BYTES_FIRST * (50 + QUEUE_MS) // 600


def test_parts_that_left_before_the_window_shrank_do_not_shrink_it_again() -> None:
    window = Window()
    window.send(PART_BYTES_MIN, 0)
    window.acknowledge(PART_BYTES_MIN, 50)
    while window.open:
        window.send(window.part_bytes, 100)
    for part in range(2, 6):
        window.acknowledge(part * PART_BYTES_MIN, 100 + 600)
    assert window.bytes == WINDOW_BYTES_FIRST * (50 + QUEUE_MS) // 600


def test_a_link_runs_dry_once_its_base_is_old_and_goes_on_with_the_window_it_had() -> None:
    window = Window()
    window.send(1000, 0)
    window.acknowledge(1000, 50)
    window.send(1000, now_ms := 50)
    while window.open:  # one part at least is always on the way, and takes 60 ms
        now_ms += 30
        window.send(1000, now_ms)
        window.acknowledge(window.sent - 1000, now_ms + 30)
    assert BASE_MS <= now_ms <= BASE_MS + 100
    window.acknowledge(window.sent, now_ms + 60)
    before = window.bytes
    window.send(1000, 2 * BASE_MS)
    assert window.open  # what follows the part that measures does not disturb it
    window.send(1000, 2 * BASE_MS)
    window.acknowledge(window.sent - 1000, 2 * BASE_MS + 700)
    window.acknowledge(window.sent, 2 * BASE_MS + 720)
    assert window.bytes == before  # 700 ms is the link's own delay now


def test_one_acknowledgement_of_several_parts_tells_the_base_of_the_one_that_left_alone() -> None:
    window = Window()
    for now_ms in range(0, 4 * BASE_MS, 1_000):  # the link's own delay rises: 50 ms, then 400
        window.send(PART_BYTES_MIN, now_ms)
        window.send(PART_BYTES_MIN, now_ms)
        window.acknowledge(window.sent, now_ms + (50 if now_ms < BASE_MS else 400))
    while window.open:
        window.send(window.part_bytes, 4 * BASE_MS)
    before = window.bytes
    window.acknowledge(window.sent, 4 * BASE_MS + 450)
    assert window.bytes > before


@pytest.mark.parametrize("total", [-1, 99, 1001])
def test_only_sent_bytes_can_be_acknowledged_and_only_once(total: int) -> None:
    window = Window()
    window.send(1000, 0)
    window.acknowledge(100, 1)
    window.acknowledge(100, 1)
    with pytest.raises(
        RemoteProtocolError, match=rf"expected 100..1000 bytes acknowledged, got {total}"
    ):
        window.acknowledge(total, 2)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 2**20)), max_size=60))
def test_any_acknowledgements_keep_the_window_in_its_bounds_and_never_shut_it_for_good(
    steps: list[tuple[int, int]],
) -> None:
    window, now_ms = Window(), 0
    for wait_ms, taken in steps:
        while window.open:
            assert PART_BYTES_MIN <= window.part_bytes <= PART_BYTES_MAX
            assert window.part_bytes & (window.part_bytes - 1) == 0
            window.send(window.part_bytes, now_ms)
        assert window.sent - window.acknowledged <= WINDOW_BYTES_MAX
        now_ms += wait_ms
        window.acknowledge(min(window.sent, window.acknowledged + taken), now_ms)
        assert WINDOW_BYTES_MIN <= window.bytes <= WINDOW_BYTES_MAX
    window.acknowledge(window.sent, now_ms)
    assert window.open

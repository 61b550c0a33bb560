"""Instants of a round, and how well a node knows the coordinator's clock."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.clock import (
    SAMPLES_KEPT,
    ClockOffset,
    Instants,
    Slot,
    instants,
    longest_slot,
    stated_slot,
)
from protocol.errors import RemoteProtocolError
from protocol.runfile import RoundsSpec

bounded = settings(max_examples=200)
delays = st.integers(0, 5000)


def exchange(
    clock: ClockOffset, at_ms: int, offset_ms: int, there_ms: int, back_ms: int, work_ms: int = 0
) -> None:
    """One heartbeat, sent at `at_ms` of the own clock, while the coordinator's clock is `offset_ms`
    ahead.
    """
    received = at_ms + there_ms + offset_ms
    clock.observe(at_ms, received, received + work_ms, at_ms + there_ms + work_ms + back_ms)


def test_instants_follow_each_other_by_the_run_files_times() -> None:
    rounds = RoundsSpec(compute_ms=10, publish_ms=20, exchange_ms=30)
    assert instants(stated_slot(rounds), 1000) == Instants(
        opened=1000, bell=1010, publish_by=1030, commit_by=1060
    )


def test_before_the_first_heartbeat_nothing_is_known() -> None:
    clock = ClockOffset()
    assert (clock.milliseconds, clock.round_trip_ms) == (0, None)


@bounded
@given(st.integers(-(10**12), 10**12), delays, delays, delays)
def test_the_error_is_at_most_half_the_round_trip(
    offset_ms: int, there_ms: int, back_ms: int, work_ms: int
) -> None:
    clock = ClockOffset()
    exchange(clock, 10**6, offset_ms, there_ms, back_ms, work_ms)
    assert clock.round_trip_ms == there_ms + back_ms
    assert abs(clock.milliseconds - offset_ms) <= (there_ms + back_ms + 1) // 2


@bounded
@given(
    st.integers(-(10**12), 10**12),
    st.lists(st.tuples(delays, delays), min_size=1, max_size=SAMPLES_KEPT),
)
def test_the_error_is_at_most_half_the_best_round_trip(
    offset_ms: int, ways: list[tuple[int, int]]
) -> None:
    clock = ClockOffset()
    for beat, (there_ms, back_ms) in enumerate(ways):
        exchange(clock, 10**6 + 10_000 * beat, offset_ms, there_ms, back_ms)
    best_ms = min(there_ms + back_ms for there_ms, back_ms in ways)
    assert clock.round_trip_ms == best_ms
    assert abs(clock.milliseconds - offset_ms) <= (best_ms + 1) // 2


def test_with_equal_ways_the_offset_is_exact() -> None:
    clock = ClockOffset()
    exchange(clock, 500, 123_456, 40, 40, work_ms=7)
    assert clock.milliseconds == 123_456


def test_a_bad_sample_does_not_spoil_a_good_one() -> None:
    clock = ClockOffset()
    exchange(clock, 0, 1000, 5, 5)
    exchange(clock, 2000, 1000, 5, 3000)
    assert clock.milliseconds == 1000


def test_a_drifting_clock_is_followed() -> None:
    """100 ppm at one heartbeat in 2 s: the sample in use is never older than the window."""
    clock, worst_ms = ClockOffset(), 0
    for beat in range(500):
        drift_ms = beat * 2000 * 100 // 1_000_000
        exchange(clock, beat * 2000, 1000 + drift_ms, 10 + beat % 3, 10 + beat % 3)
        worst_ms = max(worst_ms, abs(clock.milliseconds - 1000 - drift_ms))
    assert worst_ms <= SAMPLES_KEPT * 2000 * 100 // 1_000_000 + 1


@pytest.mark.parametrize(
    ("sent", "received", "replied", "returned"),
    [(100, 0, 0, 90), (0, 500, 400, 10), (0, 0, 100, 50), (0, 2**62, 2**63 - 1, 1)],
)
def test_times_that_contradict_each_other_are_refused_and_forgotten(
    sent: int, received: int, replied: int, returned: int
) -> None:
    clock = ClockOffset()
    exchange(clock, 0, 77, 1, 1)
    with pytest.raises(RemoteProtocolError, match=f"got {sent}, {received}, {replied}, {returned}"):
        clock.observe(sent, received, replied, returned)
    assert clock.milliseconds == 77


def test_a_coordinator_that_ticks_within_one_own_millisecond_is_no_contradiction() -> None:
    """Sent at 0.1 ms and back at 0.8 ms of the own clock; the other clock went from 4.95 to 5.05
    meanwhile.
    """
    clock = ClockOffset()
    clock.observe(sent=0, received=4, replied=5, returned=0)
    assert clock.round_trip_ms == 0


# ---- clocks that lie


def test_a_slot_stretches_no_further_than_the_run_file_says() -> None:
    rounds = RoundsSpec(compute_ms=10, publish_ms=20, exchange_ms=30, stretch=3)
    assert (longest_slot(rounds), longest_slot(rounds).milliseconds) == (Slot(30, 60, 90), 180)


@pytest.mark.parametrize("offset_ms", [0, 1, -1, 6 * 3_600_000, -6 * 3_600_000])
@pytest.mark.parametrize("drift_ppm", [100, -100, 0])
def test_a_node_with_a_bad_clock_hears_the_bell_when_the_others_do(
    offset_ms: int, drift_ppm: int
) -> None:
    """A day of rounds of 10 s and a heartbeat every 2 s over a home link whose ways differ by up to
    60 ms.
    """
    clock, random = ClockOffset(), Random(7)
    worst_ms = 0
    for beat in range(43_200):
        true_ms = 2000 * beat
        there_ms, back_ms = 20 + random.randint(0, 60), 20 + random.randint(0, 60)

        def own(true_ms: int) -> int:
            return true_ms + offset_ms + true_ms * drift_ppm // 1_000_000

        clock.observe(
            own(true_ms), true_ms + there_ms, true_ms + there_ms, own(true_ms + there_ms + back_ms)
        )
        heard_ms = own(true_ms) + clock.milliseconds
        worst_ms = max(worst_ms, abs(heard_ms - true_ms))
    assert worst_ms <= 60  # half a round trip, and what a window of heartbeats drifts


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 1000, -1000])
def test_a_clock_that_jumped_is_right_again_with_the_next_heartbeat(jump_ms: int) -> None:
    """A suspended machine: its monotonic clock stood still, and the best samples are from
    before.
    """
    clock = ClockOffset()
    for beat in range(SAMPLES_KEPT):
        exchange(clock, 2000 * beat, 5000, 10, 10)
    exchange(clock, 2000 * SAMPLES_KEPT, 5000 + jump_ms, 200, 180)
    assert abs(clock.milliseconds - 5000 - jump_ms) <= 190
    exchange(clock, 2000 * SAMPLES_KEPT + 2000, 5000 + jump_ms, 10, 10)
    assert clock.milliseconds == 5000 + jump_ms


def test_a_slow_sample_is_no_jump() -> None:
    clock = ClockOffset()
    exchange(clock, 0, 1000, 5, 5)
    exchange(clock, 2000, 1000, 0, 4000)
    exchange(clock, 4000, 1000, 4000, 0)
    assert (clock.milliseconds, clock.round_trip_ms) == (1000, 10)

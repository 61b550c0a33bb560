"""A link's round trip and rate are medians of what was measured lately."""

from node.links.quality.meter import FETCH_BYTES_MIN, SAMPLES, FetchTiming, LinkMeter


def fetched(*parts: tuple[int, int]) -> FetchTiming:
    timing = FetchTiming()
    for count, now_ms in parts:
        timing.note(count, now_ms)
    return timing


def test_one_slow_heartbeat_does_not_count() -> None:
    meter = LinkMeter()
    for milliseconds in (900, 30, 23, 20):
        meter.note_round_trip(milliseconds)
    assert meter.newest_ms == 20
    assert meter.round_trip_ms is None, "too few"
    for milliseconds in (21, 700, 20, 22):
        meter.note_round_trip(milliseconds)
    assert meter.round_trip_ms == 22


def test_a_link_that_has_become_slow_is_slow_after_half_the_heartbeats() -> None:
    meter = LinkMeter()
    for _ in range(SAMPLES):
        meter.note_round_trip(10)
    for _ in range(SAMPLES // 2 + 1):
        meter.note_round_trip(80)
    assert meter.round_trip_ms == 80


def test_the_rate_is_that_after_the_first_part() -> None:
    meter = LinkMeter()
    assert meter.bit_s == 0
    part = FETCH_BYTES_MIN // 2
    meter.note_fetch(fetched((part, 5_000), (part, 5_100), (part, 5_200)))  # it waited for 5 s
    assert meter.bit_s == 8 * FETCH_BYTES_MIN * 1000 // 200


def test_a_small_fetch_tells_no_rate_and_no_time_is_no_division() -> None:
    meter = LinkMeter()
    meter.note_fetch(fetched((10**9, 0)))
    meter.note_fetch(fetched((1, 0), (FETCH_BYTES_MIN - 1, 1)))
    assert meter.bit_s == 0
    meter.note_fetch(fetched((1, 7), (FETCH_BYTES_MIN, 7)))
    assert meter.bit_s == 8000 * FETCH_BYTES_MIN

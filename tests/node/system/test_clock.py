"""Promises of the machine's clock."""

import time

from node.system.clock import own_clock_ms


def test_the_clock_counts_milliseconds_of_the_monotonic_clock() -> None:
    before_s = time.monotonic()
    now_ms = own_clock_ms()
    assert 1000 * before_s - 1 <= now_ms <= 1000 * time.monotonic()

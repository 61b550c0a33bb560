"""Promises of the token bucket."""

import pytest

from node.system.rate_limit import (
    BURST_S,
    FILL_SHARE,
    LIMIT_BYTES_PER_SECOND_MIN,
    rate_bucket,
)
from protocol.errors import SettingsError

LIMIT = 100_000
PER_MS = FILL_SHARE * LIMIT / 1000
"""Bytes that the limit lets leave in a millisecond."""


def test_a_full_bucket_lets_a_burst_leave_at_once() -> None:
    bucket = rate_bucket(LIMIT, 0)
    assert bucket.burst == BURST_S * LIMIT
    assert bucket.wait_ms(bucket.burst, 0) == 0


def test_charged_bytes_come_back_with_time_and_never_beyond_a_burst() -> None:
    bucket = rate_bucket(LIMIT, 0)
    bucket.charge(bucket.burst, 0)
    assert bucket.wait_ms(PER_MS * 10, 0) == pytest.approx(10)
    assert bucket.wait_ms(PER_MS * 10, 10) == 0
    bucket.charge(bucket.burst, 3_600_000)
    assert bucket.wait_ms(PER_MS, 3_600_000) == pytest.approx(1)


def test_a_debt_is_waited_for() -> None:
    bucket = rate_bucket(LIMIT, 0)
    bucket.charge(bucket.burst + 50 * PER_MS, 0)
    assert bucket.wait_ms(PER_MS, 0) == pytest.approx(51)


def test_more_than_a_burst_waits_for_a_full_bucket_and_not_for_ever() -> None:
    bucket = rate_bucket(LIMIT, 0)
    assert bucket.wait_ms(10 * LIMIT, 0) == 0
    bucket.charge(PER_MS, 0)
    assert bucket.wait_ms(10 * LIMIT, 0) == pytest.approx(1)


def test_a_clock_that_jumps_back_gives_no_bytes() -> None:
    bucket = rate_bucket(LIMIT, 1_000_000)
    bucket.charge(bucket.burst, 1_000_000)
    assert bucket.wait_ms(PER_MS, 0) == pytest.approx(1)
    assert bucket.wait_ms(PER_MS, 0) == pytest.approx(1)


def test_a_limit_below_the_least_is_refused_with_both_numbers() -> None:
    rate_bucket(LIMIT_BYTES_PER_SECOND_MIN, 0)
    with pytest.raises(SettingsError, match=f"at least {LIMIT_BYTES_PER_SECOND_MIN} .* got 19999"):
        rate_bucket(19_999, 0)

"""Token buckets: the rate holds over any time, and bursts pass."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.border.token_bucket import TokenBucket, TokenBuckets


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 5)), max_size=60))
def test_no_more_passes_than_the_burst_and_the_rate_allow(asked: list[tuple[int, int]]) -> None:
    bucket, now_ms, taken = TokenBucket(10, 5, 0), 0, 0
    for pause_ms, count in asked:
        now_ms += pause_ms
        taken += count * bucket.take(count, now_ms)
        assert taken <= 5 + 10 * now_ms / 1000 + 1e-6


def test_a_bucket_that_waited_is_full_again() -> None:
    bucket = TokenBucket(10, 5, 0)
    assert [bucket.take(1, 0) for _ in range(6)] == [True] * 5 + [False]
    assert bucket.wait_ms(2, 0) == 200
    assert bucket.take(2, 200)


def test_each_key_has_its_own_bucket_and_old_keys_are_forgotten() -> None:
    buckets: TokenBuckets[str] = TokenBuckets(1, 1, keys_max=2)
    assert buckets.take("a", 1, 0)
    assert buckets.take("b", 1, 0)
    assert not buckets.take("a", 1, 0)
    assert buckets.take("c", 1, 0)  # b was used least recently
    assert not buckets.take("a", 1, 0)
    assert buckets.take("b", 1, 0)

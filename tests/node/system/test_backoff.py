"""Promises of the doubling pause."""

from node.system.backoff import Backoff


def test_the_pause_doubles_up_to_the_longest() -> None:
    backoff = Backoff(500, 3_000)
    assert [backoff.next() for _ in range(5)] == [500, 1_000, 2_000, 3_000, 3_000]


def test_after_a_reset_the_first_pause_comes_again() -> None:
    backoff = Backoff(500, 3_000)
    assert [backoff.next(), backoff.next()] == [500, 1_000]
    backoff.reset()
    assert backoff.next() == 500


def test_no_pause_exceeds_a_longest_one_below_the_first() -> None:
    assert Backoff(500, 100).next() == 100

"""Pauses that double."""

from node.system.backoff import Backoff


def test_pauses_double_from_the_first_to_the_longest() -> None:
    backoff = Backoff(500, 3_000)
    assert [backoff.advance() for _ in range(5)] == [500, 1_000, 2_000, 3_000, 3_000]


def test_a_success_brings_the_first_pause_back() -> None:
    backoff = Backoff(500, 3_000)
    for _ in range(4):
        backoff.advance()
    backoff.reset()
    assert [backoff.advance(), backoff.advance()] == [500, 1_000]


def test_equal_bounds_give_a_constant_pause() -> None:
    backoff = Backoff(100, 100)
    assert {backoff.advance() for _ in range(3)} == {100}

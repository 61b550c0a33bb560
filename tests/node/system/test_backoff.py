"""Promises of the doubling pause, and of the search for a coordinator in virtual time."""

import itertools
import random
from collections.abc import Iterator

import pytest

from node.system.backoff import (
    LOOK_FIRST_MS,
    LOOK_LONGEST_MS,
    LOOKS_PER_S,
    REFUSED_MS,
    TRY_FIRST_MS,
    Backoff,
    Search,
)


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


def looks_in_vain(
    search: Search, now_ms: int, members: int = 8, spread: float = 1
) -> Iterator[int]:
    """Times of the looks at a machine that refuses at once."""
    while True:
        now_ms += round(spread * search.missed(now_ms, members))
        search.looks(now_ms)
        yield now_ms


def in_session(now_ms: int) -> Search:
    """The search of a node whose session has just opened for the first time."""
    search = Search()
    search.looks(now_ms)
    search.found(now_ms)
    return search


@pytest.mark.parametrize("outage_ms", [700, 2_300, 5_000, 10_000])
@pytest.mark.parametrize("spread", [0.5, 1, 1.5])
def test_a_node_is_back_within_a_part_of_an_outage(outage_ms: int, spread: float) -> None:
    """Pauses that doubled from half a second missed 2.3 s by 3 s, when they were drawn long."""
    looks = looks_in_vain(in_session(0), 0, spread=spread)
    back_ms = next(at_ms for at_ms in looks if at_ms >= outage_ms)
    assert back_ms - outage_ms <= spread * max(LOOK_FIRST_MS, outage_ms / 4)


def test_looks_come_ever_more_rarely_up_to_a_bound() -> None:
    looks = looks_in_vain(in_session(0), 0)
    times_ms = [next(looks) for _ in range(100)]
    apart_ms = [after - before for before, after in itertools.pairwise(times_ms)]
    assert apart_ms == sorted(apart_ms)
    assert set(apart_ms[-50:]) == {LOOK_LONGEST_MS}


def test_five_hundred_nodes_come_back_no_faster_than_sessions_can_open() -> None:
    members, draw, busiest = 500, random.Random(1), 0
    searches = [in_session(0) for _ in range(members)]
    at_ms = [round(each.missed(0, members) * draw.uniform(0.5, 1.5)) for each in searches]
    for _ in range(20):
        for second in range(60):
            busiest = max(busiest, sum(each // 1000 == second for each in at_ms))
        for number, search in enumerate(searches):
            search.looks(at_ms[number])
            pause_ms = search.missed(at_ms[number], members)
            at_ms[number] += round(pause_ms * draw.uniform(0.5, 1.5))
    assert busiest <= 1.2 * LOOKS_PER_S


def test_a_session_makes_up_for_as_much_time_away_as_it_lasts() -> None:
    search = in_session(0)
    looks = looks_in_vain(search, 0)
    now_ms = next(at_ms for at_ms in looks if at_ms >= 8_000)
    search.found(now_ms)
    assert search.missed(now_ms + 1, 8) >= now_ms // 4, "a session that ends at once is no success"
    search.looks(now_ms + 2_500)
    search.found(now_ms + 2_500)
    search.found(now_ms + 5_000)  # a second welcome of the same session
    assert search.missed(now_ms + 30_000, 8) == LOOK_FIRST_MS


def test_a_node_that_is_refused_does_not_come_again_at_once() -> None:
    search = in_session(0)
    search.missed(0, 8)
    search.looks(250)
    search.heard()
    assert search.missed(260, 8) == REFUSED_MS
    search.looks(1_760)
    assert search.missed(1_770, 8) < REFUSED_MS, "the machine is away again"


def test_a_try_at_a_silent_machine_ends_after_a_part_of_the_time_away() -> None:
    search = Search()
    assert search.looks(5) == TRY_FIRST_MS
    assert search.looks(1_005) == TRY_FIRST_MS
    assert search.looks(60_005) == 15_000

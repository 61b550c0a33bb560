from hypothesis import given
from hypothesis import strategies as st

from node.ranks.dealing import HOPE, WORTHWHILE, Speeds, dealt, pass_samples


def test_like_ranks_get_like_shares() -> None:
    assert dealt(8, [1.0] * 4, 8) == (2, 2, 2, 2)
    assert dealt(5, [1.0, 1.0], 8) == (3, 2)


def test_a_quicker_rank_gets_more_and_a_very_slow_one_nothing() -> None:
    assert dealt(12, [1.0, 2.0, 3.0], 8) == (2, 4, 6)
    assert dealt(4, [1.0, 100.0], 8) == (0, 4)


def test_a_rank_gets_at_most_what_a_pass_may_have() -> None:
    assert dealt(9, [1.0, 100.0], 5) == (4, 5)
    assert dealt(100, [1.0, 100.0], 5) == (5, 5)


@given(
    st.integers(0, 60),
    st.lists(st.floats(0.01, 1000), min_size=1, max_size=6),
    st.integers(1, 9),
)
def test_all_samples_are_dealt_that_fit(samples: int, speeds: list[float], most: int) -> None:
    shares = dealt(samples, speeds, most)
    assert sum(shares) == min(samples, most * len(speeds))
    assert all(0 <= share <= most for share in shares)
    done_s = [share / speed for share, speed in zip(shares, speeds, strict=True)]
    for share, speed in zip(shares, speeds, strict=True):
        if share < most:  # nobody is later than this rank would be with one more
            assert max(done_s) <= (share + 1) / speed * (1 + 1e-9)


def test_passes_are_whole_as_long_as_ranks_are_about_alike() -> None:
    assert pass_samples([1.0, 1.0, 1.0], 8) == 24
    assert pass_samples([1.0, 1.4], 8) == 16
    assert pass_samples([3.0], 8) == 8


def test_a_pass_has_what_all_compute_while_the_quickest_computes_the_most() -> None:
    assert pass_samples([3.0, 1.0], 6) == 8
    assert dealt(8, [3.0, 1.0], 6) == (6, 2)
    assert pass_samples([100.0, 1.0], 4) == 4, "a very slow one gets nothing"


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=6), st.integers(1, 9))
def test_a_pass_that_is_not_whole_is_worth_it(speeds: list[float], most: int) -> None:
    samples = pass_samples(speeds, most)
    assert most <= samples <= most * len(speeds)
    if samples < most * len(speeds):
        exact = sum(speeds) * most / max(speeds)  # in the time of the quickest
        whole = most * len(speeds) * min(speeds) / max(speeds)
        assert exact >= WORTHWHILE * whole * (1 - 1e-9)
        assert abs(samples - exact) <= len(speeds) / 2


def test_speeds_follow_the_newest_passes() -> None:
    speeds = Speeds(3)
    assert speeds.all == [1.0] * 3
    speeds.note(0, 4, 2.0)
    speeds.note(1, 8, 2.0)
    assert speeds.all == [2.0, 4.0, 3.0]
    speeds.note(0, 8, 2.0)
    assert speeds.all[0] == 3.0
    assert speeds.measured == [3.0, 4.0, None]


def test_a_rank_without_a_share_is_tried_again() -> None:
    speeds = Speeds(2)
    speeds.note(0, 100, 1.0)
    speeds.note(1, 1, 1.0)
    passes = 0
    while not dealt(4, speeds.all, 4)[1]:
        speeds.note(0, 4, 0.04)
        speeds.note(1, 0, 0.0)
        passes += 1
    assert 1 < passes < 100
    assert HOPE > 1

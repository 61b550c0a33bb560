"""Shares: within the batch, at least one each, fair, and the same everywhere."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.pacing import HEADROOM_PERCENT, samples_per_share, smoothed_speed
from protocol.ids import PeerId
from protocol.runfile import RoundsSpec
from tests.coordinator.driver import A, B, C, D

members = st.dictionaries(
    st.integers(0, 2**32).map(lambda number: PeerId(f"{number:032x}")),
    st.tuples(st.one_of(st.just(0), st.integers(1, 10**9)), st.integers(0, 1000)),
    min_size=1,
    max_size=40,
)
specs = st.builds(
    RoundsSpec,
    compute_ms=st.integers(1, 86_400_000),
    batch_samples_max=st.integers(1, 10_000),
    share_samples_first=st.integers(1, 1000),
)
bounded = settings(deadline=None, max_examples=200)


def rounds(batch: int, first: int = 8, compute_ms: int = 1000) -> RoundsSpec:
    return RoundsSpec(batch_samples_max=batch, share_samples_first=first, compute_ms=compute_ms)


@bounded
@given(members, specs)
def test_the_sum_stays_within_the_batch_or_one_each(speeds: dict[PeerId, tuple[int, int]], spec: RoundsSpec) -> None:
    shares = samples_per_share(speeds, spec)
    assert shares.keys() == speeds.keys()
    assert min(shares.values()) >= 1
    assert sum(shares.values()) <= max(spec.batch_samples_max, len(speeds))


@bounded
@given(members, specs)
def test_the_batch_is_filled_when_more_is_wanted(speeds: dict[PeerId, tuple[int, int]], spec: RoundsSpec) -> None:
    punctual = {peer: (speed, 0) for peer, (speed, _) in speeds.items()}
    ample = samples_per_share(punctual, spec.model_copy(update={"batch_samples_max": 10**12}))
    wanted = {peer: min(want, spec.batch_samples_max) for peer, want in ample.items()}
    shares = samples_per_share(punctual, spec)
    if sum(wanted.values()) <= spec.batch_samples_max:
        assert shares == wanted
    else:
        assert sum(shares.values()) == max(spec.batch_samples_max, len(speeds))
        assert all(shares[peer] <= wanted[peer] for peer in shares)


@bounded
@given(members, specs, st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(
    speeds: dict[PeerId, tuple[int, int]], spec: RoundsSpec, random: Random
) -> None:
    shuffled = list(speeds)
    random.shuffle(shuffled)
    assert samples_per_share({peer: speeds[peer] for peer in shuffled}, spec) == samples_per_share(speeds, spec)


@bounded
@given(members, specs)
def test_a_faster_member_is_asked_for_no_less_but_for_the_remainder(
    speeds: dict[PeerId, tuple[int, int]], spec: RoundsSpec
) -> None:
    punctual = {peer: (max(1, speed), 0) for peer, (speed, _) in speeds.items()}
    shares = samples_per_share(punctual, spec)
    for slower, faster in pairwise(sorted(punctual, key=lambda peer: punctual[peer])):
        assert shares[slower] <= shares[faster] + 1  # equal wishes share the remainder by id


def test_a_share_is_what_the_speed_can_do_with_headroom() -> None:
    assert HEADROOM_PERCENT == 125
    assert samples_per_share({A: (8000, 0)}, rounds(1000, compute_ms=2000)) == {A: 20}


def test_an_unknown_speed_gets_the_first_share() -> None:
    assert samples_per_share({A: (0, 0), B: (4000, 0)}, rounds(1000, first=6)) == {A: 6, B: 5}


def test_each_strike_halves_down_to_one() -> None:
    shares = [samples_per_share({A: (0, strikes)}, rounds(64, first=8))[A] for strikes in range(6)]
    assert shares == [8, 4, 2, 1, 1, 1]


def test_a_small_batch_keeps_one_for_everyone_and_cuts_the_large() -> None:
    shares = samples_per_share({A: (8000, 0), B: (800, 0), C: (800, 0), D: (800, 0)}, rounds(6, compute_ms=1000))
    assert shares == {A: 3, B: 1, C: 1, D: 1}


def test_more_members_than_samples_get_one_each() -> None:
    assert samples_per_share({A: (0, 0), B: (0, 0), C: (0, 0)}, rounds(2)) == {A: 1, B: 1, C: 1}


def test_ties_go_by_id() -> None:
    assert samples_per_share({C: (0, 0), B: (0, 0), A: (0, 0)}, rounds(10)) == {A: 4, B: 3, C: 3}


@pytest.mark.parametrize(
    ("speed", "samples", "compute_ms", "expected"),
    [(0, 8, 2000, 4000), (4000, 8, 2000, 4000), (4000, 8, 1000, 5000), (4000, 0, 1000, 3000), (0, 8, 0, 8_000_000)],
)
def test_speed_moves_a_quarter_of_the_way(speed: int, samples: int, compute_ms: int, expected: int) -> None:
    assert smoothed_speed(speed, samples, compute_ms) == expected

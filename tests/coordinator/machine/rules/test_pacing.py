"""Slots follow what most members need, within bounds. Shares: within the batch, at least one each,
fair, and the same everywhere.
"""

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine.events.inputs import Restarted
from coordinator.machine.rules.pacing import HEADROOM_PERCENT, next_pace, samples_per_share
from coordinator.machine.state.pace import Needs, Pace, smoothed_speed
from protocol.clock import Slot, longest_slot, stated_slot
from protocol.ids import PeerId
from protocol.runfile import RoundsSpec
from tests.coordinator.machine.driver import A, B, C, D, Driver

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
bounded = settings(max_examples=200)


def rounds(batch: int, first: int = 8) -> RoundsSpec:
    return RoundsSpec(batch_samples_max=batch, share_samples_first=first)


def shares_of(
    speeds: dict[PeerId, tuple[int, int]], spec: RoundsSpec, compute_ms: int = 1000
) -> dict[PeerId, int]:
    return samples_per_share(speeds, spec, compute_ms)


@bounded
@given(members, specs)
def test_the_sum_stays_within_the_batch_or_one_each(
    speeds: dict[PeerId, tuple[int, int]], spec: RoundsSpec
) -> None:
    shares = shares_of(speeds, spec, spec.compute_ms)
    assert shares.keys() == speeds.keys()
    assert min(shares.values()) >= 1
    assert sum(shares.values()) <= max(spec.batch_samples_max, len(speeds))


@bounded
@given(members, specs)
def test_the_batch_is_filled_when_more_is_wanted(
    speeds: dict[PeerId, tuple[int, int]], spec: RoundsSpec
) -> None:
    punctual = {peer: (speed, 0) for peer, (speed, _) in speeds.items()}
    ample = shares_of(
        punctual, spec.model_copy(update={"batch_samples_max": 10**12}), spec.compute_ms
    )
    wanted = {peer: min(want, spec.batch_samples_max) for peer, want in ample.items()}
    shares = shares_of(punctual, spec, spec.compute_ms)
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
    assert shares_of({peer: speeds[peer] for peer in shuffled}, spec, spec.compute_ms) == shares_of(
        speeds, spec, spec.compute_ms
    )


@bounded
@given(members, specs)
def test_a_faster_member_is_asked_for_no_less_but_for_the_remainder(
    speeds: dict[PeerId, tuple[int, int]], spec: RoundsSpec
) -> None:
    punctual = {peer: (max(1, speed), 0) for peer, (speed, _) in speeds.items()}
    shares = shares_of(punctual, spec, spec.compute_ms)
    for slower, faster in pairwise(sorted(punctual, key=lambda peer: punctual[peer])):
        assert shares[slower] <= shares[faster] + 1  # equal wishes share the remainder by id


def test_a_share_is_the_samples_that_the_speed_allows_with_headroom() -> None:
    assert HEADROOM_PERCENT == 125
    assert shares_of({A: (8000, 0)}, rounds(1000), compute_ms=2000) == {A: 20}


def test_an_unknown_speed_gets_the_first_share() -> None:
    assert shares_of({A: (0, 0), B: (4000, 0)}, rounds(1000, first=6)) == {A: 6, B: 5}


def test_each_strike_halves_down_to_one() -> None:
    shares = [shares_of({A: (0, strikes)}, rounds(64, first=8))[A] for strikes in range(6)]
    assert shares == [8, 4, 2, 1, 1, 1]


def test_a_small_batch_keeps_one_sample_for_each_member_and_cuts_large_shares() -> None:
    shares = shares_of({A: (8000, 0), B: (800, 0), C: (800, 0), D: (800, 0)}, rounds(6))
    assert shares == {A: 3, B: 1, C: 1, D: 1}


def test_more_members_than_samples_get_one_each() -> None:
    assert shares_of({A: (0, 0), B: (0, 0), C: (0, 0)}, rounds(2)) == {A: 1, B: 1, C: 1}


def test_ties_go_by_id() -> None:
    assert shares_of({C: (0, 0), B: (0, 0), A: (0, 0)}, rounds(10)) == {A: 4, B: 3, C: 3}


@pytest.mark.parametrize(
    ("speed", "samples", "compute_ms", "expected"),
    [
        (0, 8, 2000, 4000),
        (4000, 8, 2000, 4000),
        (4000, 8, 1000, 5000),
        (4000, 0, 1000, 3000),
        (0, 8, 0, 8_000_000),
    ],
)
def test_speed_moves_a_quarter_of_the_way(
    speed: int, samples: int, compute_ms: int, expected: int
) -> None:
    assert smoothed_speed(speed, samples, compute_ms) == expected


# ---- the slot


STATED = Slot(10_000, 4000, 8000)


def stated(**changes: Any) -> RoundsSpec:
    fields = {
        "compute_ms": 10_000,
        "publish_ms": 4000,
        "exchange_ms": 8000,
        "overlap": 0,
        "quorum": 1,
    }
    return RoundsSpec(**(fields | changes))


def after(rounds: int, needs: Needs, spec: RoundsSpec, pace: Pace | None = None) -> Pace:
    pace = pace or Pace(stated_slot(spec))
    for _ in range(rounds):
        pace = next_pace(pace, needs, spec, hides=spec.overlap > 0)
    return pace


def test_a_slot_grows_at_once_to_the_need_with_a_margin() -> None:
    assert after(1, Needs((5000,) * 4, (7000,) * 4), stated()).slot == Slot(10_000, 7500, 10_500)


def test_a_slot_shrinks_by_a_quarter_of_the_way_down_to_its_bound() -> None:
    quick = Needs((10,) * 4, (10,) * 4)
    assert after(1, quick, stated()).slot == Slot(10_000, 3250, 6500)
    assert after(100, quick, stated()).slot == Slot(10_000, 1000, 2000)


def test_a_slot_never_leaves_its_bounds() -> None:
    hopeless = Needs((10**9,) * 4, (10**9,) * 4)
    assert after(3, hopeless, stated()).slot == Slot(10_000, 16_000, 32_000)
    assert after(3, hopeless, stated(overlap=1)).slot == longest_slot(stated(overlap=1))


def test_fixed_pacing_is_a_stretch_of_one() -> None:
    assert after(3, Needs((10**9,), (10**9,)), stated(stretch=1)) == Pace(STATED)


def test_one_slow_member_in_four_does_not_stretch_the_slot_and_two_do() -> None:
    assert after(9, Needs((2000, 2000, 2000, 60_000), (4000,) * 4), stated()).slot.publish_ms < 4000
    assert (
        after(9, Needs((2000, 2000, 60_000, 60_000), (4000,) * 4), stated()).slot.publish_ms
        == 16_000
    )


def test_a_slow_member_that_the_quorum_needs_is_waited_for() -> None:
    slow = Needs((2000, 2000, 2000, 9000), (4000,) * 4)
    assert after(1, slow, stated(quorum=4)).slot.publish_ms == 13_500


def test_the_exchange_is_hidden_behind_a_longer_compute_only_when_rounds_overlap() -> None:
    needs = Needs((2000,), (10_000,))
    assert after(1, needs, stated(overlap=1)).slot.compute_ms == 18_000
    assert after(1, needs, stated(overlap=0)).slot.compute_ms == 10_000
    assert (
        after(
            50, Needs((1,), (1,)), stated(overlap=1), after(1, needs, stated(overlap=1))
        ).slot.compute_ms
        == 10_000
    )


def test_a_slot_that_is_not_the_stated_one_has_a_reason_with_numbers() -> None:
    assert after(1, Needs((1000, 2000, 5000, 9000), (7000,) * 4), stated()).reason == (
        "slot of 10 + 7.5 + 10.5 s: 3 of 4 members announce within 5 s and are copied 7 s later"
    )
    round_numbers = stated(publish_ms=3000, exchange_ms=6000)
    assert after(1, Needs((2000,) * 4, (4000,) * 4), round_numbers) == Pace(
        stated_slot(round_numbers)
    )


def test_a_round_of_which_nothing_is_known_changes_nothing() -> None:
    pace = after(1, Needs((5000,), (7000,)), stated())
    assert next_pace(pace, Needs((), ()), stated(), hides=False) is pace


@bounded
@given(
    st.lists(st.integers(0, 10**7), max_size=30),
    st.lists(st.integers(0, 10**7), max_size=30),
    st.builds(
        RoundsSpec,
        stretch=st.integers(1, 100),
        quorum=st.integers(1, 40),
        overlap=st.sampled_from([0, 1]),
    ),
    st.integers(1, 20),
)
def test_any_needs_keep_the_slot_within_the_run_files_bounds(
    publish: list[int], exchange: list[int], spec: RoundsSpec, rounds: int
) -> None:
    slot = after(rounds, Needs(tuple(sorted(publish)), tuple(sorted(exchange))), spec).slot
    longest = longest_slot(spec)
    assert spec.compute_ms <= slot.compute_ms <= longest.compute_ms
    assert spec.publish_ms // spec.stretch <= slot.publish_ms <= longest.publish_ms
    assert spec.exchange_ms // spec.stretch <= slot.exchange_ms <= longest.exchange_ms


# ---- in the machine: slots of 1000 + 500 + 1500 ms


def adaptive(*peers: PeerId, **rounds: Any) -> Driver:
    return Driver(
        *peers,
        rounds={"stretch": 4} | rounds,
        membership={"lease_ms": 600_000, "strikes_to_mute": 100},
    )


def test_many_late_members_are_waited_for_before_long_and_no_round_is_skipped_for_ever() -> None:
    driver, late_ms = adaptive(A, B, C, D), 1200
    for _ in range(6):
        undecided = driver.machine.state.undecided[0]
        driver.wait(undecided.instants.bell + late_ms - driver.now_ms)
        if driver.machine.undecided(undecided.round):
            driver.exchange(undecided.round, A, B, C, D)
        driver.wait(5000 if driver.machine.undecided(undecided.round) else 0)
    assert 1 <= driver.machine.state.totals.skipped <= 3
    assert driver.machine.state.totals.committed >= 3
    assert driver.machine.state.pace.slot.publish_ms >= late_ms
    assert "members announce within" in driver.opened[-1].assignments[0].reason


def test_one_member_that_is_always_late_slows_the_others_no_more_than_the_stated_slot() -> None:
    driver = adaptive(A, B, C, D)
    for _ in range(12):
        driver.exchange(driver.machine.state.undecided[0].round, A, B, C)
        driver.wait(driver.machine.state.undecided[0].instants.publish_by - driver.now_ms)
    assert driver.machine.state.totals.skipped == 0
    assert driver.machine.state.pace.slot.publish_ms <= 500
    assert driver.member(D).strikes == 12


def test_a_member_that_stays_late_although_the_slot_grew_is_no_longer_followed() -> None:
    driver = Driver(
        A, B, rounds={"stretch": 4, "quorum": 1, "copies_min": 0}, membership={"lease_ms": 600_000}
    )
    for _ in range(40):
        undecided = driver.machine.state.undecided[0]
        driver.announce(A, undecided.round)
        if driver.machine.undecided(undecided.round):
            driver.wait(undecided.instants.publish_by - driver.now_ms)
    assert driver.machine.state.pace.slot.publish_ms < 500


def test_a_round_still_closes_as_soon_as_everything_is_there() -> None:
    driver = adaptive(A, B)
    for round in range(20):
        driver.wait(7)
        driver.exchange(round, A, B)
    assert (driver.machine.state.totals.committed, driver.now_ms) == (20, 1_000_000 + 140)
    assert driver.machine.state.pace.slot == Slot(1000, 125, 377)  # a quarter of the way at a time


def test_an_outage_of_the_coordinator_counts_as_no_members_need() -> None:
    driver = adaptive(A, B)
    driver.now_ms += 60_000
    driver.tell(Restarted())
    driver.exchange(0, A, B)
    assert driver.machine.state.totals.committed == 1
    assert driver.machine.state.pace == Pace(Slot(1000, 500, 1500))


def test_copies_that_come_late_lengthen_the_exchange() -> None:
    driver = adaptive(A, B)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.wait(2900)
    driver.hold(A, 0, [B])
    driver.hold(B, 0, [A])
    assert driver.machine.state.totals.committed == 1
    assert driver.machine.state.pace.slot.exchange_ms == 2900 * 3 // 2


@pytest.mark.parametrize(("overlap", "lengthened"), [(1, True), (0, False)])
def test_a_round_is_lengthened_only_to_hide_an_exchange(overlap: int, lengthened: bool) -> None:
    driver = adaptive(A, B, overlap=overlap)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.wait(2900)
    driver.hold(A, 0, [B])
    driver.hold(B, 0, [A])
    assert (driver.machine.state.pace.slot.compute_ms > 1000) == lengthened


def test_shares_follow_the_length_of_the_compute() -> None:
    driver = adaptive(A, B, overlap=1, batch_samples_max=1000)
    for round in range(2):  # 8 samples in 1000 ms
        driver.announce(A, round)
        driver.announce(B, round)
    driver.wait(2900)
    for round in range(2):
        driver.hold(A, round, [B])
        driver.hold(B, round, [A])
    leased = [sum(share.count for share in asked.shares) for asked in driver.opened[-1].assignments]
    assert driver.machine.state.pace.slot.compute_ms == 4000
    assert leased == [42, 42]  # 8.5 samples per second, for 4 s, and the headroom

"""What members say of their links becomes a matrix without gaps, and groups for everybody."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.ids import PeerId
from protocol.mixing.link_report import MeasuredLink
from protocol.mixing.measured_links import LinkMatrix, groups_of, matrix_of, network_of
from protocol.mixing.topologies import Topology, mixing_matrix


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"{number:032x}") for number in range(count)]


A, B, C, D = peers(4)


def trips_ms(matrix: LinkMatrix) -> list[list[float]]:
    found: list[list[float]] = (1000 * matrix.round_trip_s).round(6).tolist()
    return found


def test_the_end_that_finds_a_link_longer_is_believed() -> None:
    said = {A: [MeasuredLink(B, 5)], B: [MeasuredLink(A, 40)]}
    assert matrix_of(said, (A, B)).round_trip_s[0, 1] == 0.04
    assert matrix_of({A: said[A]}, (A, B)).round_trip_s[1, 0] == 0.005, "one end's word alone"


def test_a_rate_is_that_of_the_receiver() -> None:
    matrix = matrix_of({A: [MeasuredLink(B, 5, 7_000)]}, (A, B))
    assert matrix.bit_s[1, 0] == 7_000
    assert np.isnan(matrix.bit_s[0, 1])


def test_relays_former_members_and_oneself_do_not_count() -> None:
    matrix = matrix_of(
        {A: [MeasuredLink(D, 5), MeasuredLink(A, 5)], D: [MeasuredLink(A, 5)]}, (A, B)
    )
    assert matrix.measured_pairs == 0
    assert not matrix.covers_all


def test_gaps_are_the_shortest_way_or_the_longest_of_any() -> None:
    said = {A: [MeasuredLink(B, 5)], B: [MeasuredLink(C, 30)]}
    matrix = matrix_of(said, (A, B, C, D))
    assert matrix.measured_pairs == 2
    assert not matrix.covers_all
    assert trips_ms(matrix.completed()) == [
        [0, 5, 35, 30],
        [5, 0, 30, 30],
        [35, 30, 0, 30],
        [30, 30, 30, 0],
    ]


def test_without_any_measurement_there_are_no_delays_and_the_rates_of_the_lines() -> None:
    network = network_of(["a", "b"], [3e6, 0.0], matrix_of({}, (A, B)))
    assert not network.delay_s.any()
    assert network.rate_bit_s[0, 1] == 3e6
    assert network.rate_bit_s[1, 0] == 3e6, "unknown: that of the other"
    assert network_of(["a", "b"], [0.0, 0.0], matrix_of({}, (A, B))).rate_bit_s[0, 1] > 0


def two_houses(count: int, near_ms: int = 2, far_ms: int = 60) -> dict[PeerId, list[MeasuredLink]]:
    """Even members live in one house, odd ones in another."""
    members = peers(count)
    return {
        one: [
            MeasuredLink(other, near_ms if (place - row) % 2 == 0 else far_ms)
            for row, other in enumerate(members)
            if other != one
        ]
        for place, one in enumerate(members)
    }


def test_members_of_one_house_are_a_group_whatever_their_ids() -> None:
    members = peers(6)
    groups = groups_of(two_houses(6), dict.fromkeys(members, 0.0), 1e6) or ()
    assert groups == (tuple(members[::2]), tuple(members[1::2]))
    topology = Topology("hierarchical", groups=groups)
    fast = [edge for round in range(2) for edge in topology.edges(round, members)]
    assert fast
    assert all(int(first, 16) % 2 == int(second, 16) % 2 for first, second in fast)


def test_a_fast_transfer_makes_a_group_where_round_trips_are_equal() -> None:
    members = peers(4)
    house = {A: (A, B), B: (A, B), C: (C, D), D: (C, D)}
    said = {
        one: [
            MeasuredLink(other, 10, 10**9 if other in house[one] else 10**7)
            for other in members
            if other != one
        ]
        for one in members
    }
    assert groups_of(said, dict.fromkeys(members, 1e7), 1e7) == ((A, B), (C, D))


def test_links_that_do_not_stand_out_make_no_groups() -> None:
    members = peers(5)
    assert groups_of(two_houses(5, 20, 25), dict.fromkeys(members, 2e7), 1e6) == ()
    assert groups_of({}, dict.fromkeys(members, 2e7), 1e6) is None, "nothing was measured"


@settings(max_examples=40)
@given(st.integers(2, 9), st.integers(0, 2**32 - 1), st.data())
def test_any_words_give_groups_whose_rounds_keep_the_mean(
    count: int, seed: int, data: st.DataObject
) -> None:
    """However wrong they are: unequal, one-sided, missing, of strangers."""
    chance = np.random.default_rng(seed)
    everybody = peers(count + 2)
    said = {
        one: [
            MeasuredLink(other, int(chance.integers(0, 60_001)), int(chance.integers(0, 10**12)))
            for other in everybody
            if chance.random() < 0.6
        ]
        for one in everybody
    }
    members = peers(count)
    up_bit_s = {peer: float(chance.integers(0, 10**9)) for peer in members}
    groups = groups_of(said, up_bit_s, 1e6)
    assert groups == groups_of(
        dict(reversed(said.items())), dict(reversed(up_bit_s.items())), 1e6
    ), "the order in which members are listed does not matter"
    groups = groups or ()
    grouped = [member for group in groups for member in group]
    assert not groups or sorted(grouped) == members
    present = data.draw(st.lists(st.sampled_from(members), unique=True, min_size=1))
    for round in range(8):
        for name in ("hierarchical", "alternating-exponential-ring"):
            matrix = mixing_matrix(Topology(name, groups=groups).edges(round, present), present)
            assert matrix.sum(axis=0) == pytest.approx(1)
            assert matrix.sum(axis=1) == pytest.approx(1)
            assert (matrix >= 0).all()

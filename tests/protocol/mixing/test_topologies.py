"""Every topology mixes without moving the mean, for any number and any set of members."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError, SettingsError
from protocol.ids import PeerId
from protocol.mixing.topologies import (
    TOPOLOGY_NAMES,
    Topology,
    TopologyName,
    mixing_matrix,
)
from protocol.mixing.weights import validated

NAMES = st.sampled_from(TOPOLOGY_NAMES)


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"{number:032x}") for number in range(count)]


MEMBERS = st.sets(
    st.integers(0, 2**128 - 1).map(lambda number: PeerId(f"{number:032x}")),
    min_size=1,
    max_size=64,
).map(sorted)


@st.composite
def topologies(draw: st.DrawFn) -> tuple[Topology, list[PeerId]]:
    """A topology whose groups know some of the members, and some that are gone."""
    members = draw(MEMBERS)
    known = draw(st.permutations(sorted({*members, *peers(3)})))[: draw(st.integers(0, 67))]
    cuts = sorted(draw(st.sets(st.integers(1, 66), max_size=8)))
    bounds = zip([0, *cuts], [*cuts, len(known)], strict=True)
    groups = tuple(tuple(known[low:high]) for low, high in bounds if known[low:high])
    return Topology(draw(NAMES), groups, draw(st.integers(0, 9))), members


@settings(max_examples=150)
@given(topologies(), st.integers(0, 10**6))
def test_the_matrix_of_any_round_is_symmetric_and_doubly_stochastic(
    given_topology: tuple[Topology, list[PeerId]], round: int
) -> None:
    topology, members = given_topology
    matrix = mixing_matrix(topology.edges(round, members), members)
    assert (matrix >= 0).all()
    assert (np.diag(matrix) > 0).all()
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)


@settings(max_examples=150)
@given(topologies(), st.integers(0, 50))
def test_the_product_over_any_period_contracts(
    given_topology: tuple[Topology, list[PeerId]], turn: int
) -> None:
    topology, members = given_topology
    assert validated(topology, members).contraction < 1 - 1e-9
    period = topology.period(members)
    values = np.arange(len(members), dtype=float)
    distance = np.linalg.norm(values - values.mean())
    for round in range(turn * period, (turn + 1) * period):
        values = mixing_matrix(topology.edges(round, members), members) @ values
    assert values.mean() == pytest.approx((len(members) - 1) / 2)
    after = np.linalg.norm(values - values.mean())
    assert after < distance or distance == 0


@pytest.mark.parametrize("name", TOPOLOGY_NAMES)
def test_every_number_of_members_contracts(name: TopologyName) -> None:
    left = {count: validated(Topology(name), peers(count)).contraction for count in range(1, 65)}
    assert not {count: factor for count, factor in left.items() if not 0 <= factor < 1}


@given(topologies(), st.integers(0, 100), st.data())
def test_the_order_in_which_members_are_listed_does_not_matter(
    given_topology: tuple[Topology, list[PeerId]], round: int, data: st.DataObject
) -> None:
    topology, members = given_topology
    shuffled = data.draw(st.permutations(members))
    assert topology.edges(round, shuffled) == topology.edges(round, members)


@given(topologies(), st.integers(0, 1000), st.data())
def test_lost_edges_keep_the_mean(
    given_topology: tuple[Topology, list[PeerId]], round: int, data: st.DataObject
) -> None:
    topology, members = given_topology
    edges = topology.edges(round, members)
    kept = data.draw(st.sets(st.sampled_from(edges))) if edges else set()
    matrix = mixing_matrix(kept, members)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-12)


@pytest.mark.parametrize("name", ["ring", "one-peer-exponential", "random-matching"])
def test_a_matching_gives_each_member_at_most_one_partner(name: TopologyName) -> None:
    for count, round in itertools.product(range(2, 65), range(9)):
        ends = [end for edge in Topology(name).edges(round, peers(count)) for end in edge]
        assert len(ends) == len(set(ends)), (count, round)
        assert len(ends) >= count - (1 if name != "one-peer-exponential" else count % 2)


@pytest.mark.parametrize("count", [2, 4, 8, 16, 32, 64])
def test_one_peer_exponential_reaches_the_exact_mean_in_log2_rounds(count: int) -> None:
    topology = Topology("one-peer-exponential")
    assert topology.period(peers(count)) == count.bit_length() - 1
    assert validated(topology, peers(count)).contraction == pytest.approx(0, abs=1e-12)


def test_complete_is_the_mean_in_one_round() -> None:
    assert validated(Topology("complete"), peers(7)).contraction == pytest.approx(0, abs=1e-12)


def test_a_ring_is_two_halves_of_a_circle() -> None:
    a, b, c, d = peers(4)
    ring = Topology("ring")
    assert ring.edges(0, [a, b, c, d]) == ((a, b), (c, d))
    assert ring.edges(1, [a, b, c, d]) == ((a, d), (b, c))


def test_nobody_is_always_the_one_without_a_partner() -> None:
    members = peers(5)
    for name in ("ring", "one-peer-exponential", "random-matching"):
        met = {end for r in range(15) for edge in Topology(name).edges(r, members) for end in edge}
        alone = [
            member
            for member in members
            if sum(member in edge for r in range(15) for edge in Topology(name).edges(r, members))
            < 9
        ]
        assert met == set(members)
        assert not alone, name


def test_hierarchical_seldom_uses_links_between_groups() -> None:
    members = peers(16)
    groups = tuple(tuple(members[first : first + 4]) for first in range(0, 16, 4))
    topology = Topology("hierarchical", groups=groups)
    group_of = {member: number for number, group in enumerate(groups) for member in group}
    edges = [edge for round in range(12) for edge in topology.edges(round, members)]
    between = [edge for edge in edges if group_of[edge[0]] != group_of[edge[1]]]
    assert len(edges) == 8 * 8 + 4 * 2
    assert len(between) == 8


def test_alternating_exponential_ring_mixes_whole_groups_in_between() -> None:
    members = peers(8)
    topology = Topology(
        "alternating-exponential-ring", groups=(tuple(members[:4]), tuple(members[4:]))
    )
    assert len(topology.edges(0, members)) == 12
    assert len(topology.edges(1, members)) == 4
    assert validated(topology, members).contraction == pytest.approx(0, abs=1e-12)


def test_random_matchings_follow_the_seed() -> None:
    members = peers(16)
    first, again, other = (Topology("random-matching", seed=seed) for seed in (1, 1, 2))
    assert first.edges(6, members) == again.edges(6, members)
    assert first.edges(6, members) != other.edges(6, members)
    assert first.edges(6, members) != first.edges(8, members)


def test_wrong_topologies_and_edges_are_named() -> None:
    a, b = peers(2)
    with pytest.raises(SettingsError, match=r"expected one of ring, .* got 'star'"):
        Topology("star")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="once in groups"):
        Topology("hierarchical", groups=((a, b), (a,)))
    with pytest.raises(LocalProtocolError, match="two members"):
        mixing_matrix([(a, PeerId("f" * 32))], [a, b])
    with pytest.raises(LocalProtocolError, match="twice"):
        mixing_matrix([(a, b), (b, a)], [a, b])
    with pytest.raises(LocalProtocolError, match="from 0 on"):
        Topology("ring").edges(-1, [a, b])

"""The mean of all nodes outlives failing edges and nodes that come and go."""

from collections.abc import Collection, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError, SettingsError
from protocol.ids import PeerId
from protocol.mixing.topologies import (
    TOPOLOGY_NAMES,
    Edge,
    Matrix,
    Topology,
    TopologyName,
    mixing_matrix,
)
from protocol.mixing.weights import (
    contraction_of,
    edge_weights,
    shares,
    validated,
)

NAMES = st.sampled_from(TOPOLOGY_NAMES)


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"{number:032x}") for number in range(count)]


@pytest.mark.parametrize("name", TOPOLOGY_NAMES)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_every_topology_passes_the_judgement_and_says_how_much_is_left(
    name: TopologyName, count: int
) -> None:
    mixing = validated(Topology(name), peers(count))
    assert 0 <= mixing.contraction < 1
    assert str(mixing).startswith(f"{name}, {count} members: after {mixing.period} rounds at most")


def test_rounds_that_move_the_mean_are_refused() -> None:
    takes_more = np.array([[0.5, 0.5], [0.0, 1.0]])
    with pytest.raises(SettingsError, match=r"sum to 1, got round 1, off by 0.5"):
        contraction_of([np.eye(2), takes_more])
    with pytest.raises(SettingsError, match="at least 0"):
        contraction_of([np.array([[1.5, -0.5], [-0.5, 1.5]])])


def test_rounds_that_leave_members_apart_are_refused() -> None:
    a, b, c, d = peers(4)
    two_islands = mixing_matrix([(a, b), (c, d)], peers(4))
    with pytest.raises(SettingsError, match=r"2 rounds that leave 100 % .* join all members"):
        contraction_of([two_islands, two_islands])
    with pytest.raises(SettingsError, match="leave 100 %"):
        contraction_of([np.array([[0.0, 1.0], [1.0, 0.0]])])  # an exchange of places mixes nothing


def committed_matrix(
    planned: Sequence[Edge], committed: Collection[Edge], members: Collection[PeerId]
) -> Matrix:
    """[n, n] for the sorted members: all their rows. What a failed edge would have moved stays with
    both ends.
    """
    ranked = sorted(set(members))
    place = {member: index for index, member in enumerate(ranked)}
    matrix = np.zeros((len(ranked), len(ranked)))
    for member in ranked:
        for neighbour, weight in shares(member, planned, committed).items():
            matrix[place[member], place[neighbour]] = weight
    np.fill_diagonal(matrix, 1 - matrix.sum(axis=1))
    return matrix


@given(NAMES, st.integers(2, 20), st.integers(0, 99))
def test_with_every_edge_committed_the_matrix_is_the_planned_one(
    name: TopologyName, count: int, round: int
) -> None:
    edges = Topology(name).edges(round, peers(count))
    np.testing.assert_allclose(
        committed_matrix(edges, edges, peers(count)), mixing_matrix(edges, peers(count)), atol=1e-15
    )


def test_a_failed_edge_puts_its_weight_on_both_ends() -> None:
    a, b, c = peers(3)
    planned = Topology("complete").edges(0, [a, b, c])
    assert shares(a, planned, planned) == {b: 1 / 3, c: 1 / 3}
    matrix = committed_matrix(planned, [(a, c), (b, c)], [a, b, c])
    third = 1 / 3
    np.testing.assert_allclose(
        matrix, [[2 * third, 0, third], [0, 2 * third, third], [third, third, third]]
    )


def test_an_edge_that_was_not_planned_is_refused() -> None:
    a, b, c = peers(3)
    with pytest.raises(LocalProtocolError, match="edge of this round"):
        shares(a, [(a, b)], [(a, c)])
    assert edge_weights([(a, b), (b, c)]) == {(a, b): 1 / 3, (b, c): 1 / 3}


@settings(max_examples=60)
@given(NAMES, st.integers(0, 2**32 - 1))
def test_the_mean_is_kept_under_churn_and_loss(name: TopologyName, seed: int) -> None:
    chance = np.random.default_rng(seed)
    topology = Topology(name)
    everybody = peers(9)
    values = {member: chance.normal(size=5) for member in everybody}
    for round in range(40):
        present = sorted(member for member in everybody if chance.random() < 0.7)
        planned = topology.edges(round, present)
        committed = [edge for edge in planned if chance.random() < 0.5]
        matrix = committed_matrix(planned, committed, present)
        if not present:
            continue
        before = np.array([values[member] for member in present])
        after = matrix @ before
        np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0), rtol=0, atol=1e-14)
        assert np.linalg.norm(after - after.mean(axis=0)) <= (
            np.linalg.norm(before - before.mean(axis=0)) + 1e-12
        )
        values |= dict(zip(present, after, strict=True))

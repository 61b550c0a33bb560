"""Neighbours for unequal links: exact where that can be tried, near it elsewhere."""

from itertools import permutations

import numpy as np
import pytest

from protocol.mixing.topologies import TopologyName
from protocol.planner.placement import (
    ORDERED,
    Array,
    best_order,
    exact_order,
    fast_groups,
    good_order,
    order_s,
)


def costs(nodes: int, seed: int) -> Array:
    """Symmetric costs of three kinds: unrelated, in groups, and by distance in a plane."""
    random = np.random.default_rng(seed)
    if seed % 3 == 0:
        found = random.lognormal(0, 1, (nodes, nodes))
    elif seed % 3 == 1:
        group = random.integers(0, 3, nodes)
        found = np.where(group[:, None] == group, 1, 8) * random.uniform(0.8, 1.2, (nodes, nodes))
    else:
        place = random.uniform(0, 3, (nodes, 2))
        found = np.linalg.norm(place[:, None] - place, axis=2)
    found = np.maximum(found, found.T)
    np.fill_diagonal(found, 0)
    return found


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("nodes", [4, 5, 6, 7, 8])
def test_the_heuristic_is_within_5_percent_of_the_best(name: TopologyName, nodes: int) -> None:
    for seed in range(12):
        cost_s = costs(nodes, seed)
        compute_s = [0.3 * (1 + seed % 4)] * nodes
        exact = exact_order(name, cost_s, compute_s)
        good = good_order(name, cost_s, compute_s, seed)
        assert exact.exact
        assert not good.exact
        assert good.seconds <= 1.05 * exact.seconds, (seed, good, exact)
        assert good.seconds >= exact.seconds * (1 - 1e-3)


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("nodes", [4, 5, 6])
def test_the_exact_order_is_the_best_of_all(name: TopologyName, nodes: int) -> None:
    for seed in range(3):
        cost_s = costs(nodes, seed)
        compute_s = [0.5] * nodes
        least = min(order_s(name, order, cost_s, compute_s) for order in permutations(range(nodes)))
        assert exact_order(name, cost_s, compute_s).seconds == pytest.approx(least, rel=1e-3)


def test_a_ring_keeps_to_cheap_links() -> None:
    cost_s = np.full((8, 8), 9.0)
    ring = [0, 3, 6, 1, 4, 7, 2, 5]
    for first, second in zip(ring, [*ring[1:], ring[0]], strict=True):
        cost_s[first, second] = cost_s[second, first] = 1.0
    np.fill_diagonal(cost_s, 0)
    found = best_order("ring", cost_s, [0.5] * 8)
    assert found.exact
    assert found.seconds == pytest.approx(1.0)
    assert order_s("ring", range(8), cost_s, [0.5] * 8) == pytest.approx(9.0)


def test_beyond_eight_nodes_a_good_order_is_found_and_is_the_same_again() -> None:
    cost_s = costs(20, 3)
    compute_s = [0.2] * 20
    found = best_order("ring", cost_s, compute_s, 1)
    assert not found.exact
    assert sorted(found.order) == list(range(20))
    assert found.seconds < 0.6 * order_s("ring", range(20), cost_s, compute_s)
    assert best_order("ring", cost_s, compute_s, 1) == found


def test_groups_are_nodes_with_cheap_links_among_them() -> None:
    group = np.array([0, 1, 0, 2, 1, 2, 0])
    cost_s = np.where(group[:, None] == group, 1.0, 5.0)
    np.fill_diagonal(cost_s, 0)
    assert fast_groups(cost_s) == ((0, 2, 6), (1, 4), (3, 5))
    assert fast_groups(np.ones((5, 5)) - np.eye(5)) == ((0, 1, 2, 3, 4),)
    assert fast_groups(np.zeros((1, 1))) == ((0,),)

"""Nodes with fast links among them are groups."""

import numpy as np

from protocol.planner.groups import fast_groups


def test_groups_are_nodes_with_cheap_links_among_them() -> None:
    group = np.array([0, 1, 0, 2, 1, 2, 0])
    cost_s = np.where(group[:, None] == group, 1.0, 5.0)
    np.fill_diagonal(cost_s, 0)
    assert fast_groups(cost_s) == ((0, 2, 6), (1, 4), (3, 5))
    assert fast_groups(np.ones((5, 5)) - np.eye(5)) == ((0, 1, 2, 3, 4),)
    assert fast_groups(np.zeros((1, 1))) == ((0,),)

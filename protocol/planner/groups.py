"""Groups of nodes with fast links among them, for the hierarchical topologies of gossip Adam.

Nodes are merged by the mean cost between their groups, the nearest first, and the merging stops at
the largest jump of the cost.
"""

from itertools import pairwise
from typing import Final

import numpy as np

from protocol.planner.links import Matrix

JUMP: Final = 1.5
"""Groups are groups if links between them cost this many times as much as those within."""


def fast_groups(cost_s: Matrix) -> tuple[tuple[int, ...], ...]:
    """Groups of nodes with cheap links among them, or one group of all if no costs stand out."""
    groups: list[list[int]] = [[node] for node in range(len(cost_s))]
    total = cost_s.copy()  # [groups, groups]: sum of the costs between two groups
    merged: list[tuple[float, list[list[int]]]] = []
    while len(groups) > 1:
        sizes = np.array([len(group) for group in groups], float)
        mean = total / np.outer(sizes, sizes)
        mean[np.tril_indices(len(groups))] = np.inf
        first, second = (int(place) for place in np.unravel_index(mean.argmin(), mean.shape))
        merged.append((float(mean[first, second]), [list(group) for group in groups]))
        total[first] += total[second]
        total[:, first] += total[:, second]
        total = np.delete(np.delete(total, second, axis=0), second, axis=1)
        groups[first] += groups.pop(second)
    jumps = [
        (after / before if before else np.inf, state)
        for (before, _), (after, state) in pairwise(merged)
        if after > 0
    ]
    jump, state = max(jumps, key=lambda found: found[0], default=(0.0, groups))
    chosen = state if jump >= JUMP else groups
    return tuple(sorted(tuple(sorted(group)) for group in chosen))

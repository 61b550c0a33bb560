"""Weights of a round's edges, with edges that fail, and topologies judged before they are used.

The weight of an edge is that of the graph as planned, also in a round in which other edges fail, so
a node needs to know only of its own edges whether they hold. An edge holds for both ends or for
none: if one fails, each end keeps its weight to itself. The matrix stays symmetric and doubly
stochastic whichever edges fail, and the mean of all nodes stays as it was.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from protocol.errors import LocalProtocolError, SettingsError
from protocol.ids import PeerId
from protocol.mixing.topologies import Edge, Matrix, Topology, mixing_matrix

STOCHASTIC_ERROR_MAX: Final = 1e-9
"""Largest difference of a row's or a column's sum from one that is rounding."""

CONTRACTION_MAX: Final = 1 - 1e-9
"""Largest contraction factor of a topology that mixes at all."""


@dataclass(frozen=True, slots=True)
class Mixing:
    """A topology for some members that has been judged."""

    topology: Topology
    members: int

    period: int
    """Rounds after which every member's values have reached all others."""

    contraction: float
    """Part of the distance to the mean that is left after one period, at worst."""

    def __str__(self) -> str:
        return (
            f"{self.topology.name}, {self.members} members: after {self.period} rounds at most "
            f"{100 * self.contraction:.3g} % of the distance to the mean is left"
        )


def validated(topology: Topology, members: Collection[PeerId]) -> Mixing:
    """Judge a topology once, before a run: every round of a period is doubly stochastic and the
    period contracts. `SettingsError` if not.
    """
    period = topology.period(members)
    rounds = [mixing_matrix(topology.edges(round, members), members) for round in range(period)]
    return Mixing(topology, len(set(members)), period, contraction_of(rounds))


def contraction_of(matrices: Sequence[Matrix]) -> float:
    """Part of the distance to the mean that the product of these rounds leaves, at worst.

    matrices: [n, n] each, the first round first. `SettingsError` for a round that is not doubly
    stochastic, which would move the mean, and for a product that does not contract.
    """
    product = np.eye(len(matrices[0]))
    for round, matrix in enumerate(matrices):
        sums = np.concatenate([matrix.sum(axis=0), matrix.sum(axis=1)])
        worst = float(np.abs(sums - 1).max())
        if worst > STOCHASTIC_ERROR_MAX or (matrix < 0).any():
            raise SettingsError(
                f"topology: expected weights of at least 0 whose rows and columns sum to 1, got "
                f"round {round}, off by {worst:g}; it would move the mean"
            )
        product = matrix @ product
    if len(product) == 1:
        return 0.0
    left = float(np.linalg.norm(product - 1 / len(product), ord=2))
    if left > CONTRACTION_MAX:
        raise SettingsError(
            f"topology: expected rounds that bring all members together, got {len(matrices)} "
            f"rounds that leave {100 * left:.3g} % of a distance; join all members by edges"
        )
    return left


def edge_weights(edges: Iterable[Edge]) -> dict[Edge, float]:
    """The weight of each edge of a graph: 1 / (1 + the larger number of edges of its two ends)."""
    return {edge: 1 / divisor for edge, divisor in edge_divisors(edges).items()}


def edge_divisors(edges: Iterable[Edge]) -> dict[Edge, int]:
    """The number of which each edge's weight is the reciprocal."""
    listed = list(edges)
    degree: dict[PeerId, int] = {}
    for edge in listed:
        for end in edge:
            degree[end] = degree.get(end, 0) + 1
    return {edge: 1 + max(degree[edge[0]], degree[edge[1]]) for edge in listed}


def shares(
    member: PeerId, planned: Iterable[Edge], committed: Collection[Edge]
) -> dict[PeerId, float]:
    """A member's row of the matrix: how much of each neighbour's parameters it takes. The rest, up
    to 1, is its own. `LocalProtocolError` for a committed edge that was not planned.
    """
    weights = edge_weights(planned)
    row: dict[PeerId, float] = {}
    for edge in committed:
        if edge not in weights:
            raise LocalProtocolError(f"expected an edge of this round, got {edge[0]}-{edge[1]}")
        if member in edge:
            row[edge[1] if edge[0] == member else edge[0]] = weights[edge]
    return row

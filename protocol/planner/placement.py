"""Which nodes should be neighbours: the order of ranks that makes a round of gossip shortest.

The length of a round follows from the max-plus recurrence of `timing`, without jitter: the links of
the whole circle count, and a slow link hurts less if its nodes have time to spare in the rounds
between. Up to `EXACT_NODES` nodes every order is tried. Beyond, orders are improved by exchanging
two nodes and by turning a piece around, from several starts, as 2-opt does for a salesman's tour;
tests hold it within 5 % of the exact one where that can be computed.

Groups for the hierarchical topologies are found apart from that: nodes are merged by the mean cost
between their groups, the nearest first, and the merging stops at the largest jump of the cost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.ids import PeerId
from protocol.mixing.topologies import Topology, TopologyName

Array = npt.NDArray[np.float64]
Orders = npt.NDArray[np.int64]

EXACT_NODES: Final = 8
"""Nodes for which all orders are tried: 7! = 5040 if the first one may stay where it is."""

ORDERED: Final[tuple[TopologyName, ...]] = ("ring", "one-peer-exponential")
"""Topologies of one partner a round, whose neighbours follow from the order of ranks."""

CYCLE_MAX: Final = 32
"""Different graphs of a topology that are followed: enough for every rank to have been the one
without a partner, up to `EXACT_NODES` nodes."""

ROUNDS_MIN: Final = 48
"""Rounds that are followed to settle, and again to measure, at least: up to `EXACT_NODES` nodes."""

ROUNDS_MIN_BEYOND: Final = 12
"""The same for more nodes, where many more orders are looked at."""

STARTS: Final = 6
"""Orders from which the heuristic begins: nearest neighbours from several nodes, and drawn ones."""

STARTS_MANY: Final = 2
"""The same for more than `MANY` nodes."""

MANY: Final = 16
"""Nodes from which on a search of a few seconds has to do with less."""

CANDIDATES_MAX: Final = 300
"""Changes of an order that one step of the heuristic looks at; more are drawn."""

STEPS_MAX: Final = 150
"""Changes that one start takes at most."""

JUMP: Final = 1.5
"""Groups are groups if links between them cost this many times as much as those within."""

TIE: Final = 1e-6
"""Weight of the mean cost of all links beside the round: decides between equal rounds."""


@dataclass(frozen=True, slots=True)
class Placement:
    """An order of nodes and what it gives."""

    order: tuple[int, ...]
    seconds: float
    """Length of a round."""
    exact: bool
    """Whether no order is better."""


def best_order(
    name: TopologyName, cost_s: Array, compute_s: Sequence[float], seed: int = 0
) -> Placement:
    """The order with the shortest round; `cost_s` [n, n] symmetric, `compute_s` by node."""
    if len(cost_s) <= EXACT_NODES:
        return exact_order(name, cost_s, compute_s)
    return good_order(name, cost_s, compute_s, seed)


def exact_order(name: TopologyName, cost_s: Array, compute_s: Sequence[float]) -> Placement:
    """The best of all orders. The first node keeps its rank where a circle may be turned (ring) or
    ranks renumbered by XOR (a power of two) without changing the round.
    """
    nodes = len(cost_s)
    symmetric = nodes & (nodes - 1) == 0 or name == "ring"
    rest = range(1, nodes) if symmetric else range(nodes)
    orders = np.array([(0, *order) if symmetric else order for order in permutations(rest)])
    orders = orders.reshape(-1, nodes)
    score = _scores(name, orders, cost_s, compute_s)
    return _placement(name, orders[int(score.argmin())], cost_s, compute_s, exact=True)


def good_order(
    name: TopologyName, cost_s: Array, compute_s: Sequence[float], seed: int = 0
) -> Placement:
    """A good order, found by improving several."""
    random = np.random.default_rng(seed)
    best: tuple[float, Orders] | None = None
    for start in _starts(cost_s, random):
        order = start
        score = float(_scores(name, order[None], cost_s, compute_s)[0])
        for _ in range(STEPS_MAX):
            changed = _changes(order, random)
            scores = _scores(name, changed, cost_s, compute_s)
            least = int(scores.argmin())
            if scores[least] >= score * (1 - 1e-12):
                break
            order, score = changed[least], float(scores[least])
        if best is None or score < best[0]:
            best = score, order
    order = best[1] if best else np.arange(len(cost_s))
    return _placement(name, order, cost_s, compute_s, exact=False)


def order_s(
    name: TopologyName, order: Sequence[int], cost_s: Array, compute_s: Sequence[float]
) -> float:
    """The length of a round in this order."""
    return float(_rounds(name, np.array([order]), cost_s, compute_s)[0])


def fast_groups(cost_s: Array) -> tuple[tuple[int, ...], ...]:
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


def _placement(
    name: TopologyName, order: Orders, cost_s: Array, compute_s: Sequence[float], *, exact: bool
) -> Placement:
    ranks = tuple(int(node) for node in order)
    return Placement(ranks, order_s(name, ranks, cost_s, compute_s), exact)


def _scores(name: TopologyName, orders: Orders, cost_s: Array, compute_s: Sequence[float]) -> Array:
    """Length of a round of each order, equal ones by the mean cost of their links."""
    partner = _partners(name, orders.shape[1])
    links = np.mean(
        [cost_s[orders, np.take(orders, now, axis=1)].mean(axis=1) for now in partner], axis=0
    )
    scores: Array = _rounds(name, orders, cost_s, compute_s) + TIE * links
    return scores


def _rounds(name: TopologyName, orders: Orders, cost_s: Array, compute_s: Sequence[float]) -> Array:
    """[orders]: length of a round in the long run."""
    compute = np.asarray(compute_s, float)[orders]
    partner = _partners(name, orders.shape[1])
    cost = [cost_s[orders, np.take(orders, now, axis=1)] for now in partner]
    start = np.zeros(orders.shape)
    half = start
    least = ROUNDS_MIN if orders.shape[1] <= EXACT_NODES else ROUNDS_MIN_BEYOND
    passes = -(-least // len(partner))
    for turn in range(2 * passes):
        if turn == passes:
            half = start
        for now, seconds in zip(partner, cost, strict=True):
            both = np.maximum(start, np.take(start, now, axis=1)) + seconds
            start = np.maximum(start + compute, both)
    lengths: Array = (start - half).mean(axis=1) / (passes * len(partner))
    return lengths


def _partners(name: TopologyName, nodes: int) -> list[Orders]:
    """[nodes] for each round until the graphs repeat, `CYCLE_MAX` at most: rank of the partner of
    each rank, or its own.
    """
    topology = Topology(name)
    peers = [PeerId(f"{node:032x}") for node in range(nodes)]
    place = {peer: rank for rank, peer in enumerate(peers)}
    found = []
    whole = {"ring": nodes & 1, "one-peer-exponential": nodes & (nodes - 1)}
    cycle = topology.period(peers) * (nodes if whole.get(name) else 1)
    for round in range(min(cycle, CYCLE_MAX)):
        partner = np.arange(nodes)
        for first, second in topology.edges(round, peers):
            partner[place[first]], partner[place[second]] = place[second], place[first]
        found.append(partner)
    return found


def _starts(cost_s: Array, random: np.random.Generator) -> Iterator[Orders]:
    nodes = len(cost_s)
    yield np.arange(nodes)
    near = (STARTS if nodes <= MANY else STARTS_MANY) // 2
    for first in random.permutation(nodes)[:near]:
        yield _nearest(cost_s, int(first))
    for _ in range(near - 1):
        yield random.permutation(nodes)


def _nearest(cost_s: Array, first: int) -> Orders:
    """From a node always to the cheapest one that is left."""
    order, left = [first], set(range(len(cost_s))) - {first}
    while left:
        order.append(min(left, key=lambda node: (cost_s[order[-1], node], node)))
        left.remove(order[-1])
    return np.array(order)


def _changes(order: Orders, random: np.random.Generator) -> Orders:
    """Orders with two nodes exchanged, or with a piece turned around."""
    places = np.array(list(combinations(range(len(order)), 2)))
    if 2 * len(places) > CANDIDATES_MAX:
        places = places[random.permutation(len(places))[: CANDIDATES_MAX // 2]]
    swapped = np.tile(order, (len(places), 1))
    rows = np.arange(len(places))
    swapped[rows, places[:, 0]] = order[places[:, 1]]
    swapped[rows, places[:, 1]] = order[places[:, 0]]
    turned = np.tile(order, (len(places), 1))
    for row, (low, high) in enumerate(places):
        turned[row, low : high + 1] = order[low : high + 1][::-1]
    return np.concatenate([swapped, turned])

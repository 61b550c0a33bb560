"""Topologies: which members exchange parameters in a round, as data that every party derives alike.

The graph of a round is a pure function of (topology, round, members). Members are sorted, so their
order on arrival does not matter, and the graph follows whoever is there. A member's *rank* is its
place in that order.

    ring                           ranks in a circle: 0-1 2-3 4-5, then 1-2 3-4 5-0
    one-peer-exponential           rank XOR 1, then 2, 4, ...: the mean after log2(N) rounds if N is
                                   a power of two; ranks without a partner pair up in order
    alternating-exponential-ring   all of a fast group, then one-peer-exponential between groups
    hierarchical                   pairs within fast groups, and seldom one pair between two groups
    complete                       everybody with everybody
    random-matching                a circle drawn anew every two rounds, taken in two halves

An edge joins two members that both send and both receive. The weights of a set of edges are
Metropolis weights, 1 / (1 + the larger number of edges of the two ends), and what remains stays
with the member itself (Xiao, Boyd, "Fast linear iterations for distributed averaging", 2004). Such
a matrix is symmetric and doubly stochastic for *any* set of edges, so an edge that fails for both
ends leaves the mean unchanged. Over `period` rounds the edges of a topology connect all members and
each member keeps a share of its own, so the product of the matrices contracts towards the mean.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from protocol.errors import LocalProtocolError, SettingsError
from protocol.ids import PeerId
from protocol.sections.algorithm import TopologyName

__all__ = [
    "DEFAULT_GROUP",
    "TOPOLOGY_NAMES",
    "Edge",
    "Matrix",
    "Topology",
    "TopologyName",
    "mixing_matrix",
]

TOPOLOGY_NAMES: Final[tuple[TopologyName, ...]] = get_args(TopologyName)
"""Names of all topologies."""

DEFAULT_GROUP: Final = 2
"""Members of a group where no groups were measured: neighbours in the order."""

Edge = tuple[PeerId, PeerId]
"""Two members that mix with each other, the smaller id first."""

Matrix = npt.NDArray[np.float64]

Pair = tuple[int, int]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Topology:
    """A rule for the graph of every round; `SettingsError` for a name that is none, or for a member
    that stands twice in `groups`.
    """

    name: TopologyName

    groups: tuple[tuple[PeerId, ...], ...] = ()
    """Members with fast links among them. One that is in no group joins the smallest. Empty:
    consecutive ranks, `DEFAULT_GROUP` each."""

    seed: int = 0
    """Seed of random matchings."""

    def __post_init__(self) -> None:
        if self.name not in TOPOLOGY_NAMES:
            raise SettingsError(
                f"topology: expected one of {', '.join(TOPOLOGY_NAMES)}, got {self.name!r}"
            )
        grouped = [member for group in self.groups for member in group]
        if len(grouped) != len(set(grouped)):
            twice = next(member for member in grouped if grouped.count(member) > 1)
            raise SettingsError(f"topology: expected each member once in groups, got {twice!r}")

    def edges(self, round: int, members: Iterable[PeerId]) -> tuple[Edge, ...]:
        """The edges of a round, sorted; none for fewer than two members."""
        if round < 0:
            raise LocalProtocolError(f"expected a round from 0 on, got {round}")
        ranked = self.ranked(members)
        if len(ranked) < 2:
            return ()
        return tuple(
            sorted(
                (first, second) if first < second else (second, first)
                for first, second in self._joined(round, ranked)
            )
        )

    def period(self, members: Iterable[PeerId]) -> int:
        """Rounds after which all members are connected: the product over rounds n * period to
        (n + 1) * period - 1 contracts for every n.
        """
        ranked = self.ranked(members)
        match self.name:
            case "complete":
                return 1
            case "ring" | "random-matching":
                return 2
            case "one-peer-exponential":
                return _bits(len(ranked))
            case "alternating-exponential-ring":
                return 2 * _bits(len(self.groups_of(ranked)))
            case "hierarchical":
                groups = self.groups_of(ranked)
                return _cycle(groups) * (_bits(len(groups)) if len(groups) > 1 else 1)

    def ranked(self, members: Iterable[PeerId]) -> list[PeerId]:
        """The members in the order of their ranks."""
        return sorted(set(members))

    def groups_of(self, ranked: Sequence[PeerId]) -> list[list[PeerId]]:
        """The groups of these members, each in the order of ranks; groups without members left
        out.
        """
        if not self.groups:
            return [
                list(ranked[first : first + DEFAULT_GROUP])
                for first in range(0, len(ranked), DEFAULT_GROUP)
            ]
        rank = {member: place for place, member in enumerate(ranked)}
        groups = [[member for member in group if member in rank] for group in self.groups]
        groups = [group for group in groups if group] or [[]]
        known = {member for group in groups for member in group}
        for member in ranked:
            if member not in known:
                min(groups, key=len).append(member)
        return [sorted(group, key=rank.__getitem__) for group in groups]

    def _joined(self, round: int, ranked: list[PeerId]) -> Iterator[Edge]:
        match self.name:
            case "ring":
                yield from _picked(ranked, _circle(len(ranked), round))
            case "one-peer-exponential":
                yield from _picked(ranked, _exponential(len(ranked), round))
            case "alternating-exponential-ring":
                yield from self._alternating(round, ranked)
            case "hierarchical":
                yield from self._hierarchical(round, ranked)
            case "complete":
                yield from _picked(ranked, _complete(len(ranked)))
            case "random-matching":
                drawn = sorted(ranked, key=lambda member: self._draw(round // 2, member))
                yield from _picked(drawn, _circle(len(drawn), round % 2))

    def _alternating(self, round: int, ranked: list[PeerId]) -> Iterator[Edge]:
        groups = self.groups_of(ranked)
        if round % 2 == 0 or len(groups) == 1:
            for group in groups:
                yield from _picked(group, _complete(len(group)))
            return
        turn = round // 2
        for first, second in _picked(groups, _exponential(len(groups), turn)):
            for place in range(min(len(first), len(second))):
                yield first[(place + turn) % len(first)], second[(place + turn) % len(second)]

    def _hierarchical(self, round: int, ranked: list[PeerId]) -> Iterator[Edge]:
        groups = self.groups_of(ranked)
        cycle = _cycle(groups)
        turn, phase = divmod(round, cycle)
        if phase < cycle - 1 or len(groups) == 1:
            for group in groups:  # each runs through whole passes, however many bits others have
                bits = _bits(len(group))
                yield from _picked(group, _exponential(len(group), turn * bits + phase % bits))
            return
        for first, second in _picked(groups, _exponential(len(groups), turn)):
            yield first[turn % len(first)], second[turn % len(second)]

    def _draw(self, turn: int, member: PeerId) -> bytes:
        return hashlib.sha256(f"{self.seed}:{turn}:{member}".encode()).digest()


def mixing_matrix(edges: Iterable[Edge], members: Collection[PeerId]) -> Matrix:
    """[n, n] for the sorted members: row i says how much of each member's parameters member i has
    after mixing. `LocalProtocolError` for an edge that is no pair of members, or that comes twice.
    """
    place = {member: index for index, member in enumerate(sorted(set(members)))}
    pairs: set[Pair] = set()
    for first, second in edges:
        if first == second or first not in place or second not in place:
            raise LocalProtocolError(f"expected an edge of two members, got {first}-{second}")
        pair = tuple(sorted((place[first], place[second])))
        if pair in pairs:
            raise LocalProtocolError(f"expected each edge once, got {first}-{second} twice")
        pairs.add((pair[0], pair[1]))
    degree = np.bincount([end for pair in pairs for end in pair], minlength=len(place))
    matrix = np.zeros((len(place), len(place)))
    for first_place, second_place in pairs:
        weight = 1 / (1 + max(degree[first_place], degree[second_place]))
        matrix[first_place, second_place] = matrix[second_place, first_place] = weight
    np.fill_diagonal(matrix, 1 - matrix.sum(axis=1))
    return matrix


def _bits(count: int) -> int:
    """Rounds of one-peer-exponential that connect `count` ranks, at least 1."""
    return max(1, (count - 1).bit_length())


def _cycle(groups: Sequence[Sequence[PeerId]]) -> int:
    """Rounds of `hierarchical` until groups mix with each other again: enough to connect every
    group, and one between groups.
    """
    return max(_bits(len(group)) for group in groups) + (len(groups) > 1)


def _picked(items: Sequence[Item], pairs: Iterable[Pair]) -> Iterator[tuple[Item, Item]]:
    return ((items[first], items[second]) for first, second in pairs)


def _complete(count: int) -> Iterator[Pair]:
    return ((first, second) for first in range(count) for second in range(first + 1, count))


def _circle(count: int, round: int) -> Iterator[Pair]:
    """Every second edge of a circle. With an odd count one rank is left over, a different one each
    round.
    """
    start = round % max(1, count)
    return (((start + step) % count, (start + step + 1) % count) for step in range(0, count - 1, 2))


def _exponential(count: int, round: int) -> Iterator[Pair]:
    """Rank XOR 2**b for b = 0, 1, ... by turns. Ranks whose partner does not exist pair up in
    order. Each pass renumbers the ranks by one, so that no rank is always the one without a
    partner; a pass is the same as the one before it except for names.
    """
    passes, bit = divmod(round, _bits(count))
    shift = passes if count & (count - 1) else 0
    found = [(rank, rank ^ (1 << bit)) for rank in range(count) if not rank >> bit & 1]
    pairs = [(first, second) for first, second in found if second < count]
    joined = {rank for pair in pairs for rank in pair}
    alone = [rank for rank in range(count) if rank not in joined]
    pairs += zip(alone[::2], alone[1::2], strict=False)
    return (((first + shift) % count, (second + shift) % count) for first, second in pairs)

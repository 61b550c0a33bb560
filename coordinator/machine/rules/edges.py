"""Rounds in which nodes mix parameters: whose payload each member fetches, and which edges hold.

    opened                      announced, held                    decided
    edges are planned --------> each end holds the other's ------> committed: both ends mix, or none

Rules
- The graph of a round follows from its number, the members whose payloads count, and the run
  file.
- An edge is committed when both ends have said that they hold each other's parameters: each has
  them on its disk, so each can mix them whatever happens to it. The others fail for both ends, and
  the mean of all members stays as it was.
- In a round of the mean every member fetches all payloads. Those whose authors hold each other's
  are committed, and everybody takes their mean: it is the same for all, to the bit.
- A round is decided as soon as every edge holds between members that are waited for.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import combinations

from coordinator.machine.events.inputs import Announced
from coordinator.machine.state.consensus import Consensus
from coordinator.machine.state.membership import Membership
from coordinator.machine.state.undecided_round import UndecidedRound
from protocol.clock import Slot, longest_slot
from protocol.codec.commits import Mix
from protocol.ids import Digest, PeerId
from protocol.mixing.measured_links import Groups
from protocol.mixing.topologies import Edge, Topology
from protocol.mixing.weights import edge_divisors
from protocol.runfile import RunSpec


def planned(
    spec: RunSpec, round: int, workers: Iterable[PeerId], groups: Groups = (), *, mean: bool
) -> tuple[Edge, ...]:
    """The edges of a round among its workers whose payloads count, sorted."""
    if mean:
        return tuple(combinations(sorted(workers), 2))
    name = spec.algorithm.mixing.topology
    return Topology(name, groups=groups, seed=spec.seed).edges(round, workers)


def plan(
    undecided: UndecidedRound, spec: RunSpec, consensus: Consensus, members: Membership
) -> None:
    """Give the round that was just opened its edges, and each member its neighbours."""
    asked = undecided.assignments
    counted = [peer for peer, each in asked.items() if not each.muted]
    if spec.algorithm.mixing.grouped:
        consensus.find_groups(undecided.round, [members.roster[peer] for peer in counted], spec)
    edges = planned(spec, undecided.round, counted, consensus.groups, mean=undecided.mean)
    near: dict[PeerId, list[PeerId]] = {peer: [] for peer in asked}
    for first, second in edges:
        near[first].append(second)
        near[second].append(first)
    undecided.edges = edges
    undecided.assignments = {
        peer: replace(each, neighbours=tuple(sorted(near[peer]))) for peer, each in asked.items()
    }


def holds(undecided: UndecidedRound, edge: Edge) -> bool:
    """Whether both ends hold each other's payload."""
    return all(_has(undecided, end, other) for end, other in (edge, edge[::-1]))


def note(
    undecided: UndecidedRound, peer: PeerId, now_ms: int, named: Iterable[Digest] | None = None
) -> None:
    """A member has announced, or holds the payloads `named`: note which of its edges hold now."""
    asked = undecided.assignments.get(peer)
    near = asked.neighbours if asked else ()
    if named is not None:
        authors = {author for each in named for author in undecided.receipts.authors.get(each, ())}
        near = tuple(author for author in near if author in authors)
    for other in near:
        edge = (peer, other) if peer < other else (other, peer)
        place = bisect_left(undecided.edges, edge)
        if place not in undecided.edge_ms and holds(undecided, edge):
            undecided.edge_ms[place] = now_ms


def waits(undecided: UndecidedRound, awaited: Callable[[PeerId], bool]) -> bool:
    """Whether an edge may still come to hold between members that rounds wait for."""
    said = [peer for peer, each in undecided.announced.items() if each.digest]
    if undecided.mean and all(map(awaited, said)):  # the same, at a cost that many members permit
        return len(undecided.edge_ms) < len(said) * (len(said) - 1) // 2
    return any(
        place not in undecided.edge_ms and _both(undecided, edge) and all(map(awaited, edge))
        for place, edge in enumerate(undecided.edges)
    )


def needed_ms(undecided: UndecidedRound, now_ms: int) -> list[int]:
    """The time that each edge needed, at least, from its ends' announcements on, ascending."""
    at_ms = undecided.announced_ms
    return sorted(
        undecided.edge_ms.get(place, now_ms) - max(at_ms[first], at_ms[second])
        for place, (first, second) in enumerate(undecided.edges)
        if _both(undecided, (first, second))
    )


def slowest_edge_ms(undecided: UndecidedRound, peer: PeerId) -> int | None:
    """The time that the slowest edge of a member needed from its ends' announcements on; None if
    none of them holds.
    """
    at_ms, edges = undecided.announced_ms, undecided.edges
    return max(
        (
            held_ms - max(at_ms[end] for end in edges[place])
            for place, held_ms in undecided.edge_ms.items()
            if peer in edges[place]
        ),
        default=None,
    )


def slot(spec: RunSpec, pace: Slot, *, mean: bool) -> Slot:
    """The slot of a round: in one of the mean, which sends many times more, as long for the
    exchange as the run file permits. It closes early all the same.
    """
    if not mean:
        return pace
    longest = longest_slot(spec.rounds)
    return replace(longest, compute_ms=pace.compute_ms)


def commit(undecided: UndecidedRound, counted: list[Announced], consensus: Consensus) -> Mix:
    """Commit the edges of a round among these payloads, sorted by author. Returns what the commit
    says of them.
    """
    consensus.begin(undecided.round, mean=undecided.mean)
    if undecided.mean:
        return Mix(mean=True)
    place = {payload.peer: number for number, payload in enumerate(counted)}
    divisors = edge_divisors(undecided.edges)
    held = [edge for edge in undecided.edges if _is_committed(undecided, edge, place)]
    edges = sorted((place[first], place[second], divisors[first, second]) for first, second in held)
    return Mix(mean=False, edges=tuple(edges))


def whole(undecided: UndecidedRound, available: list[Announced]) -> list[Announced]:
    """The payloads of which a mean is made, among those that are available."""
    authors = {payload.peer for payload in available}
    held = {edge for edge in undecided.edges if _is_committed(undecided, edge, authors)}
    left = _clique(authors, held)
    return [payload for payload in available if payload.peer in left]


def _both(undecided: UndecidedRound, edge: Edge) -> bool:
    """Whether both ends have announced a payload."""
    said = undecided.announced
    return all(end in said and bool(said[end].digest) for end in edge)


def _has(undecided: UndecidedRound, holder: PeerId, author: PeerId) -> bool:
    said = undecided.announced.get(author)
    if said is None or not said.digest:
        return False
    return holder in undecided.receipts.holding(Digest(said.digest))


def _is_committed(undecided: UndecidedRound, edge: Edge, authors: Collection[PeerId]) -> bool:
    return edge[0] in authors and edge[1] in authors and holds(undecided, edge)


def _clique(authors: set[PeerId], held: set[Edge]) -> set[PeerId]:
    """Members of which each pair holds an edge; the author that lacks most goes, one by one."""
    left, edges = set(authors), set(held)
    while len(edges) < len(left) * (len(left) - 1) // 2:
        degree = Counter(peer for edge in edges for peer in edge)
        gone = min(sorted(left), key=lambda peer: degree[peer])
        left.discard(gone)
        edges = {edge for edge in edges if gone not in edge}
    return left

"""Rounds in which nodes mix parameters: whose payload each member fetches, which edges hold, and
how far the members are apart.

    opened                      announced, held                    decided
    edges are planned --------> each end holds the other's ------> committed: both ends mix, or none

Rules
- The graph of a round follows from its number, the members whose payloads count, and the run
  file.
- An edge is committed when both ends have said that they hold each other's parameters: each has
  them on its disk, so each can mix them whatever happens to it. The others fail for both ends, and
  the mean of all members stays as it was.
- Where the topology has groups they are those of fast links, as the members measure them, from the
  first round by which all have. They are found anew every `GROUP_ROUNDS` rounds: a graph has to
  last for its period, so that everybody's parameters reach all others.
- In a round of the mean every member fetches all payloads. Those whose authors hold each other's
  are committed, and everybody takes their mean: it is the same for all, to the bit.
- A round is decided as soon as every edge holds between members that are waited for.
- Past a critical distance from each other, in updates, the members only mix in the next round.
- Members report a projection of their parameters in place of a digest: nodes differ by design, and
  nobody is blamed for it.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from coordinator.machine.events import Announced, Applied, Effect, Ready, RecordDigest
from coordinator.machine.members.member import Member
from coordinator.machine.members.membership import Membership
from coordinator.machine.undecided_round import UndecidedRound
from protocol.clock import Slot, longest_slot
from protocol.codec.commits import Mix
from protocol.errors import SettingsError
from protocol.ids import Digest, PeerId
from protocol.mixing.consensus import distance, should_only_mix
from protocol.mixing.measured_links import Groups, groups_of, matrix_of
from protocol.mixing.weights import edge_divisors
from protocol.planner.parameters import size_of
from protocol.planner.payload_bytes import payload_bytes
from protocol.runfile import RunSpec
from protocol.topologies import Edge, Topology

ROUNDS_KEPT = 2
"""Rounds whose reports are kept: the newest, and the one before it, of which all have reported."""

GROUP_ROUNDS = 64
"""Rounds for which groups of fast links stay: longer than the period of a graph of 256 members."""


# ---- a round


def planned(
    spec: RunSpec, round: int, workers: Iterable[PeerId], groups: Groups = (), *, mean: bool
) -> tuple[Edge, ...]:
    """The edges of a round among its workers whose payloads count, sorted."""
    if mean:
        return tuple(combinations(sorted(workers), 2))
    name = spec.algorithm.mixing.topology
    return Topology(name, groups=groups, seed=spec.seed).edges(round, workers)


def with_edges(
    undecided: UndecidedRound, spec: RunSpec, consensus: "Consensus", members: Membership
) -> UndecidedRound:
    """The round that was just opened, with its edges and each member's neighbours."""
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
    return undecided


def spreads(spec: RunSpec, *, mean: bool) -> bool:
    """Whether all members fetch all payloads of the round."""
    return mean or spec.algorithm.mixing.topology == "complete"


def holds(undecided: UndecidedRound, edge: Edge) -> bool:
    """Whether both ends hold each other's payload."""
    return all(_has(undecided, end, other) for end, other in (edge, edge[::-1]))


def note_edges(
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


def commit(undecided: UndecidedRound, counted: list[Announced], consensus: "Consensus") -> Mix:
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
    """Members of which each pair holds an edge: whoever lacks most goes, one after the other."""
    left, edges = set(authors), set(held)
    while len(edges) < len(left) * (len(left) - 1) // 2:
        degree = Counter(peer for edge in edges for peer in edge)
        gone = min(sorted(left), key=lambda peer: degree[peer])
        left.discard(gone)
        edges = {edge for edge in edges if gone not in edge}
    return left


# ---- the distance


@dataclass(slots=True)
class Consensus:
    """The newest reports of the members: projections of their parameters, by round."""

    reports: dict[int, dict[PeerId, tuple[float, ...]]] = field(default_factory=dict)
    updates: dict[PeerId, float] = field(default_factory=dict)
    """Euclidean sizes of the members' newest steps."""
    only_mixed: int = 0
    """Rounds in which members only mixed, because they were too far apart."""
    mixed_round: int = -1
    """The newest of these."""
    tries: int = 0
    """Last means of a run that its operator ends that were opened and have not been committed."""
    apart: bool = False
    """Whether members differ by design after the newest commit."""
    mean_round: int = -1
    """Newest round of the mean, after which all are equal."""
    digests: dict[PeerId, int] = field(default_factory=dict)
    """State digests that members reported after it."""
    snapshots: dict[PeerId, bytes] = field(default_factory=dict)
    """SHA-256 of the snapshots of it that they wrote."""

    groups: Groups = ()
    """Members with fast links among them, where the topology asks for groups."""
    groups_round: int = -1
    """Round before which they were found; -1 before all have measured their links."""

    def find_groups(self, round: int, members: list[Member], spec: RunSpec) -> None:
        """Find the groups of these members anew, if it is time and each has a measured link."""
        if self.groups_round >= 0 and round < self.groups_round + GROUP_ROUNDS:
            return
        said = {member.peer: member.work.links for member in members}
        if not matrix_of(said, sorted(said)).covers_all:
            return
        up_bit_s = {member.peer: float(member.work.up_bit_s) for member in members}
        self.groups, self.groups_round = groups_of(said, up_bit_s, _content_bytes(spec)), round

    def begin(self, round: int, *, mean: bool) -> None:
        """A round was committed."""
        self.apart = not mean
        if mean:
            self.tries = 0
            self.mean_round, self.digests, self.snapshots = round, {}, {}

    def report(self, said: Applied | Ready, members: Membership, now_ms: int) -> list[Effect]:
        """Take the digest that a member reports after a mean. What most of them say is recorded,
        once two do, or the only member: a checkpoint is published by it, and nobody is blamed.
        """
        if said.round != self.mean_round or self.mean_round < 0:
            return []
        self.digests[said.peer] = said.state_digest
        if isinstance(said, Applied) and said.snapshot_sha256:
            self.snapshots[said.peer] = said.snapshot_sha256
        ((digest, count),) = Counter(self.digests.values()).most_common(1)
        others = len(self.digests) - count
        if count <= others or count < min(2, len(members.roster)):
            return []
        agreed = (peer for peer, each in self.digests.items() if each == digest)
        written = Counter(self.snapshots[peer] for peer in agreed if peer in self.snapshots)
        snapshot = written.most_common(1)[0][0] if written else b""
        return [RecordDigest(self.mean_round, digest, count, others, snapshot)]

    def hear(self, said: Applied) -> None:
        """Take a member's report, if it has one."""
        if not said.projection:
            return
        self.reports.setdefault(said.round, {})[said.peer] = said.projection
        if said.update:
            self.updates[said.peer] = said.update
        for old in sorted(self.reports)[:-ROUNDS_KEPT]:
            del self.reports[old]
        heard = {peer for each in self.reports.values() for peer in each}
        self.updates = {peer: size for peer, size in self.updates.items() if peer in heard}

    @property
    def shown(self) -> tuple[int, Mapping[PeerId, tuple[float, ...]]]:
        """The round of which most members have reported, the newest of several, and the reports;
        -1 and none before the first.
        """
        most = max(self.reports, key=lambda round: (len(self.reports[round]), round), default=None)
        return (-1, {}) if most is None else (most, self.reports[most])

    @property
    def distance(self) -> float | None:
        """Root mean square over the members of their Euclidean distance to the mean, as estimated;
        None before two have reported.
        """
        _, reports = self.shown
        if len(reports) < 2:
            return None
        equal = len(set(reports.values())) == 1
        return 0.0 if equal else distance([reports[peer] for peer in sorted(reports)])

    @property
    def update(self) -> float:
        """Size of one update: root mean square over the members that are shown; 0 while none of
        them has made a step.
        """
        found = [self.updates[peer] for peer in self.shown[1] if peer in self.updates]
        return math.sqrt(sum(size * size for size in found) / len(found)) if found else 0.0

    def too_far(self, critical: float) -> str:
        """Why the next round should only mix; empty when it should not. After such a round the
        members are judged again once most have reported on it.
        """
        apart, update, round = self.distance, self.update, self.shown[0]
        if not self.apart or round < self.mixed_round or apart is None or not update:
            return ""
        if not should_only_mix(apart, update, critical):
            return ""
        return (
            f"members are {apart / update:.2g} updates from their mean after round {round}, more "
            f"than algorithm.mixing.critical = {critical:g}"
        )

    def document(self) -> dict[str, object]:
        """The distance and the size of one update for JSON."""
        round, reports = self.shown
        return {
            "round": round,
            "members": len(reports),
            "distance": self.distance,
            "update": self.update or None,
            "only_mixed": self.only_mixed,
            "groups": [list(group) for group in self.groups],
        }


def _content_bytes(spec: RunSpec) -> float:
    """Bytes that neighbours send each other; 0, so that round trips alone count, for a model whose
    size is not known here.
    """
    try:
        return float(payload_bytes(spec.algorithm, size_of(spec.model)))
    except SettingsError:
        return 0.0

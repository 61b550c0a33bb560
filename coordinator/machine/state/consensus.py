"""How far members that mix parameters are apart, by their reports, and the fast groups among them.

Rules
- Members report a projection of their parameters in place of a digest: nodes differ by design, and
  nobody is blamed for it.
- Past a critical distance from each other, in updates, the members only mix in the next round.
- Where the topology has groups they are those of fast links, as the members measure them, from the
  first round by which all have. They are found anew every `GROUP_ROUNDS` rounds: a graph has to
  last for its period, so that everybody's parameters reach all others.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.machine.events.effects import Effect, RecordDigest
from coordinator.machine.events.inputs import Applied, Ready
from coordinator.machine.state.member import Member
from protocol.errors import SettingsError
from protocol.ids import PeerId
from protocol.mixing.consensus import distance, should_only_mix
from protocol.mixing.measured_links import Groups, groups_of
from protocol.planner.parameters import size_of
from protocol.planner.payload_bytes import payload_bytes
from protocol.runfile import RunSpec

ROUNDS_KEPT = 2
"""Rounds whose reports are kept: the newest, and the one before it, of which all have reported."""

GROUP_ROUNDS = 64
"""Rounds for which groups of fast links stay: longer than the period of a graph of 256 members."""


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
        up_bit_s = {member.peer: float(member.work.up_bit_s) for member in members}
        found = groups_of(said, up_bit_s, _content_bytes(spec))
        if found is not None:
            self.groups, self.groups_round = found, round

    def begin(self, round: int, *, mean: bool) -> None:
        """A round was committed."""
        self.apart = not mean
        if mean:
            self.tries = 0
            self.mean_round, self.digests, self.snapshots = round, {}, {}

    def report(self, said: Applied | Ready, members: int) -> list[Effect]:
        """Take the digest that one of `members` reports after a mean. What most of them say is
        recorded, once two do, or the only member: a checkpoint is published by it, and nobody is
        blamed.
        """
        if said.round != self.mean_round or self.mean_round < 0:
            return []
        self.digests[said.peer] = said.state_digest
        if isinstance(said, Applied) and said.snapshot_sha256:
            self.snapshots[said.peer] = said.snapshot_sha256
        ((digest, count),) = Counter(self.digests.values()).most_common(1)
        others = len(self.digests) - count
        if count <= others or count < min(2, members):
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

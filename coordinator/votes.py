"""Do the replicas agree? Digests that nodes report after each commit, and what the majority is."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar

from protocol.ids import PeerId

ROUNDS_KEPT = 64
"""Newest rounds whose single reports are kept. A report of an older round counts for nothing: the node is catching
up and compares itself with the recorded majority, which one late report must not replace."""

_Value = TypeVar("_Value", int, bytes)


@dataclass(slots=True)
class Ballot:
    """Reports of one round: (state digest, SHA-256 of the snapshot or empty) by node."""

    reports: dict[PeerId, tuple[int, bytes]] = field(default_factory=dict)
    checked: bool = False
    disputed: bool = False


@dataclass(frozen=True, slots=True)
class Tally:
    """What was reported for one round. `majority` is the digest that more nodes reported than any other, or None
    when two are level."""

    majority: int | None
    reports: int
    dissenters: tuple[PeerId, ...]
    snapshot_sha256: bytes


@dataclass(slots=True)
class Votes:
    """Reports by round; a later report of the same node replaces its earlier one.

    `rounds_checked` counts committed rounds that two nodes or more reported, `rounds_disputed` those among them in
    which two digests were ever reported, `last` is the newest majority."""

    ballots: dict[int, Ballot] = field(default_factory=dict)
    newest: int = -1
    rounds_checked: int = 0
    rounds_disputed: int = 0
    last: int | None = None

    def report(self, round: int, peer: PeerId, state_digest: int, snapshot_sha256: bytes) -> Tally:
        """Take one report and count again. Round -1 is genesis."""
        if round <= self.newest - ROUNDS_KEPT:
            return Tally(None, 0, (), b"")
        self.newest = max(self.newest, round)
        ballot = self.ballots.setdefault(round, Ballot())
        ballot.reports[peer] = (state_digest, snapshot_sha256)
        if round >= 0:
            self._count(ballot)
        tally = self.tally(round)
        if tally.majority is not None and round == self.newest:
            self.last = tally.majority
        for old in [old for old in self.ballots if old <= self.newest - ROUNDS_KEPT]:
            del self.ballots[old]
        return tally

    def tally(self, round: int) -> Tally:
        """The count for one round."""
        ballot = self.ballots.get(round, Ballot())
        majority = _most([digest for digest, _ in ballot.reports.values()])
        dissenters = [peer for peer in sorted(ballot.reports) if majority not in (None, ballot.reports[peer][0])]
        snapshot = _most([sha for digest, sha in ballot.reports.values() if sha and digest == majority])
        return Tally(majority, len(ballot.reports), tuple(dissenters), snapshot or b"")

    def _count(self, ballot: Ballot) -> None:
        if not ballot.checked and len(ballot.reports) >= 2:
            ballot.checked = True
            self.rounds_checked += 1
        if not ballot.disputed and len({digest for digest, _ in ballot.reports.values()}) > 1:
            ballot.disputed = True
            self.rounds_disputed += 1


def _most(values: list[_Value]) -> _Value | None:
    """The value that occurs more often than any other, or None."""
    ranked = Counter(values).most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]

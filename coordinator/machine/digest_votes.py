"""Do the replicas agree? Digests that nodes report after each commit, counted;
`coordinator.machine.digest_verdicts` judges.

    open ----> decided by one ----> final               a level vote leaves a ballot open
      '--- most voters ---------------^

Rules
- Voters are the members that were ready when the round was committed. While one of them is awaited only voters count,
  and a digest has won when its lead is larger than the number still awaited: no later report can change it.
- Once nobody is awaited everyone counts, so that a node which joins can break a level vote.
- Two nodes with one digest make it final: no crowd that joins later can turn the record over. The word of a single
  node stands until another one contradicts it.
"""

from collections import Counter
from dataclasses import dataclass, field

from protocol.ids import PeerId

ROUNDS_KEPT = 64
"""Newest rounds whose ballots are kept. A report of an older round counts for nothing: the node is
catching up and compares itself with the recorded digest, which one late report must not replace."""

AWAITED_ROUNDS = 8
"""A voter that is so many rounds behind is not awaited any more: its word would hold up every
verdict, and with them the recorded snapshots that it may need itself."""

VOICES_FINAL = 2
"""Nodes with the same digest that make it final."""


@dataclass(slots=True)
class DigestReports:
    """Reports of one round: (state digest, SHA-256 of the snapshot or empty) by node, and what was
    made of them.
    """

    voters: set[PeerId] = field(default_factory=set)
    awaited: set[PeerId] = field(default_factory=set)
    """Voters who have not reported, or after a level vote those who replay the log."""
    authors: frozenset[PeerId] = frozenset()
    """Whose payload the round counted."""
    reports: dict[PeerId, tuple[int, bytes]] = field(default_factory=dict)
    """Forgotten when the ballot is closed: final, and nobody is awaited."""
    before: dict[PeerId, int] = field(default_factory=dict)
    """What those who replay the log had reported."""
    verdict: int | None = None
    snapshot_sha256: bytes = b""
    final: bool = False
    reported: int = 0
    dissent: int = 0
    checked: bool = False
    disputed: bool = False

    def leading(
        self, among: dict[PeerId, tuple[int, bytes]] | None = None
    ) -> tuple[int | None, int]:
        """The digest that most reports name and its lead over the next; (None, 0) when two are
        level.
        """
        counted = self.reports if among is None else among
        ranked = Counter(digest for digest, _ in counted.values()).most_common(2)
        if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
            return None, 0
        return ranked[0][0], ranked[0][1] - (ranked[1][1] if len(ranked) == 2 else 0)

    def winner(self) -> int | None:
        """The digest that no report still awaited can overtake, if there is one."""
        if not self.awaited:
            return self.leading()[0]
        if len(self.reports) <= len(self.awaited):
            return None  # no lead can be large enough yet
        digest, lead = self.leading(
            {peer: said for peer, said in self.reports.items() if peer in self.voters}
        )
        return digest if lead > len(self.awaited) else None

    def decide(self, verdict: int) -> None:
        """Take a digest for the right one."""
        self.verdict = verdict
        same = [sha for digest, sha in self.reports.values() if digest == verdict]
        self.reported, self.dissent = len(self.reports), len(self.reports) - len(same)
        self.final = self.final or len(same) >= VOICES_FINAL
        ranked = Counter(sha for sha in same if sha).most_common(1)
        self.snapshot_sha256 = ranked[0][0] if ranked else b""

    def forget(self, peer: PeerId) -> bool:
        """The node went and, while nothing is final, takes its word along; was it in this
        ballot?
        """
        known = peer in self.awaited or peer in self.reports
        self.awaited.discard(peer)
        self.before.pop(peer, None)
        if not self.final:
            self.reports.pop(peer, None)
        return known

    @property
    def closed(self) -> bool:
        """Final, and everyone has reported: who said what is forgotten, the numbers stay."""
        return self.final and not self.reports

    def close(self) -> None:
        """Forget who said what, once it is of no more use."""
        if self.final and not self.awaited:
            self.reports, self.voters, self.authors = {}, set(), frozenset()


@dataclass(slots=True)
class DigestTally:
    """Ballots by round; a later report of the same node replaces its earlier one.

    `rounds_checked` counts committed rounds that two nodes or more reported, `rounds_disputed`
    those among them in which two digests were ever reported, `last` is the newest verdict.
    """

    ballots: dict[int, DigestReports] = field(default_factory=dict)
    newest: int = -1
    rounds_checked: int = 0
    rounds_disputed: int = 0
    last: int | None = None

    def open(self, round: int, voters: set[PeerId], authors: frozenset[PeerId]) -> None:
        """A round was committed: these will report."""
        self.ballots[round] = DigestReports(voters, set(voters), authors)
        self._slide(round)

    def take(
        self, round: int, peer: PeerId, state_digest: int, snapshot_sha256: bytes
    ) -> DigestReports | None:
        """Note one report, unless its round is too old. Round -1 is genesis."""
        if round <= self.newest - ROUNDS_KEPT:
            return None
        ballot = self.ballots.setdefault(round, DigestReports())
        self._slide(round)
        ballot.awaited.discard(peer)
        if ballot.closed:
            if state_digest != ballot.verdict:
                ballot.reported, ballot.dissent = ballot.reported + 1, ballot.dissent + 1
                self._dispute(round, ballot)
            return ballot
        others = next((said for other, said in ballot.reports.items() if other != peer), None)
        ballot.reports[peer] = (state_digest, snapshot_sha256)
        if others and not ballot.checked and round >= 0:
            ballot.checked = True
            self.rounds_checked += 1
        if others and others[0] != state_digest:
            self._dispute(round, ballot)
        return ballot

    def pass_by(self, peer: PeerId, round: int) -> list[int]:
        """The node has reported a state of `round`: it says no more about earlier ones, and which
        of those awaited it.
        """
        passed = [
            earlier
            for earlier, ballot in self.ballots.items()
            if earlier < round and peer in ballot.awaited
        ]
        for earlier in passed:
            self.ballots[earlier].awaited.discard(peer)
        return passed

    def overdue(self) -> list[int]:
        """Rounds so old that nobody is awaited any more, but for who replays the log."""
        late = [
            round
            for round, ballot in self.ballots.items()
            if round <= self.newest - AWAITED_ROUNDS and ballot.awaited and not ballot.before
        ]
        for round in late:
            self.ballots[round].awaited.clear()
        return late

    def excuse(self, peer: PeerId) -> None:
        """The node was told to start over: nobody waits for what it would have said, and what it
        said of the state that it discards counts nowhere any more.
        """
        for ballot in self.ballots.values():
            ballot.awaited.discard(peer)
            if ballot.verdict is None and not ballot.before:
                ballot.reports.pop(peer, None)

    def _slide(self, round: int) -> None:
        if round > self.newest:
            self.newest = round
            for old in [old for old in self.ballots if old <= round - ROUNDS_KEPT]:
                del self.ballots[old]

    def _dispute(self, round: int, ballot: DigestReports) -> None:
        if not ballot.disputed and round >= 0:
            ballot.disputed = True
            self.rounds_disputed += 1

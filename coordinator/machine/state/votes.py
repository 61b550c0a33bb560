"""Counts the state digests that nodes report after each commit;
`coordinator.machine.rules.judging` judges.

    open ----> decided by one report ----> final         a level vote leaves a round open
      '--- decided by two or more ----------^

Rules
- Voters are the members that were ready when the round was committed. While one of them is awaited,
  only voters count, and a digest has won when its lead is larger than the number of voters still
  awaited: no later report can change the result.
- When no voter is awaited, every report counts, so that a node that joins can break a level vote.
- Two nodes with one digest make it final: no crowd that joins later can overturn the record. The
  report of a single node stands until another node contradicts it.
- Where the operator has named auditors (`coordinator.machine.rules.auditing`), votes make nothing
  final: what they decide is provisional until an auditor has its word.
"""

from collections import Counter
from dataclasses import dataclass, field

from protocol.ids import PeerId

ROUNDS_KEPT = 64
"""Newest rounds whose reports are kept. A report of an older round is dropped: its node is catching
up and compares itself with the recorded digest, which one late report must not replace."""

AWAITED_ROUNDS = 8
"""Rounds after which a voter that lags behind is no longer awaited: it would hold up every verdict,
and with the verdicts the recorded snapshots that it may need itself."""

VOICES_FINAL = 2
"""Nodes with the same digest that make it final."""


@dataclass(slots=True)
class DigestReports:
    """The reports of one round and the verdict on them."""

    voters: set[PeerId] = field(default_factory=set)
    awaited: set[PeerId] = field(default_factory=set)
    """Voters that have not reported; after a level vote, the nodes that replay the log."""
    authors: frozenset[PeerId] = frozenset()
    """Nodes whose payload the round counted."""
    by_peer: dict[PeerId, tuple[int, bytes]] = field(default_factory=dict)
    """(State digest, SHA-256 of the snapshot or empty) by node. Emptied when the round is closed:
    its verdict is final and no node is awaited."""
    before: dict[PeerId, int] = field(default_factory=dict)
    """Digests that the nodes which replay the log had reported before."""
    verdict: int | None = None
    snapshot_sha256: bytes = b""
    final: bool = False
    rank: int = 0
    """Highest standing among the nodes that decided it."""
    provisional: bool = False
    """It waits for an auditor's word: what votes decide is not final."""
    words: dict[PeerId, tuple[int, bytes]] = field(default_factory=dict)
    """(State digest, SHA-256 of the snapshot or empty) by auditor."""
    ruled: bool = False
    """The verdict is an auditor's."""
    heard: dict[PeerId, int] = field(default_factory=dict)
    """Digests of nodes that do not vote, until an auditor has its word."""
    reported: int = 0
    dissent: int = 0
    checked: bool = False
    disputed: bool = False

    # ---- queries

    @property
    def closed(self) -> bool:
        """The verdict is final and every node has reported: only the numbers are kept."""
        return self.final and self.reported > 0 and not self.by_peer

    @property
    def has_replayed(self) -> bool:
        """Nodes were sent through the log, and all of them have reported again or gone."""
        return bool(self.before) and not self.awaited

    @property
    def complete(self) -> bool:
        """Nodes have reported, and none is awaited."""
        return bool(self.by_peer) and not self.awaited

    def leading(
        self, among: dict[PeerId, tuple[int, bytes]] | None = None
    ) -> tuple[int | None, int]:
        """The digest that most reports name and its lead over the next one; (None, 0) when two
        are level.
        """
        counted = self.by_peer if among is None else among
        ranked = Counter(digest for digest, _ in counted.values()).most_common(2)
        if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
            return None, 0
        return ranked[0][0], ranked[0][1] - (ranked[1][1] if len(ranked) == 2 else 0)

    def winner(self) -> int | None:
        """The digest that no awaited report can overtake, if there is one."""
        if not self.awaited:
            return self.leading()[0]
        if len(self.by_peer) <= len(self.awaited):
            return None  # no lead can be large enough yet
        digest, lead = self.leading(
            {peer: said for peer, said in self.by_peer.items() if peer in self.voters}
        )
        return digest if lead > len(self.awaited) else None

    def digests(self) -> dict[PeerId, int]:
        """The digest that each node reports, sorted by node."""
        return {peer: digest for peer, (digest, _) in sorted(self.by_peer.items())}

    def changed(self) -> list[PeerId]:
        """Nodes whose digest is another one after their replay than before, sorted."""
        now = self.digests()
        return [
            peer for peer, digest in sorted(self.before.items()) if now.get(peer, digest) != digest
        ]

    # ---- changes

    def decide(self, verdict: int) -> None:
        """Take `verdict` as the right digest and count the reports for and against it."""
        self.verdict = verdict
        same = [sha256 for digest, sha256 in self.by_peer.values() if digest == verdict]
        self.reported, self.dissent = len(self.by_peer), len(self.by_peer) - len(same)
        by_vote = len(same) >= VOICES_FINAL and not self.provisional
        self.final = self.final or self.ruled or by_vote
        said = [sha256 for digest, sha256 in self.words.values() if digest == verdict and sha256]
        ranked = Counter(said or (sha256 for sha256 in same if sha256)).most_common(1)
        self.snapshot_sha256 = ranked[0][0] if ranked else b""

    def overrule(self, verdict: int) -> None:
        """An auditor's word: take `verdict` as the right digest, whatever was decided."""
        if self.closed and verdict != self.verdict:
            self.dissent = self.reported  # whoever had this digest before is not known any more
        was_closed, self.verdict, self.ruled = self.closed, verdict, True
        self.provisional, self.heard, self.before = False, {}, {}
        if not was_closed:
            self.decide(verdict)

    def forget(self, peer: PeerId) -> bool:
        """Drop a node that went, with its report unless the verdict is final. Returns whether the
        node was awaited or had reported.
        """
        known = peer in self.awaited or peer in self.by_peer
        self.awaited.discard(peer)
        self.before.pop(peer, None)
        self.heard.pop(peer, None)
        if not self.final:
            self.by_peer.pop(peer, None)
        return known

    def close(self) -> None:
        """Drop the single reports once no node is awaited and the verdict is final."""
        if self.final and not self.awaited:
            self.by_peer, self.voters, self.authors = {}, set(), frozenset()


@dataclass(slots=True)
class DigestTally:
    """The reports of the newest rounds; a later report of a node replaces its earlier one.

    `rounds_checked` counts committed rounds with reports of two nodes or more, `rounds_disputed`
    those among them with two different digests; `last` is the newest verdict.
    """

    by_round: dict[int, DigestReports] = field(default_factory=dict)
    newest: int = -1
    rounds_checked: int = 0
    rounds_disputed: int = 0
    last: int | None = None

    # ---- queries

    @property
    def agreed(self) -> bool:
        """Whether the nodes agreed on the newest round of which two reported: a node that differed,
        and was refused or has healed, is forgotten.
        """
        rounds = sorted(self.by_round.items(), reverse=True)
        return next((not reports.disputed for _, reports in rounds if reports.checked), True)

    @property
    def contradiction(self) -> str:
        """The first state on which auditors differ, in words; empty when there is none."""
        for round, reports in sorted(self.by_round.items()):
            if len({digest for digest, _ in reports.words.values()}) > 1:
                said = (f"{peer} {digest:016x}" for peer, (digest, _) in reports.words.items())
                return f"auditors differ on the state after round {round}: {', '.join(said)}"
        return ""

    def keeps(self, round: int) -> bool:
        """Whether the reports of a round are kept, and not too old."""
        return round > self.newest - ROUNDS_KEPT

    def replays(self, peer: PeerId, round: int) -> bool:
        """The node was sent through the log because of a level vote on `round`."""
        reports = self.by_round.get(round)
        return reports is not None and peer in reports.before

    # ---- reports

    def open(self, round: int, voters: set[PeerId], authors: frozenset[PeerId]) -> None:
        """Await the reports of `voters` on a round that was committed."""
        self.by_round[round] = DigestReports(voters, set(voters), authors)
        self._slide(round)

    def report(
        self, round: int, peer: PeerId, state_digest: int, snapshot_sha256: bytes
    ) -> DigestReports | None:
        """Note one report; None when its round is too old. Round -1 is genesis."""
        if not self.keeps(round):
            return None
        reports = self.by_round.setdefault(round, DigestReports())
        self._slide(round)
        reports.awaited.discard(peer)
        if reports.closed:
            if state_digest != reports.verdict:
                reports.reported, reports.dissent = reports.reported + 1, reports.dissent + 1
                self._dispute(round, reports)
            return reports
        others = [said for other, said in reports.by_peer.items() if other != peer]
        reports.by_peer[peer] = (state_digest, snapshot_sha256)
        if known := next(iter([*others, *reports.words.values()]), None):
            self._check(round, reports)
            if known[0] != state_digest:
                self._dispute(round, reports)
        return reports

    def say(self, round: int, auditor: PeerId, state_digest: int, snapshot_sha256: bytes) -> None:
        """Note an auditor's word on a round that is kept. A later one replaces it."""
        reports = self.by_round.setdefault(round, DigestReports())
        self._slide(round)
        reports.words[auditor] = state_digest, snapshot_sha256
        said = {digest for digest, _ in reports.by_peer.values()}
        if said:
            self._check(round, reports)
        if said - {state_digest}:
            self._dispute(round, reports)

    def skip_earlier(self, peer: PeerId, round: int) -> list[int]:
        """The node reports a state of `round`, so do not await its reports of earlier rounds.
        Returns the rounds that awaited it.
        """
        passed = [
            earlier
            for earlier, reports in self.by_round.items()
            if earlier < round and peer in reports.awaited
        ]
        for earlier in passed:
            self.by_round[earlier].awaited.discard(peer)
        return passed

    def give_up_overdue(self) -> list[int]:
        """Await no more reports of rounds that are `AWAITED_ROUNDS` old, except from nodes that
        replay the log. Returns those rounds.
        """
        late = [
            round
            for round, reports in self.by_round.items()
            if round <= self.newest - AWAITED_ROUNDS and reports.awaited and not reports.before
        ]
        for round in late:
            self.by_round[round].awaited.clear()
        return late

    def excuse(self, peer: PeerId) -> None:
        """The node discards its state: await none of its reports, and drop those that it made on
        rounds without a verdict.
        """
        for reports in self.by_round.values():
            reports.awaited.discard(peer)
            reports.heard.pop(peer, None)
            if (reports.verdict is None or reports.provisional) and not reports.before:
                reports.by_peer.pop(peer, None)

    def forget(self, peer: PeerId) -> list[int]:
        """The node went. Returns the rounds that this may decide."""
        return [round for round, reports in self.by_round.items() if reports.forget(peer)]

    # ---- verdicts

    def recount(self, round: int) -> DigestReports:
        """Count the reports for and against the verdict of a round again, and close the round
        when it is complete.
        """
        reports = self.by_round[round]
        if reports.verdict is not None:
            if not reports.closed:
                reports.decide(reports.verdict)
                reports.close()
            if round == self.newest:
                self.last = reports.verdict
        return reports

    def reopen(self, round: int) -> None:
        """Withdraw the verdict of a round: the reports have become level."""
        self.by_round[round].verdict = None

    def send_through_log(self, round: int, peer: PeerId) -> None:
        """The node replays the log because the vote on `round` is level: keep the digest that it
        reported, and await what it reports after the replay.
        """
        reports = self.by_round[round]
        digest, _ = reports.by_peer.pop(peer)
        self.excuse(peer)
        reports.before[peer] = digest
        reports.awaited.add(peer)

    def start_again_from(self, round: int) -> set[PeerId]:
        """The states from this round on are others than nodes have reported: await the voters
        again, without a verdict. Returns the nodes whose reports are dropped.
        """
        dropped = set[PeerId]()
        for later, reports in self.by_round.items():
            if later >= round:
                dropped |= reports.by_peer.keys() | reports.before.keys()
                self.by_round[later] = DigestReports(
                    reports.voters,
                    (reports.awaited | reports.by_peer.keys()) & reports.voters,
                    reports.authors,
                    checked=reports.checked,
                    disputed=reports.disputed,
                )
                if later == self.newest:
                    self.last = None
        return dropped

    def end_replay(self, round: int) -> tuple[list[PeerId], list[PeerId]]:
        """Every node that was sent through the log has reported again or gone. Returns the nodes
        that have reported again, and those among them whose digest has changed; both sorted.
        """
        reports = self.by_round[round]
        returned = sorted(reports.before.keys() & reports.by_peer.keys())
        changed = reports.changed()
        reports.before = {}
        return returned, changed

    def _slide(self, round: int) -> None:
        if round > self.newest:
            self.newest = round
            for old in [old for old in self.by_round if old <= round - ROUNDS_KEPT]:
                del self.by_round[old]

    def _check(self, round: int, reports: DigestReports) -> None:
        if not reports.checked and round >= 0:
            reports.checked = True
            self.rounds_checked += 1

    def _dispute(self, round: int, reports: DigestReports) -> None:
        if not reports.disputed and round >= 0:
            reports.disputed = True
            self.rounds_disputed += 1

"""Judges nodes whose replica differs from the others'.

                    differs from the digest that won             differs again
    agrees ------------------------------------------> suspect -----------------------> refused for
      ^                                                 | told to resync, muted          an hour
      '-------------------------------------------------'
         unmuted when it agrees on a later round, cleared when that round counts its payload

When the vote on a digest is level (1 against 1), the replay of the log decides: all nodes that
voted are held back and told to replay it. A replica is a pure function of the log, so a sound
machine arrives at the same digest again, and a node that arrives at another one was wrong before.
When all repeat their digests, a second replay would tell nothing new: the nodes stay held back,
and the run says so, until a further node breaks the tie or one of them goes. So no node is refused
unless it is outvoted twice or contradicts itself, and two sound machines never are.

A node is only blamed for a state that it made after it was told to resync: each request has a
number, and `Ready` repeats the last one that the node obeyed. A request that was lost with its
session is made again and counts once.

In a run that is open to the public only members with standing vote. Other nodes are compared with
what those have decided, and no node is blamed on the word of nodes with less standing than its own.

Where the operator has named auditors nobody is blamed on votes at all, but on an auditor's word
alone (`coordinator.machine.digests.auditing`).
"""

from dataclasses import dataclass, field

from coordinator.machine.digests.records import Record, record_of
from coordinator.machine.digests.votes import DigestReports, DigestTally
from coordinator.machine.events import (
    Applied,
    AskResync,
    Effect,
    Evict,
    Ready,
    RecordDigest,
    TellMembers,
)
from coordinator.machine.members.membership import Membership
from protocol.ids import PeerId

LEVEL = "level: the replay of the log decides"
"""What is said of a vote that nobody has won: those who voted replay the log, and lose nothing."""

GENESIS_DIFFERS = (
    "its first state differs from that of the nodes which came before it, also after a resync: "
    "compare releases, and ask the operator whose is right"
)
"""The reason why a node is held back that differs before the first round: the first to come decide
that vote, so nobody is refused for it."""


@dataclass(slots=True)
class DigestVerdicts:
    """The tally of reports, the records of nodes on the wrong side, and the reasons (`held`) why a
    node is given no work.
    """

    tally: DigestTally = field(default_factory=DigestTally)
    records: dict[PeerId, Record] = field(default_factory=dict)
    held: dict[PeerId, str] = field(default_factory=dict)
    requests: int = 0
    auditors: set[PeerId] = field(default_factory=set)
    """Keys whose word on a state is final."""
    contradiction: str = ""
    """The words of auditors that differ; while they do, no round opens and none of them counts."""
    origin: tuple[int, int] | None = None
    """(round, state digest) of the newest restart from a checkpoint: states before it are history,
    and that of its round is known."""

    # ---- queries

    def refusal(self, peer: PeerId, now_ms: int) -> str:
        """The reason why the node may not join now; empty when it may."""
        record = self.records.get(peer)
        return record.refusal(now_ms) if record else ""

    def muted_reason(self, peer: PeerId) -> str:
        """The reason why the node's payloads do not count at present; empty when they do."""
        record = self.records.get(peer)
        return record.muted_reason if record else ""

    # ---- events

    def open(self, round: int, members: Membership, authors: frozenset[PeerId]) -> None:
        """A round was committed: its members that are ready, and decide, will report."""
        voters = {member.peer for member in members.ready() if members.decides(member.peer)}
        self.tally.open(round, voters, authors)

    def report(self, said: Applied | Ready, members: Membership, now_ms: int) -> list[Effect]:
        """Take the digest that a member reports. An `AskResync` or `Evict` for the member means
        that it is not ready.
        """
        record = self.records.get(said.peer)
        if isinstance(said, Ready) and record:
            if said.resyncs < record.asked:
                return self._ask(
                    said.peer, said.round, "a request to resync was not obeyed", members
                )
            record.asked = 0
        if self.origin and said.round <= self.origin[0]:
            return self._compare_with_origin(said, self.origin, members)
        if isinstance(said, Applied) and self._is_outdated(said, members):
            return []
        if not members.decides(said.peer):
            return self._hear(said, members, now_ms)
        rounds = [*self.tally.skip_earlier(said.peer, said.round), *self.tally.give_up_overdue()]
        effects = [effect for round in rounds for effect in self.count(round, members, now_ms)]
        snapshot_sha256 = said.snapshot_sha256 if isinstance(said, Applied) else b""
        reports = self.tally.report(said.round, said.peer, said.state_digest, snapshot_sha256)
        if reports is None:
            return effects
        if reports.final:
            return effects + self._compare(said, reports, members, now_ms)
        return effects + self.count(said.round, members, now_ms)

    def _hear(self, said: Applied | Ready, members: Membership, now_ms: int) -> list[Effect]:
        """A key without standing reports: no vote, but it is compared with what others decided."""
        reports = self.tally.by_round.get(said.round)
        if reports and self.auditors and not reports.ruled:
            reports.heard[said.peer] = said.state_digest
            return []
        if reports is None or reports.verdict is None:
            return []
        if said.state_digest == reports.verdict:
            self.agrees(said.peer, said.round, reports)
            return []
        return self.differs(said.peer, said.round, members, now_ms)

    def _is_outdated(self, said: Applied, members: Membership) -> bool:
        """The member said this before it heard that it must resync."""
        member = members.get(said.peer)
        if member is None or member.state == "ready":
            return False
        return not self.tally.replays(said.peer, said.round)

    def forget(self, peer: PeerId, members: Membership, now_ms: int) -> list[Effect]:
        """Drop a member that went: no verdict waits for its reports any more."""
        self.held.pop(peer, None)
        rounds = self.tally.forget(peer)
        return [effect for round in rounds for effect in self.count(round, members, now_ms)]

    def withdraw_from(self, round: int) -> list[Effect]:
        """A payload of this round became void: the states from it on are others than reported."""
        for peer in self.tally.start_again_from(round):
            self.held.pop(peer, None)
        self.contradiction = self.tally.contradiction
        later = [later for later in self.tally.by_round if later >= round]
        return [RecordDigest(round, 0, 0, 0, b"") for round in later]

    def begin_anew(self, round: int, state_digest: int) -> None:
        """The state after this round is that of a checkpoint: what was reported is history."""
        self.tally.by_round.clear()
        self.contradiction = ""
        self.tally.newest, self.tally.last = -1, state_digest
        self.held.clear()
        self.origin = round, state_digest

    def send_back(self, said: Ready, head_round: int, members: Membership) -> list[Effect]:
        """Send back a member whose state is ahead of the log: it is of a journal that was lost."""
        return self._ask(
            said.peer, head_round, f"round {said.round} is ahead of the log's {head_round}", members
        )

    # ---- verdicts

    def count(self, round: int, members: Membership, now_ms: int) -> list[Effect]:
        """Decide a round as far as the reports on it allow."""
        reports = self.tally.by_round[round]
        if reports.final:
            return self.put_on_record(round) if not reports.awaited else []
        if self.auditors:
            return self._await_word(round, reports)
        if reports.has_replayed:
            return self._weigh_replays(round, reports, members, now_ms)
        if reports.before:
            return []  # the replay is under way
        winner = reports.winner()
        if winner is not None:
            return self._decide(round, reports, winner, members, now_ms)
        return self._send_through_log(round, reports, members) if reports.complete else []

    def _await_word(self, round: int, reports: DigestReports) -> list[Effect]:
        """Where auditors are named: put on record what all members report alike, for the time until
        an auditor has its word, and blame nobody.
        """
        reports.provisional = True
        if reports.verdict is not None:
            return self.put_on_record(round) if not reports.awaited else []
        said = set(reports.digests().values())
        if reports.awaited or len(said) != 1:
            return []
        reports.decide(said.pop())
        return self.put_on_record(round)

    def _compare(
        self, said: Applied | Ready, reports: DigestReports, members: Membership, now_ms: int
    ) -> list[Effect]:
        """Judge one more report of a round whose digest is final."""
        if said.state_digest == reports.verdict:
            self.agrees(said.peer, said.round, reports)
            return self.put_on_record(said.round) if not reports.awaited else []
        effects = self.put_on_record(said.round)
        return effects + self.differs(said.peer, said.round, members, now_ms)

    def _decide(
        self, round: int, reports: DigestReports, verdict: int, members: Membership, now_ms: int
    ) -> list[Effect]:
        said = reports.digests()
        reports.decide(verdict)
        agreeing = [peer for peer, digest in said.items() if digest == verdict]
        reports.rank = max(map(members.rank, agreeing), default=0)
        if round < 0 and not members.standing.are_most_of_vouched(agreeing):
            reports.rank = 0  # the first to come are all that there are: they blame nobody of rank
        for peer in agreeing:
            self.agrees(peer, round, reports)
        effects = self.put_on_record(round)
        for peer in (peer for peer, digest in said.items() if digest != verdict):
            effects += self.differs(peer, round, members, now_ms)
        return effects

    def put_on_record(self, round: int) -> list[Effect]:
        """Put a verdict, or its withdrawal (no reports), on record."""
        reports = self.tally.recount(round)
        if reports.verdict is None:
            withdrawn = len(reports.by_peer) + len(reports.before)
            return [RecordDigest(round, 0, 0, withdrawn, b"")]
        return [
            RecordDigest(
                round, reports.verdict, reports.reported, reports.dissent, reports.snapshot_sha256
            )
        ]

    def _send_through_log(
        self, round: int, reports: DigestReports, members: Membership
    ) -> list[Effect]:
        """The vote is level: the nodes that have not yet replayed the log do so."""
        self.tally.reopen(round)
        effects = self.put_on_record(round)
        fresh = [peer for peer in sorted(reports.by_peer) if not self._record_of(peer).replayed]
        if not fresh:
            self._hold(round, reports)
            return effects
        reason = (
            f"votes of {len(reports.by_peer)} nodes on the state after round {round} are {LEVEL}"
        )
        self.held |= dict.fromkeys(reports.by_peer, reason)
        for peer in fresh:
            self._record_of(peer).replayed = True
            self.tally.send_through_log(round, peer)
            effects += self._request(peer, round, reason, members)
        return effects

    def _weigh_replays(
        self, round: int, reports: DigestReports, members: Membership, now_ms: int
    ) -> list[Effect]:
        """Blame the nodes whose digest has changed in the replay; the others decide the round."""
        returned, changed = self.tally.end_replay(round)
        for peer in returned:
            self._record_of(peer).asked = 0  # from here on the node answers for its state
        steady = {peer: said for peer, said in reports.by_peer.items() if peer not in changed}
        verdict, _ = reports.leading(steady or None)
        effects: list[Effect] = []
        for peer in changed:
            effects += self._blame(peer, round, members, now_ms)
        for peer in [effect.peer for effect in effects if isinstance(effect, Evict)]:
            reports.forget(peer)
        if verdict is not None:
            return effects + self._decide(round, reports, verdict, members, now_ms)
        self._hold(round, reports)
        return effects

    def _hold(self, round: int, reports: DigestReports) -> None:
        """Give the nodes that differ no work until a new report or a departure decides."""
        reason = f"states after round {round} differ even after a replay: waits for a further node"
        self.held |= dict.fromkeys(reports.by_peer, reason)

    def _compare_with_origin(
        self, said: Applied | Ready, origin: tuple[int, int], members: Membership
    ) -> list[Effect]:
        if isinstance(said, Applied) or (said.round, said.state_digest) == origin:
            return []
        reason = f"it is not the checkpoint from which the run goes on after round {origin[0]}"
        return self._ask(said.peer, said.round, reason, members)

    # ---- consequences

    def agrees(self, peer: PeerId, round: int, reports: DigestReports) -> None:
        """The node reported the state that was decided: it is given work, and counts again."""
        self.held.pop(peer, None)
        record = self.records.get(peer)
        if record and reports.final:
            record.note_right(round, counted=peer in reports.authors)

    def differs(self, peer: PeerId, round: int, members: Membership, now_ms: int) -> list[Effect]:
        """The node is outvoted: it is told to resync, or refused."""
        self.held.pop(peer, None)
        if members.get(peer) is None or self.contradiction:
            return []
        reports = self.tally.by_round.get(round)
        if self.auditors and not (reports and reports.ruled):
            return []  # votes
        if reports and members.rank(peer) > reports.rank:
            return []  # the count of disputed rounds raises the alarm
        record = self._record_of(peer)
        if record.asked:  # reported before it could resync: the same offence
            record.round = max(record.round, round)
            return []
        effects = self._blame(peer, round, members, now_ms)
        if not effects and peer not in self.held:
            reason = f"state after round {round} differs from the majority's"
            effects = self._ask(peer, round, reason, members)
        return effects

    def _blame(self, peer: PeerId, round: int, members: Membership, now_ms: int) -> list[Effect]:
        record = self._record_of(peer)
        if not record.note_wrong(round):
            return []
        if round < 0:
            self.held[peer] = GENESIS_DIFFERS
            return []
        members.evict(peer)
        reason = record.refuse(round, now_ms)
        return [Evict(peer, reason, True), TellMembers(gone=(peer,))]

    def _ask(self, peer: PeerId, round: int, reason: str, members: Membership) -> list[Effect]:
        """Tell a node to resync; its reports on the state that it discards count no more."""
        self.tally.excuse(peer)
        return self._request(peer, round, reason, members)

    def _request(self, peer: PeerId, round: int, reason: str, members: Membership) -> list[Effect]:
        self.requests += 1
        self._record_of(peer).asked = self.requests
        members.set_back(peer)
        return [AskResync(peer, round, reason, self.requests)]

    def _record_of(self, peer: PeerId) -> Record:
        return record_of(peer, self.records)

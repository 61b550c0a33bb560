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
alone (`coordinator.machine.rules.auditing`).
"""

from coordinator.machine.events.effects import AskResync, Effect, Evict, RecordDigest, TellMembers
from coordinator.machine.events.inputs import Applied, Ready
from coordinator.machine.state.run import Run
from coordinator.machine.state.votes import DigestReports
from protocol.ids import PeerId

LEVEL = "level: the replay of the log decides"
"""What is said of a vote that nobody has won: those who voted replay the log, and lose nothing."""

GENESIS_DIFFERS = (
    "its first state differs from that of the nodes which came before it, also after a resync: "
    "compare releases, and ask the operator whose is right"
)
"""The reason why a node is held back that differs before the first round: the first to come decide
that vote, so nobody is refused for it."""


class Judge:
    """Judges the members of one run, at one instant."""

    def __init__(self, run: Run, now_ms: int) -> None:
        self._verdicts, self._tally = run.state.verdicts, run.state.verdicts.tally
        self._members, self._now_ms = run.members, now_ms

    # ---- events

    def report(self, said: Applied | Ready) -> list[Effect]:
        """Take the digest that a member reports. An `AskResync` or `Evict` for the member means
        that it is not ready.
        """
        record = self._verdicts.records.get(said.peer)
        if isinstance(said, Ready) and record:
            if said.resyncs < record.asked:
                return self._ask(said.peer, said.round, "a request to resync was not obeyed")
            record.asked = 0
        if self._verdicts.origin and said.round <= self._verdicts.origin[0]:
            return self._compare_with_origin(said, self._verdicts.origin)
        if isinstance(said, Applied) and self._is_outdated(said):
            return []
        if not self._members.decides(said.peer):
            return self._hear(said)
        rounds = [*self._tally.skip_earlier(said.peer, said.round), *self._tally.give_up_overdue()]
        effects = [effect for round in rounds for effect in self.count(round)]
        snapshot_sha256 = said.snapshot_sha256 if isinstance(said, Applied) else b""
        reports = self._tally.report(said.round, said.peer, said.state_digest, snapshot_sha256)
        if reports is None:
            return effects
        if reports.final:
            return effects + self._compare(said, reports)
        return effects + self.count(said.round)

    def _hear(self, said: Applied | Ready) -> list[Effect]:
        """A key without standing reports: no vote, but it is compared with what others decided."""
        reports = self._tally.by_round.get(said.round)
        if reports and self._verdicts.auditors and not reports.ruled:
            reports.heard[said.peer] = said.state_digest
            return []
        if reports is None or reports.verdict is None:
            return []
        if said.state_digest == reports.verdict:
            self.agrees(said.peer, said.round, reports)
            return []
        return self.differs(said.peer, said.round)

    def _is_outdated(self, said: Applied) -> bool:
        """The member said this before it heard that it must resync."""
        member = self._members.get(said.peer)
        if member is None or member.state == "ready":
            return False
        return not self._tally.replays(said.peer, said.round)

    def forget(self, peer: PeerId) -> list[Effect]:
        """Drop a member that went: no verdict waits for its reports any more."""
        self._verdicts.held.pop(peer, None)
        rounds = self._tally.forget(peer)
        return [effect for round in rounds for effect in self.count(round)]

    def send_back(self, said: Ready, head_round: int) -> list[Effect]:
        """Send back a member whose state is ahead of the log: it is of a journal that was lost."""
        return self._ask(
            said.peer, head_round, f"round {said.round} is ahead of the log's {head_round}"
        )

    # ---- verdicts

    def count(self, round: int) -> list[Effect]:
        """Decide a round as far as the reports on it allow."""
        reports = self._tally.by_round[round]
        if reports.final:
            return self.put_on_record(round) if not reports.awaited else []
        if self._verdicts.auditors:
            return self._await_word(round, reports)
        if reports.has_replayed:
            return self._weigh_replays(round, reports)
        if reports.before:
            return []  # the replay is under way
        winner = reports.winner()
        if winner is not None:
            return self._decide(round, reports, winner)
        return self._send_through_log(round, reports) if reports.complete else []

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

    def _compare(self, said: Applied | Ready, reports: DigestReports) -> list[Effect]:
        """Judge one more report of a round whose digest is final."""
        if said.state_digest == reports.verdict:
            self.agrees(said.peer, said.round, reports)
            return self.put_on_record(said.round) if not reports.awaited else []
        effects = self.put_on_record(said.round)
        return effects + self.differs(said.peer, said.round)

    def _decide(self, round: int, reports: DigestReports, verdict: int) -> list[Effect]:
        said = reports.digests()
        reports.decide(verdict)
        agreeing = [peer for peer, digest in said.items() if digest == verdict]
        reports.rank = max(map(self._members.rank, agreeing), default=0)
        if round < 0 and not self._members.standing.are_most_of_vouched(agreeing):
            reports.rank = 0  # the first to come are all that there are: they blame nobody of rank
        for peer in agreeing:
            self.agrees(peer, round, reports)
        effects = self.put_on_record(round)
        for peer in (peer for peer, digest in said.items() if digest != verdict):
            effects += self.differs(peer, round)
        return effects

    def put_on_record(self, round: int) -> list[Effect]:
        """Put a verdict, or its withdrawal (no reports), on record."""
        reports = self._tally.recount(round)
        if reports.verdict is None:
            withdrawn = len(reports.by_peer) + len(reports.before)
            return [RecordDigest(round, 0, 0, withdrawn, b"")]
        return [
            RecordDigest(
                round, reports.verdict, reports.reported, reports.dissent, reports.snapshot_sha256
            )
        ]

    def _send_through_log(self, round: int, reports: DigestReports) -> list[Effect]:
        """The vote is level: the nodes that have not yet replayed the log do so."""
        self._tally.reopen(round)
        effects = self.put_on_record(round)
        record_of = self._verdicts.record_of
        fresh = [peer for peer in sorted(reports.by_peer) if not record_of(peer).replayed]
        if not fresh:
            self._hold(round, reports)
            return effects
        reason = (
            f"votes of {len(reports.by_peer)} nodes on the state after round {round} are {LEVEL}"
        )
        self._verdicts.held |= dict.fromkeys(reports.by_peer, reason)
        for peer in fresh:
            record_of(peer).replayed = True
            self._tally.send_through_log(round, peer)
            effects += self._request(peer, round, reason)
        return effects

    def _weigh_replays(self, round: int, reports: DigestReports) -> list[Effect]:
        """Blame the nodes whose digest has changed in the replay; the others decide the round."""
        returned, changed = self._tally.end_replay(round)
        for peer in returned:
            self._verdicts.record_of(peer).asked = 0  # from here on the node answers for its state
        steady = {peer: said for peer, said in reports.by_peer.items() if peer not in changed}
        verdict, _ = reports.leading(steady or None)
        effects: list[Effect] = []
        for peer in changed:
            effects += self._blame(peer, round)
        for peer in [effect.peer for effect in effects if isinstance(effect, Evict)]:
            reports.forget(peer)
        if verdict is not None:
            return effects + self._decide(round, reports, verdict)
        self._hold(round, reports)
        return effects

    def _hold(self, round: int, reports: DigestReports) -> None:
        """Give the nodes that differ no work until a new report or a departure decides."""
        reason = f"states after round {round} differ even after a replay: waits for a further node"
        self._verdicts.held |= dict.fromkeys(reports.by_peer, reason)

    def _compare_with_origin(self, said: Applied | Ready, origin: tuple[int, int]) -> list[Effect]:
        if isinstance(said, Applied) or (said.round, said.state_digest) == origin:
            return []
        reason = f"it is not the checkpoint from which the run goes on after round {origin[0]}"
        return self._ask(said.peer, said.round, reason)

    # ---- consequences

    def agrees(self, peer: PeerId, round: int, reports: DigestReports) -> None:
        """The node reported the state that was decided: it is given work, and counts again."""
        self._verdicts.held.pop(peer, None)
        record = self._verdicts.records.get(peer)
        if record and reports.final:
            record.note_right(round, counted=peer in reports.authors)

    def differs(self, peer: PeerId, round: int) -> list[Effect]:
        """The node is outvoted: it is told to resync, or refused."""
        self._verdicts.held.pop(peer, None)
        if self._members.get(peer) is None or self._verdicts.contradiction:
            return []
        reports = self._tally.by_round.get(round)
        if self._verdicts.auditors and not (reports and reports.ruled):
            return []  # votes
        if reports and self._members.rank(peer) > reports.rank:
            return []  # the count of disputed rounds raises the alarm
        record = self._verdicts.record_of(peer)
        if record.asked:  # reported before it could resync: the same offence
            record.round = max(record.round, round)
            return []
        effects = self._blame(peer, round)
        if not effects and peer not in self._verdicts.held:
            reason = f"state after round {round} differs from the majority's"
            effects = self._ask(peer, round, reason)
        return effects

    def _blame(self, peer: PeerId, round: int) -> list[Effect]:
        record = self._verdicts.record_of(peer)
        if not record.note_wrong(round):
            return []
        if round < 0:
            self._verdicts.held[peer] = GENESIS_DIFFERS
            return []
        self._members.evict(peer)
        reason = record.refuse(round, self._now_ms)
        return [Evict(peer, reason, True), TellMembers(gone=(peer,))]

    def _ask(self, peer: PeerId, round: int, reason: str) -> list[Effect]:
        """Tell a node to resync; its reports on the state that it discards count no more."""
        self._tally.excuse(peer)
        return self._request(peer, round, reason)

    def _request(self, peer: PeerId, round: int, reason: str) -> list[Effect]:
        self._verdicts.requests += 1
        self._verdicts.record_of(peer).asked = self._verdicts.requests
        self._members.set_back(peer)
        return [AskResync(peer, round, reason, self._verdicts.requests)]

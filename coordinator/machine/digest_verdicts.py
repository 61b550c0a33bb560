"""What follows when a replica is not what the others say it must be.

                    differs from the digest that won                differs again
    agrees ------------------------------------------> suspect -----------------------> refused for an hour
      ^                                                 | told to resync, muted             "this machine computes
      '-------------------------------------------------'                                    wrong results"
         unmuted by agreeing on a later round, cleared by agreeing on one that counts its payload

When votes are level (1 against 1) nobody can say who is right, and the replay of the log decides:
all who voted are held back and told to replay. A replica is a pure function of the log, so a sound
machine comes to the same digest again: who comes to another one was wrong before. If sound-looking
machines still differ, a second replay would tell nothing new: they stay held back, and the run says
so, until a further node breaks the tie or one of them goes. So nobody is refused without being
outvoted twice or contradicting itself, and two sound machines never are.

A node is only blamed for a state that it had after it was told to start over: each request has a
number, and `Ready` repeats the last one heard. A request that was lost with its session is made
again and counts once."""

from dataclasses import dataclass, field

from coordinator.machine.digest_votes import DigestReports, DigestTally
from coordinator.machine.events import (
    Applied,
    AskResync,
    Effect,
    Evict,
    Ready,
    RecordDigest,
    TellMembers,
)
from coordinator.machine.membership import Membership
from protocol.ids import PeerId

DIFFERENCES_MAX = 2
"""Wrong states in a row for which a node is refused: one may be a flipped bit, two are a
machine."""

REFUSED_MS = 3_600_000
"""How long: a broken machine costs the run at most two replays an hour, a repaired one need not
wait for a day."""

RECORDS_MAX = 4096
"""Nodes with a record at most; the oldest one goes first. As many as a run may have members."""

WRONG_RESULTS = "this machine computes wrong results"


@dataclass(slots=True)
class Record:
    """What the coordinator remembers of a node that was once told to start over; it outlives its
    membership."""

    asked: int = 0
    """Number of the last request to start over; 0 once it has been obeyed, for a new process knows
    of none."""
    differed: int = 0
    """Wrong states since the node last agreed on a round that counted its payload."""
    round: int = -1
    """Of the newest wrong state."""
    muted: bool = False
    replayed: bool = False
    """A level vote has sent it through the log, and no final digest has agreed with it since."""
    refused_until_ms: int = 0


@dataclass(slots=True)
class DigestVerdicts(DigestTally):
    """Votes, and the records of those who were on the wrong side; `held` says why a node gets no
    work."""

    records: dict[PeerId, Record] = field(default_factory=dict)
    held: dict[PeerId, str] = field(default_factory=dict)
    requests: int = 0

    # ---- questions

    def refusal(self, peer: PeerId, now_ms: int) -> str:
        """Why the node may not join now; empty when it may."""
        record = self.records.get(peer)
        if record is None or record.refused_until_ms <= now_ms:
            return ""
        minutes = -(-(record.refused_until_ms - now_ms) // 60_000)
        return f"{WRONG_RESULTS}: its key is refused for {minutes} more minutes; check its memory and its graphics card"

    def muted_reason(self, peer: PeerId) -> str:
        """Why the node's payloads do not count at present; empty when they do."""
        record = self.records.get(peer)
        if record is None or not record.muted:
            return ""
        return f"its state after round {record.round} was wrong: counted when a later one agrees with the others'"

    # ---- what happens

    def report(self, said: Applied | Ready, members: Membership, now_ms: int) -> list[Effect]:
        """A member says what its state is. An `AskResync` or `Evict` for it means that it is not
        ready."""
        record = self.records.get(said.peer)
        if isinstance(said, Ready) and record:
            if said.resyncs < record.asked:
                return self._ask(
                    said.peer, said.round, "a request to start over was not heard", members
                )
            record.asked = 0
        member = members.get(said.peer)
        if (
            isinstance(said, Applied)
            and member
            and member.state != "ready"
            and not self._replays(said)
        ):
            return []  # said before it heard that it must start over
        snapshot_sha256 = said.snapshot_sha256 if isinstance(said, Applied) else b""
        passed = [*self.pass_by(said.peer, said.round), *self.overdue()]
        effects = [effect for round in passed for effect in self._count(round, members, now_ms)]
        ballot = self.take(said.round, said.peer, said.state_digest, snapshot_sha256)
        if ballot is None:
            return effects
        if ballot.final:
            return effects + self._compare(said, ballot, members, now_ms)
        return effects + self._count(said.round, members, now_ms)

    def _replays(self, said: Applied) -> bool:
        ballot = self.ballots.get(said.round)
        return ballot is not None and said.peer in ballot.before

    def gone(self, peer: PeerId, members: Membership, now_ms: int) -> list[Effect]:
        """A member went: what it said and was to say no longer holds up the others."""
        self.held.pop(peer, None)
        touched = [round for round, ballot in self.ballots.items() if ballot.forget(peer)]
        return [effect for round in touched for effect in self._count(round, members, now_ms)]

    def ahead(self, said: Ready, head_round: int, members: Membership) -> list[Effect]:
        """A member's state is from the future of a journal that was lost."""
        return self._ask(
            said.peer, head_round, f"round {said.round} is ahead of the log's {head_round}", members
        )

    # ---- verdicts

    def _count(self, round: int, members: Membership, now_ms: int) -> list[Effect]:
        ballot = self.ballots[round]
        if ballot.final:
            return self._record(round, ballot) if not ballot.awaited else []
        if ballot.before and not ballot.awaited:
            return self._weigh_replays(round, ballot, members, now_ms)
        if ballot.before:
            return []  # the replay is under way
        winner = ballot.winner()
        if winner is not None:
            return self._decide(round, ballot, winner, members, now_ms)
        return self._level(round, ballot, members) if ballot.reports and not ballot.awaited else []

    def _compare(
        self, said: Applied | Ready, ballot: DigestReports, members: Membership, now_ms: int
    ) -> list[Effect]:
        """One more report of a round whose digest is final."""
        agrees = said.state_digest == ballot.verdict
        if agrees:
            self._agrees(said.peer, said.round, ballot)
        effects = self._record(said.round, ballot) if not agrees or not ballot.awaited else []
        return (
            effects if agrees else effects + self._differs(said.peer, said.round, members, now_ms)
        )

    def _decide(
        self, round: int, ballot: DigestReports, verdict: int, members: Membership, now_ms: int
    ) -> list[Effect]:
        said = {peer: digest for peer, (digest, _) in sorted(ballot.reports.items())}
        ballot.decide(verdict)
        for peer in (peer for peer, digest in said.items() if digest == verdict):
            self._agrees(peer, round, ballot)
        effects = self._record(round, ballot)
        for peer in (peer for peer, digest in said.items() if digest != verdict):
            effects += self._differs(peer, round, members, now_ms)
        return effects

    def _record(self, round: int, ballot: DigestReports) -> list[Effect]:
        """Put a verdict, or its withdrawal (no reports), on record."""
        if ballot.verdict is None:
            return [RecordDigest(round, 0, 0, len(ballot.reports) + len(ballot.before), b"")]
        if not ballot.closed:
            ballot.decide(ballot.verdict)
            ballot.close()
        if round == self.newest:
            self.last = ballot.verdict
        return [
            RecordDigest(
                round, ballot.verdict, ballot.reported, ballot.dissent, ballot.snapshot_sha256
            )
        ]

    def _level(self, round: int, ballot: DigestReports, members: Membership) -> list[Effect]:
        """Nobody can say who is right: those who have not yet replayed the log do."""
        ballot.verdict = None
        effects = self._record(round, ballot)
        fresh = [peer for peer in sorted(ballot.reports) if not self._recorded(peer).replayed]
        if not fresh:
            self._hold(round, ballot)
            return effects
        reason = (
            f"votes of {len(ballot.reports)} nodes on the state after round {round} are level: "
        )
        for peer in ballot.reports:
            self.held[peer] = reason + "the replay of the log decides"
        for peer in fresh:
            self.records[peer].replayed = True
            ballot.before[peer] = ballot.reports.pop(peer)[0]
            effects += self._ask(peer, round, self.held[peer], members)
            ballot.awaited.add(peer)
        return effects

    def _weigh_replays(
        self, round: int, ballot: DigestReports, members: Membership, now_ms: int
    ) -> list[Effect]:
        """All who were asked have replayed, or gone: whose digest has changed was wrong."""
        changed = [
            peer
            for peer, digest in sorted(ballot.before.items())
            if peer in ballot.reports and ballot.reports[peer][0] != digest
        ]
        for peer in ballot.before.keys() & ballot.reports.keys():
            self._recorded(peer).asked = 0  # it has started over: what it says now is its own fault
        ballot.before = {}
        steady = {peer: said for peer, said in ballot.reports.items() if peer not in changed}
        verdict, _ = ballot.leading(steady or None)
        effects: list[Effect] = []
        for peer in changed:
            effects += self._blame(peer, round, members, now_ms)
        for peer in [effect.peer for effect in effects if isinstance(effect, Evict)]:
            ballot.forget(peer)
        if verdict is not None:
            return effects + self._decide(round, ballot, verdict, members, now_ms)
        self._hold(round, ballot)
        return effects

    def _hold(self, round: int, ballot: DigestReports) -> None:
        """Those who differ go no further until a new report or a departure settles it."""
        for peer in ballot.reports:
            self.held[peer] = (
                f"states after round {round} differ even after a replay: waits for a further node"
            )

    # ---- consequences

    def _agrees(self, peer: PeerId, round: int, ballot: DigestReports) -> None:
        self.held.pop(peer, None)
        record = self.records.get(peer)
        if record is None or not ballot.final:
            return
        record.replayed = False
        if round > record.round:
            record.muted = False
            if peer in ballot.authors:
                record.differed = 0

    def _differs(self, peer: PeerId, round: int, members: Membership, now_ms: int) -> list[Effect]:
        """The node is outvoted: it starts over, or is refused."""
        self.held.pop(peer, None)
        if members.get(peer) is None:
            return []
        record = self._recorded(peer)
        if record.asked:  # it said so before it could start over: one offence
            record.round = max(record.round, round)
            return []
        effects = self._blame(peer, round, members, now_ms)
        if not effects:
            effects = self._ask(
                peer, round, f"state after round {round} differs from the majority's", members
            )
        return effects

    def _blame(self, peer: PeerId, round: int, members: Membership, now_ms: int) -> list[Effect]:
        record = self._recorded(peer)
        record.differed, record.muted, record.round = (
            record.differed + 1,
            True,
            max(record.round, round),
        )
        if record.differed < DIFFERENCES_MAX:
            return []
        record.refused_until_ms, record.differed = now_ms + REFUSED_MS, DIFFERENCES_MAX - 1
        members.evict(peer)
        minutes = REFUSED_MS // 60_000
        reason = f"{WRONG_RESULTS}: wrong states twice in a row, the last after round {round}; refused for {minutes} min"
        return [Evict(peer, reason, True), TellMembers(gone=(peer,))]

    def _ask(self, peer: PeerId, round: int, reason: str, members: Membership) -> list[Effect]:
        record = self._recorded(peer)
        self.requests += 1
        record.asked = self.requests
        self.excuse(peer)
        members.set_back(peer)
        return [AskResync(peer, round, reason, record.asked)]

    def _recorded(self, peer: PeerId) -> Record:
        if peer not in self.records and len(self.records) >= RECORDS_MAX:
            del self.records[next(iter(self.records))]
        return self.records.setdefault(peer, Record())

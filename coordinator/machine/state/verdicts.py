"""The verdicts on reported states: the tally, the records of nodes on the wrong side, and the
auditors. Part of a run's state; `coordinator.machine.rules.judging` and `auditing` beside it change
it.
"""

from dataclasses import dataclass, field

from coordinator.machine.events.effects import Effect, RecordDigest
from coordinator.machine.state.records import RECORDS_MAX, Record
from coordinator.machine.state.votes import DigestTally
from protocol.ids import PeerId

AUDITORS_MAX = 8
"""Auditors of a run: each keeps the words of the newest rounds, and is a relay beside those that
everybody may run."""


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

    # ---- changes

    def record_of(self, peer: PeerId) -> Record:
        """The node's record; makes one, in place of the oldest, when there is none."""
        if peer not in self.records and len(self.records) >= RECORDS_MAX:
            del self.records[next(iter(self.records))]
        return self.records.setdefault(peer, Record())

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

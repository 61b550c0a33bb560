"""The whole state of a run as one value: what the events have made of it.

Its rules change it, `coordinator.state_snapshot` encodes it as it is. A field that is added here is
therefore saved and restored without further code; it needs a new `coordinator.bound_run.FORMAT`.
"""

from dataclasses import dataclass, field

from coordinator.machine.events.acts import first_digest
from coordinator.machine.events.inputs import Applied, Audited, Ready
from coordinator.machine.state.checkpoints import Checkpoints
from coordinator.machine.state.consensus import Consensus
from coordinator.machine.state.evaluation import Evaluation
from coordinator.machine.state.member import MembershipState
from coordinator.machine.state.operator import OperatorState
from coordinator.machine.state.pace import Pace, Period
from coordinator.machine.state.sums.relays import AddingRelays
from coordinator.machine.state.undecided_round import UndecidedRound
from coordinator.machine.state.verdicts import DigestVerdicts
from coordinator.machine.state.voids import Voids
from protocol.clock import stated_slot
from protocol.codec.chain import Reschedule, Restart
from protocol.codec.commits import genesis_digest
from protocol.ids import Digest, PeerId, RunId
from protocol.runfile import RunSpec, ScheduleSpec
from protocol.schedule import in_force
from protocol.shuffle import DataOrder


@dataclass(slots=True)
class RunTotals:
    """Counters since the start of the run; none of them ever falls."""

    committed: int = 0
    """Committed rounds, which are the steps of the run."""
    skipped: int = 0
    samples_trained: int = 0
    """Samples of committed payloads."""
    samples_void: int = 0
    """Samples among these whose payload became void."""
    samples_left_out: int = 0
    """Leased samples that no commit counts, of payloads that were late or left out and of members
    that went; those that are leased again count again."""
    samples_lost: int = 0
    """Samples among these that did not go back to the data order."""
    payloads: int = 0
    """Committed payloads."""
    payload_bytes: int = 0
    result_bytes: int = 0
    """Bytes of the sums that nodes fetched in place of payloads."""

    @property
    def samples_counted(self) -> int:
        """Samples of the payloads from which the parameters are made."""
        return self.samples_trained - self.samples_void


@dataclass(slots=True)
class RunEnd:
    """Progress of a run from its last step to its end."""

    finished: bool = False
    """All steps are committed, or the operator has ended the run."""
    concluded: bool = False
    """The nodes were told that the run is finished and that no node needs them any more."""
    conclude_by_ms: int = 0
    """Latest time for that, once the run is finished."""


@dataclass(slots=True)
class ClosedEarly:
    """A round that was decided before `publish_by`, without these members."""

    round: int
    publish_by_ms: int
    silent: set[PeerId]
    soon_ms: int = 0
    """Time until which a member came with the others, where that is judged."""
    judged: int = 0
    """Members whose pace was judged."""


@dataclass(slots=True)
class RunState:
    """State of one run as its coordinator knows it."""

    pace: Pace
    head: Digest
    """Digest of the newest entry of the chain; of genesis before the first."""
    period: Period = field(default_factory=Period)
    head_round: int = -1
    decided_round: int = -1
    """Newest round that was committed or skipped."""
    next_round: int = 0
    undecided: list[UndecidedRound] = field(default_factory=list)
    """Rounds that were opened after `decided_round`, oldest first."""
    closed_early: list[ClosedEarly] = field(default_factory=list)
    """Rounds whose `publish_by` was still to come at the newest decision, oldest first."""
    members: MembershipState = field(default_factory=MembershipState)
    relays: AddingRelays = field(default_factory=AddingRelays)
    """Those that offer to add."""
    verdicts: DigestVerdicts = field(default_factory=DigestVerdicts)
    voids: Voids = field(default_factory=Voids)
    consensus: Consensus = field(default_factory=Consensus)
    schedules: list[Reschedule] = field(default_factory=list)
    """Changes of length and learning rate, oldest first."""
    restarts: list[Restart] = field(default_factory=list)
    """Restarts from a checkpoint, oldest first."""
    order: DataOrder = field(default_factory=DataOrder)
    totals: RunTotals = field(default_factory=RunTotals)
    loss: float | None = None
    """Training loss of the newest commit, in nats per token."""
    end: RunEnd = field(default_factory=RunEnd)
    operator: OperatorState = field(default_factory=OperatorState)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    evaluation: Evaluation = field(default_factory=Evaluation)
    reason: str = "no member has joined yet"
    """Text for the operator: why the run does what it does."""
    last_ms: int = 0
    """Time of the newest durable event."""
    unready_since_ms: int = 0
    """Time since which no member is ready; 0 while one is."""

    def schedule(self, spec: RunSpec) -> ScheduleSpec:
        """The schedule in force: the run file's, as the operator has changed it."""
        return in_force(spec.schedule, self.schedules[-1:])

    @property
    def stands_still(self) -> bool:
        """Whether no round is open, and none will be: the run has ended or is paused."""
        return not self.undecided and (self.end.finished or self.operator.paused is not None)

    def undecided_round(self, round: int) -> UndecidedRound | None:
        """The round with this number, while it is undecided."""
        return next((each for each in self.undecided if each.round == round), None)

    def is_outdated(self, said: Ready | Applied | Audited) -> bool:
        """Whether a node speaks of a state that the log does not make, and will discard: it has not
        heard of a void or of a restart, or it knows a journal that was lost.
        """
        made = [entry.round for entry in self.restarts]
        if said.round > self.head_round or (made and said.round < made[-1]):
            return True
        passed = sum(round <= said.round for round in made)
        return said.voids != self.voids.expected(said.round) + passed


def new_state(spec: RunSpec, run_id: RunId) -> RunState:
    """The state before the first event."""
    operator = OperatorState(head=first_digest(run_id))
    return RunState(Pace(stated_slot(spec.rounds)), genesis_digest(run_id), operator=operator)

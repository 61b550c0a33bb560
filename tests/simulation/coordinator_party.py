"""The coordinator of a simulated run: the real machine, sequencer, signatures and servicer, with a
journal in memory.

The journal is the disk: an event has happened once `append` has taken it. So the referee judges
there, batch by batch, and a life of the process that ends forgets everything that it had only in
memory. Every effect must be in the journal before it leaves the process, and a restart must find in
the journal exactly the state before it. The machine's invariants are checked after each event.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.checkpoints.desk import CheckpointDesk
from coordinator.checkpoints.store import CheckpointStore
from coordinator.desk import OperatorDesk
from coordinator.history import Contributions, History
from coordinator.journal import RecordedCommit, RecordedEntry
from coordinator.machine.decided_rounds import DecidedRound
from coordinator.machine.events.acts import Act, Ordered
from coordinator.machine.events.effects import (
    CommitRound,
    Effect,
    FinishRun,
    OpenRound,
    RecordDigest,
)
from coordinator.machine.events.inputs import Event
from coordinator.machine.machine import RunMachine
from coordinator.machine.screening import is_transient
from coordinator.sequencer import Outcome, Sequencer
from coordinator.service.door import Door
from coordinator.service.heads import HeadDesk
from coordinator.service.server import CoordinatorService
from coordinator.state_snapshot import durable_part
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, SignedCommit, open_commit
from protocol.errors import LocalProtocolError, SettingsError, StorageError
from protocol.handshake import public_bytes
from protocol.ids import PeerId
from protocol.runfile import RunSpec, run_id
from protocol.shuffle import Share
from protocol.sums.signed import SumSigned
from tests.simulation.checkers import Referee, Violation, require
from tests.simulation.measuring import LossJudge
from tests.simulation.session import COORDINATOR, Switchboard
from tests.simulation.world import Killed, Process, World

SUPERVISOR_MS = (1, 8_000)
"""Least and longest time after which a coordinator that died is started again, mostly soon."""


@dataclass(frozen=True, slots=True)
class Row:
    """One event on disk, with the effects that the machine returned."""

    at_ms: int
    kind: type
    body: bytes
    effects: tuple[Effect, ...]


class WatchedRounds(RunMachine):
    """The machine, and the events that it has handled and that are not on disk yet."""

    def __init__(self, spec: RunSpec, name: str, journal: "MemoryJournal") -> None:
        super().__init__(spec, run_id(spec, journal.public_key))
        self.fresh: list[tuple[int, Event, tuple[Effect, ...]]] = []
        self._journal = journal

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        effects = super().handle(event, now_ms)
        try:
            self.validate()
        except LocalProtocolError as error:
            raise Violation(f"after {event}: {error}") from None
        if (row := self._journal.replaying) is not None:
            require(
                row.effects == tuple(effects),
                "a replay says",
                effects,
                "to",
                event,
                "where it said",
                row.effects,
            )
        else:
            self.fresh.append((now_ms, event, tuple(effects)))
        return effects


class OpenDoor(Door):
    """No node of a simulation is too fast: their rates are not part of it."""

    def refuses_join(self, peer: PeerId, host: str, *, known: bool) -> str:
        return ""

    def refuses_call(self, host: str) -> str:
        return ""

    async def pace(self, peer: PeerId, host: str, message: wire.NodeMessage) -> None:
        return


class MemoryJournal:
    """`coordinator.journal.Journal` in memory: an append is whole or does not happen."""

    def __init__(self, world: World, key: Ed25519PrivateKey) -> None:
        self.world, self.public_key = world, public_bytes(key)
        self.rows: list[Row] = []
        self.signed: dict[int, RecordedCommit] = {}
        self.commits_by_round: dict[int, Commit] = {}
        self.digests: dict[int, RecordDigest] = {}
        self.chained: list[RecordedEntry] = []
        self.states: list[tuple[int, bytes]] = []
        self.replaying: Row | None = None
        self.steps_left: int | None = None
        self.full = False
        self.failures = 0
        self.machine: WatchedRounds | None = None
        self.referee: Referee | None = None
        self.opened_until = -1
        self.let_go: list[PeerId] = []
        """Members that had the whole run when it was concluded."""
        self.durable_effects = 0

    def append(
        self,
        events: Sequence[tuple[int, Event]],
        commits: Sequence[tuple[int, SignedCommit, float]],
        digests: Sequence[RecordDigest],
        state: bytes | None = None,
        entries: Sequence[RecordedEntry] = (),
        *,
        trained: Mapping[int, tuple[tuple[Share, ...], ...]],
        signed_sums: Mapping[int, tuple[SumSigned, ...]],
        signed_rounds: int,
        decided: Sequence[DecidedRound],
    ) -> None:
        """One transaction; the process may die before it or after it."""
        self._step()
        if self.full:
            self.failures += 1
            raise StorageError("cannot use the journal: the disk is full")
        machine, referee = self.machine, self.referee
        assert machine is not None
        assert referee is not None
        fresh, machine.fresh = machine.fresh, []
        handled = [
            (at_ms, event) for at_ms, event, effects in fresh if not is_transient(event, effects)
        ]
        require(handled == list(events), "the journal is given", events, "of the handled", handled)
        for at_ms, event, effects in fresh:
            self.world.say("event %s", event)
            for effect in effects:
                self.world.say("    -> %s", effect)
                if isinstance(effect, OpenRound):
                    self.opened_until = max(self.opened_until, effect.round)
                if isinstance(effect, FinishRun) and not self.let_go:
                    self.let_go = [
                        member.peer
                        for member in machine.members
                        if member.round == machine.state.head_round
                    ]
            referee.saw(event, effects, judge_books=False)
            self.durable_effects += len(effects)
            if not is_transient(event, effects):
                self.rows.append(Row(at_ms, type(event), msgspec.msgpack.encode(event), effects))
        referee.check_books()
        for round, signed, loss in commits:
            require(round not in self.signed, "round", round, "is committed a second time")
            self.commits_by_round[round] = open_commit(signed, self.public_key)
            self.signed[round] = RecordedCommit(
                round, signed, loss, None, 0, 0, b"", trained[round], signed_sums.get(round, ())
            )
        for row in digests:
            self.digests[row.round] = row
        self.chained += entries
        entries_seen = len(referee.chain) + len(referee.orders.schedules)
        require(len(self.chained) == entries_seen, "entries on disk", self.chained)
        if state is not None:
            self.states.append((len(self.rows), state))
        self._step()

    def _step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.steps_left = None
                raise Killed

    # ---- reading

    def newest_snapshot(self) -> tuple[int, bytes | None]:
        """(sequence of the last event in it, state)."""
        return self.states[-1] if self.states else (0, None)

    def numbered_events(self, after: int = 0) -> Iterator[tuple[int, int, Event]]:
        """Events after a sequence number; the machine that takes them must return the same effects
        as the first time.
        """
        for number, row in enumerate(self.rows[after:], after + 1):
            self.replaying = row
            yield number, row.at_ms, msgspec.msgpack.decode(row.body, type=row.kind)
        self.replaying = None

    def commits(
        self, after_round: int, count: int, *, for_audit: bool = False
    ) -> list[RecordedCommit]:
        """Commits of rounds after `after_round`, oldest first; as in a journal."""
        rounds = [round for round in sorted(self.signed) if round > after_round][:count]
        found = [self._recorded(round) for round in rounds]
        if for_audit:
            return found
        bare = [replace(row.signed, author_list=b"") for row in found]
        pairs = zip(found, bare, strict=True)
        return [replace(row, signed=signed, trained=(), signed_sums=()) for row, signed in pairs]

    def last_commits(self, count: int) -> list[RecordedCommit]:
        """The newest commits, newest first."""
        return [self._recorded(round) for round in sorted(self.signed, reverse=True)[:count]]

    def entries(self, first: int, last: int) -> list[RecordedEntry]:
        """Entries of the chain around the commits of these rounds, and those about them."""
        before = max((round for round in self.signed if round < first), default=-1)
        return [
            row
            for row in self.chained
            if first <= row.round <= last or before <= row.after_round <= last
        ]

    def commit_before(self, round: int) -> Commit | None:
        """The commit before a round."""
        earlier = [known for known in self.commits_by_round if known < round]
        return self.commits_by_round[max(earlier)] if earlier else None

    def _recorded(self, round: int) -> RecordedCommit:
        plain, said = self.signed[round], self.digests.get(round)
        if said is None:
            return plain
        return replace(
            plain,
            state_digest=said.state_digest,
            reports=said.reports,
            dissent=said.dissent,
            snapshot_sha256=said.snapshot_sha256,
        )


class SimulatedCoordinator:
    """Lives, dies and comes back on its journal."""

    def __init__(
        self,
        world: World,
        switchboard: Switchboard,
        spec: RunSpec,
        failed: Callable[[str, Exception], None],
    ):
        self.world, self.switchboard, self.spec = world, switchboard, spec
        self._key = Ed25519PrivateKey.from_private_bytes(world.random.randbytes(32))
        self._failed = failed
        self.journal = MemoryJournal(world, self._key)
        self.run_id = run_id(spec, self.journal.public_key)
        self.process: Process | None = None
        self.rounds = self._fresh_machine()
        self.referee = Referee(self.rounds)
        self.journal.referee = self.referee
        self.restarts = -1
        self.sequencer: Sequencer | None = None
        """Of the present life, once it takes events."""
        self.trust: list[Event] = []
        """The operator's word, given at each start; acts at the first one alone."""
        self.desk: OperatorDesk | None = None
        """Of the present life, once it takes events."""
        self.down_ms: Callable[[], float] = self._drawn_pause_ms
        """The time after which a coordinator that died is started again."""
        self.loss_judge = LossJudge()
        self._emitted = 0
        self._lost: object = None

    def _fresh_machine(self) -> WatchedRounds:
        machine = WatchedRounds(self.spec, COORDINATOR, self.journal)
        self.journal.machine = machine
        return machine

    @property
    def runs(self) -> bool:
        """Whether there is a process; it may be stopped."""
        return self.process is not None and self.process.state != "dead"

    def start(self) -> None:
        """A new process on the same journal, whose wall clock may say anything."""
        if self.runs:
            return
        hours = self.world.random.choice([0, 0, -3, 5])
        self.process = Process(
            COORDINATOR, self.world.random.randrange(10**12), 0, hours * 3600 * 10**6
        )
        self.process.on_death = self._died
        self.switchboard.network.processes[COORDINATOR] = self.process
        self.journal.steps_left = None
        self.restarts += 1
        self.world.say("the coordinator starts")
        self.world.start(self.process, self._main(self.process))

    def _died(self) -> None:
        self.world.say("the coordinator dies")
        self.sequencer = self.desk = None
        self._lost = None if self.rounds.fresh else durable_part(self.rounds.state)
        self.switchboard.died(COORDINATOR)
        self.world.after(self.down_ms(), self.start)

    def _drawn_pause_ms(self) -> float:
        least, most = SUPERVISOR_MS
        return least + (most - least) * self.world.random.random() ** 3

    def post(self, event: Event) -> None:
        """Hand an event to the sequencer, if there is one."""
        process, sequencer = self.process, self.sequencer
        if process is not None and process.state == "runs" and sequencer is not None:
            self.world.call_soon(lambda: sequencer.post(event), context=process.context)

    def order(self, act: Act, answered: Callable[[], None]) -> None:
        """Give an order at the desk, if there is one, and say when it was taken or objected to."""
        process, desk = self.process, self.desk
        if process is None or process.state != "runs" or desk is None:
            return

        async def give() -> None:
            with contextlib.suppress(SettingsError):
                await desk.order(act)
            answered()

        self.world.call_soon(lambda: self.world.create_task(give()), context=process.context)

    async def _main(self, process: Process) -> None:
        try:
            self.rounds = self._fresh_machine()
            self.referee.machine = self.rounds
            sequencer = Sequencer(self.rounds, self.journal, self._key, self._emit)  # type: ignore[arg-type]
            self.journal.replaying = None
            self.rounds.fresh.clear()
            self._emitted = self.journal.durable_effects
            await asyncio.to_thread(self._recover, sequencer)
            self._service = CoordinatorService(
                sequencer,
                self.journal,  # type: ignore[arg-type]
                self.journal.public_key,
                dict,
                OpenDoor(Path()),
                checkpoints=CheckpointDesk(
                    sequencer, CheckpointStore(Path("checkpoints")), lambda: Contributions((), 0)
                ),
                heads=HeadDesk(
                    self.journal,  # type: ignore[arg-type]
                    self.run_id,
                    self.journal.public_key,
                    Path(),
                ),
                history=History(),
            )
            self._service.heads.recover()
            self.switchboard.servicer, self.sequencer = self._service, sequencer
            self.desk = OperatorDesk(sequencer, self._service)
            for event in self.trust:
                if not (self.restarts and isinstance(event, Ordered)):
                    sequencer.post(event)
            await sequencer.run()
        except StorageError as error:
            self.world.say("the coordinator gives up: %s", error)
            if not self.journal.failures:
                self._failed(COORDINATOR, error)
        except Exception as error:
            self._failed(COORDINATOR, error)
        process.kill()

    def _recover(self, sequencer: Sequencer) -> None:
        if self._lost is not None:
            probe = RunMachine(self.spec, self.run_id)
            _fold(probe, self.journal)
            require(
                durable_part(probe.state) == self._lost,
                "the journal does not rebuild the state that was lost",
            )
        sequencer.recover()
        # the effects of a restart reach no session
        self._emitted = self.journal.durable_effects

    def _emit(self, outcome: Outcome) -> None:
        self._emitted += len(outcome.effects)
        require(
            self._emitted <= self.journal.durable_effects,
            "effects leave before they are in the journal",
        )
        for effect in outcome.effects:
            if isinstance(effect, CommitRound):
                signed = outcome.signed[effect.commit.round]
                require(
                    self.journal.signed[effect.commit.round].signed == signed,
                    "another commit is told",
                    effect,
                )
        require(self._service.heads.fault is None, self._service.heads.fault)
        self.loss_judge.saw(outcome.effects)
        self._service.delivery.emit(outcome)


def _fold(machine: RunMachine, journal: MemoryJournal) -> None:
    """The state that the whole history makes."""
    try:
        for _, at_ms, event in journal.numbered_events():
            journal.replaying = None
            machine.handle(event, at_ms)
    except Exception as error:
        raise Violation(f"the journal does not replay: {error}") from error

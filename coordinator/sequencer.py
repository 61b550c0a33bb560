"""Puts all events of a run into one order: machine, then journal, then effects.

A caller with an event awaits `submit`. A single loop takes the events that wait, lets the machine
handle them, writes the batch to the journal in one transaction, and only then lets the effects out:
a crash at any instruction loses only decisions that no node was told.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.journal import Journal, RecordedEntry
from coordinator.machine.decided_rounds import DecidedRound, OpenRounds
from coordinator.machine.events.effects import Chained, CommitRound, Effect, RecordDigest
from coordinator.machine.events.inputs import Event, Restarted
from coordinator.machine.machine import RunMachine
from coordinator.machine.screening import is_transient, screened
from coordinator.state_snapshot import decode_state, encode_state
from protocol.codec.chain import ChainEntry, SignedEntry, Void, sign_entry
from protocol.codec.commits import SignedCommit, sign_commit
from protocol.errors import LockstepError, RemoteProtocolError, StorageError
from protocol.ids import sha256
from protocol.shortage import Patience

_log = logging.getLogger("lockstep.coordinator")

BATCH_EVENTS_MAX = 512
"""Events in one journal transaction; bounds the time that a reply waits for the events before
it."""

QUEUE_EVENTS_MAX = 4096
"""Events that may wait; a sender that finds the queue full waits too, which holds back its
stream."""

SNAPSHOT_EVENTS = 2_000
"""Events between two snapshots of the state, which is some tens of bytes for each: a restart folds
less than twice this number, in a quarter of a second of one core."""

HELD_UP_MS = 3_000
"""Delay of an instant from which on this process is at fault, and not the members; a busy machine
is late by less."""

_USE = "; the file is damaged, or another release of Lockstep wrote it: use that release"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Effects of one batch that is on disk, and its signed commits by round."""

    effects: tuple[Effect, ...]
    signed: dict[int, SignedCommit]
    before: dict[int, tuple[SignedEntry, ...]] = field(default_factory=dict)
    """The entries of the chain between each commit and the one before it, by round."""
    entries: dict[ChainEntry, SignedEntry] = field(default_factory=dict)
    """The signed entries of this batch."""
    decided: tuple[DecidedRound, ...] = ()
    """The rounds that it decides, in their order."""


@dataclass(slots=True)
class _Batch:
    now_ms: int
    events: list[tuple[int, Event]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


class Sequencer:
    """Serialises the events of one run. `emit` is called with every outcome, in order."""

    def __init__(
        self,
        rounds: RunMachine,
        journal: Journal,
        key: Ed25519PrivateKey,
        emit: Callable[[Outcome], None],
    ) -> None:
        self.rounds = rounds
        self._journal, self._key, self._emit = journal, key, emit
        self.patience = Patience(time.sleep, _say_short)
        """The coordinator's, for disk work in threads."""
        self._queue: asyncio.Queue[tuple[Event, asyncio.Future[None]]] = asyncio.Queue(
            QUEUE_EVENTS_MAX
        )
        self._open_rounds = OpenRounds()
        self._clock_origin_ms = 0
        self._events_since_snapshot = 0
        self.decided_round, self.head_round = -1, -1
        """Last rounds that are on disk. `rounds` may be ahead of them while a batch is being
        written; nodes are told only these."""
        self.tail: tuple[SignedEntry, ...] = ()
        """Entries of the chain after the commit of `head_round`, on disk."""
        self._next_tail: tuple[SignedEntry, ...] = ()

    def recover(self) -> int:
        """Fold the journal into the machine; call once, before `run`. Returns the number of events.

        Raises `StorageError` when the events do not lead to the newest commit on record: to decide
        a round a second time would break the chain that nodes have applied.
        """
        count = self._fold()
        self.head_round = head_round = self.rounds.state.head_round
        behind = self._journal.entries(head_round + 1, head_round + 1)
        self.tail = tuple(row.signed for row in behind if row.after_round == head_round)
        self._next_tail = self.tail
        self._compare_head()
        self._open_rounds.resume(self.rounds.state.undecided)
        origin_ms = self.rounds.state.last_ms if count else int(time.time() * 1000)
        self._clock_origin_ms = origin_ms - int(time.monotonic() * 1000)
        if count:
            batch = _Batch(self.now_ms())
            self._handle(Restarted(), batch)
            self._record(batch)  # no session is open yet that could receive the effects
        self._publish_rounds()
        return count

    def _fold(self) -> int:
        count, state = self._journal.newest_snapshot()
        if state is not None:
            self.rounds.resume(decode_state(state))
        for sequence, at_ms, event in self._journal.numbered_events(count):
            try:
                self.rounds.handle(event, at_ms)
            except LockstepError as error:
                raise StorageError(
                    f"journal event {sequence} ({event}) does not replay: {error}{_USE}"
                ) from None
            count = sequence
            self._events_since_snapshot += 1
        return count

    def _compare_head(self) -> None:
        state = self.rounds.state
        for newest in self._journal.last_commits(1):
            last = self.tail[-1].body if self.tail else newest.signed.body
            if sha256(last) != state.head:
                raise StorageError(
                    f"the journal's events end at a commit of round {state.head_round}, the newest "
                    f"on record is of round {newest.round} and differs{_USE}"
                )

    def now_ms(self) -> int:
        """The run's clock: the wall clock when the run began, plus the time for which a
        coordinator has worked on it since. It never runs backwards. A restart goes on from the
        journal's last event, so neither time without a coordinator nor a wall clock that was set
        counts: no deadline, lease or refusal ends early, and a clock that was days ahead once
        leaves nothing behind.
        """
        return self._clock_origin_ms + int(time.monotonic() * 1000)

    async def submit(self, event: Event) -> None:
        """Return once the event is on disk and its effects are out. Raises the machine's
        `RemoteProtocolError`.
        """
        done = asyncio.get_running_loop().create_future()
        await self._queue.put((event, done))
        await done

    def post(self, event: Event) -> None:
        """Hand over an event without waiting for it; it is dropped when the queue is full."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait((event, asyncio.get_running_loop().create_future()))

    async def run(self) -> None:
        """Work until cancelled. A `StorageError` from the journal ends it: no effect may leave
        unwritten.
        """
        while True:
            waiting = await self._gather()
            batch = _Batch(self.now_ms())
            if self._was_held_up(batch.now_ms):
                self._handle(Restarted(), batch)
            handled = [done for event, done in waiting if self._try(event, done, batch)]
            while due := self.rounds.due(batch.now_ms):
                for event in due:
                    self._handle(event, batch)
            if batch.events or batch.effects:
                outcome = await asyncio.to_thread(self._record, batch)
                self._publish_rounds()
                self._emit(outcome)
            _resolve(handled)

    def _was_held_up(self, now_ms: int) -> bool:
        """Whether this process slept through an instant (a stopped process, a suspended machine, a
        stuck disk). The members are then not to blame for the silence: the run continues as after
        a restart, with leases and instants extended.
        """
        due_ms = self.rounds.next_due_ms()
        return due_ms is not None and now_ms - due_ms > HELD_UP_MS

    def _try(self, event: Event, done: asyncio.Future[None], batch: _Batch) -> bool:
        try:
            self._handle(event, batch)
        except RemoteProtocolError as error:
            if not done.done():
                done.set_exception(error)
            return False
        return True

    def _handle(self, event: Event, batch: _Batch) -> None:
        event = screened(event, self.rounds)
        effects = self.rounds.handle(event, batch.now_ms)
        batch.effects += effects
        if not is_transient(event, effects):
            batch.events.append((batch.now_ms, event))

    def _record(self, batch: _Batch) -> Outcome:
        decided = self._open_rounds.follow(batch.effects, batch.now_ms)
        commits = [effect for effect in batch.effects if isinstance(effect, CommitRound)]
        signed = {effect.commit.round: sign_commit(effect.commit, self._key) for effect in commits}
        before, entries, rows_of_entries = self._chained(batch.effects)
        digests = [effect for effect in batch.effects if isinstance(effect, RecordDigest)]
        rows = [
            (effect.commit.round, signed[effect.commit.round], effect.loss) for effect in commits
        ]
        self._events_since_snapshot += len(batch.events)
        wanted = self._events_since_snapshot >= SNAPSHOT_EVENTS
        state = encode_state(self.rounds.state) if wanted else None
        trained = {effect.commit.round: effect.trained for effect in commits if effect.trained}
        sums = {effect.commit.round: effect.signed for effect in commits if effect.signed}
        parts = batch.events, rows, digests, state, rows_of_entries
        kept = self.rounds.spec.retention.log_rounds
        self.patience.outlast(
            lambda: self._journal.append(
                *parts, trained=trained, signed_sums=sums, signed_rounds=kept, decided=decided
            )
        )
        if state is not None:
            self._events_since_snapshot = 0
        return Outcome(tuple(batch.effects), signed, before, entries, tuple(decided))

    def _chained(
        self, effects: Iterable[Effect]
    ) -> tuple[
        dict[int, tuple[SignedEntry, ...]], dict[ChainEntry, SignedEntry], list[RecordedEntry]
    ]:
        """The entries of the chain in front of each commit, the new ones, and their rows."""
        before, entries, rows = {}, dict[ChainEntry, SignedEntry](), list[RecordedEntry]()
        tail, head_round = self.tail, self.head_round
        for effect in effects:
            if isinstance(effect, CommitRound):
                before[effect.commit.round], tail = tail, ()
                head_round = effect.commit.round
            elif isinstance(effect, Chained):
                entry = effect.entry
                entries[entry] = signed = sign_entry(entry, self._key)
                about = entry.round if isinstance(entry, Void) else -1
                rows.append(RecordedEntry(head_round, about, signed))
                tail = (*tail, signed)
        self._next_tail = tail
        return before, entries, rows

    def _publish_rounds(self) -> None:
        state = self.rounds.state
        self.decided_round, self.head_round = state.decided_round, state.head_round
        self.tail = self._next_tail

    async def _gather(self) -> list[tuple[Event, asyncio.Future[None]]]:
        """The events that wait; if none does, the first to come before the next instant is due.

        Events that have arrived go before instants that are due: after a slow write no member is
        late or lapsed whose message is here.
        """
        waiting: list[tuple[Event, asyncio.Future[None]]] = []
        if self._queue.empty():
            due_ms = self.rounds.next_due_ms()
            timeout = None if due_ms is None else max(0, due_ms - self.now_ms()) / 1000
            try:
                async with asyncio.timeout(timeout):
                    waiting.append(await self._queue.get())
            except TimeoutError:
                return []
        while len(waiting) < BATCH_EVENTS_MAX and not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        return waiting


def _say_short(reason: str) -> None:
    _log.warning("waits for descriptors or memory", extra={"reason": reason})


def _resolve(handled: Iterable[asyncio.Future[None]]) -> None:
    for done in handled:
        if not done.done():
            done.set_result(None)

"""The one place where events become state, journal and effects, in that order.

Whoever has an event awaits `submit`. A single loop takes what has gathered, lets the machine handle
it, writes the batch to the journal in one transaction, and only then lets the effects out: a crash
at any instruction loses at most what nobody was told."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.journal import Journal
from coordinator.machine.events import (
    CommitRound,
    Effect,
    Event,
    Heartbeat,
    RecordDigest,
    Restarted,
)
from coordinator.machine.rounds import Rounds
from coordinator.state_snapshot import recall, remember
from protocol.commits import SignedCommit, sign_commit
from protocol.errors import LockstepError, RemoteProtocolError, StorageError
from protocol.ids import sha256

BATCH_EVENTS_MAX = 512
"""Events in one journal transaction: bounds how long a reply can wait for those before it."""

QUEUE_EVENTS_MAX = 4096
"""Events that may wait; a sender that finds it full waits in turn, which holds back its stream."""

_USE = "; the file is damaged, or another release of Lockstep wrote it: use that one"

SNAPSHOT_EVENTS = 20_000
"""Events between two snapshots of the state: a restart folds fewer than twice as many, in about a
second."""

HELD_UP_MS = 3_000
"""An instant handled this long after it was due was missed by this process, not by its members; a
busy machine is late by less."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Effects of one batch that is safely on disk; commits are signed, by round."""

    effects: tuple[Effect, ...]
    signed: dict[int, SignedCommit]


@dataclass(slots=True)
class _Batch:
    events: list[tuple[int, Event]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


class Sequencer:
    """Serialises all events of one run. `emit` is called with every outcome, in order."""

    def __init__(
        self,
        rounds: Rounds,
        journal: Journal,
        key: Ed25519PrivateKey,
        emit: Callable[[Outcome], None],
    ) -> None:
        self.rounds = rounds
        self._journal, self._key, self._emit = journal, key, emit
        self._queue: asyncio.Queue[tuple[Event, asyncio.Future[None]]] = asyncio.Queue(
            QUEUE_EVENTS_MAX
        )
        self._clock_origin_ms = 0
        self._unremembered = 0
        self.decided_round, self.head_round = -1, -1
        """As on disk: what nodes may be told. Those of `rounds` are ahead of it while a batch is
        being written."""

    def recover(self) -> int:
        """Fold the journal into the machine; the number of events. Call once, before `run`.

        Raises `StorageError` when the events do not lead to the newest commit on record: to decide
        a round anew would break the chain that nodes have applied."""
        count, state = self._journal.newest_snapshot()
        if state is not None:
            recall(self.rounds, state)
        for sequence, at_ms, event in self._journal.numbered_events(count):
            try:
                self.rounds.handle(event, at_ms)
            except LockstepError as error:
                raise StorageError(
                    f"journal event {sequence} ({event}) does not replay: {error}{_USE}"
                ) from None
            count, self._unremembered = sequence, self._unremembered + 1
        for newest in self._journal.last_commits(1):
            if sha256(newest.signed.body) != self.rounds.head:
                rounds = f"end at a commit of round {self.rounds.head_round}, the newest on record is of {newest.round}"
                raise StorageError(f"the journal's events {rounds} and differs{_USE}")
        self._clock_origin_ms = max(int(time.time() * 1000), self.rounds.last_ms) - int(
            time.monotonic() * 1000
        )
        if count:
            batch = _Batch()
            self._handle(Restarted(), self.now_ms(), batch)
            self._record(batch)  # effects of a restart have nobody to go to yet
        self._tell()
        return count

    def now_ms(self) -> int:
        """The run's clock: starts at the wall clock or where the journal ended, then never runs
        backwards."""
        return self._clock_origin_ms + int(time.monotonic() * 1000)

    async def submit(self, event: Event) -> None:
        """Return once the event is on disk and its effects are out; raises the machine's
        `RemoteProtocolError`."""
        done = asyncio.get_running_loop().create_future()
        await self._queue.put((event, done))
        await done

    def post(self, event: Event) -> None:
        """Hand over an event whose outcome nobody waits for; dropped when the queue is full."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait((event, asyncio.get_running_loop().create_future()))

    async def run(self) -> None:
        """Work until cancelled. A `StorageError` from the journal ends it: nothing may leave
        unwritten."""
        while True:
            waiting = await self._gather()
            batch, now_ms = _Batch(), self.now_ms()
            if self._was_held_up(now_ms):
                self._handle(Restarted(), now_ms, batch)
            handled = [done for event, done in waiting if self._try(event, done, now_ms, batch)]
            while due := self.rounds.due(now_ms):
                for event in due:
                    self._handle(event, now_ms, batch)
            if batch.events or batch.effects:
                outcome = await asyncio.to_thread(self._record, batch)
                self._tell()
                self._emit(outcome)
            _resolve(handled)

    def _was_held_up(self, now_ms: int) -> bool:
        """Did this process sleep through an instant (a stopped process, a suspended machine, a
        stuck disk)? Then its members are not to blame for the silence: it goes on as after a
        restart, with leases and instants extended."""
        due_ms = self.rounds.next_due_ms()
        return due_ms is not None and now_ms - due_ms > HELD_UP_MS

    def _try(self, event: Event, done: asyncio.Future[None], now_ms: int, batch: _Batch) -> bool:
        try:
            self._handle(event, now_ms, batch)
        except RemoteProtocolError as error:
            if not done.done():
                done.set_exception(error)
            return False
        return True

    def _handle(self, event: Event, now_ms: int, batch: _Batch) -> None:
        batch.effects += self.rounds.handle(event, now_ms)
        if not isinstance(event, Heartbeat):
            batch.events.append((now_ms, event))

    def _record(self, batch: _Batch) -> Outcome:
        commits = [effect for effect in batch.effects if isinstance(effect, CommitRound)]
        signed = {effect.commit.round: sign_commit(effect.commit, self._key) for effect in commits}
        digests = [effect for effect in batch.effects if isinstance(effect, RecordDigest)]
        rows = [
            (effect.commit.round, signed[effect.commit.round], effect.loss) for effect in commits
        ]
        self._unremembered += len(batch.events)
        state = remember(self.rounds) if self._unremembered >= SNAPSHOT_EVENTS else None
        self._journal.append(batch.events, rows, digests, state)
        self._unremembered = 0 if state else self._unremembered
        return Outcome(tuple(batch.effects), signed)

    def _tell(self) -> None:
        self.decided_round, self.head_round = self.rounds.decided_round, self.rounds.head_round

    async def _gather(self) -> list[tuple[Event, asyncio.Future[None]]]:
        """What waits now; if nothing does, whatever comes first until the next instant is due.

        What has arrived goes before what is due: after a slow write nobody is late or lapsed whose
        word is here."""
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


def _resolve(handled: Iterable[asyncio.Future[None]]) -> None:
    for done in handled:
        if not done.done():
            done.set_result(None)

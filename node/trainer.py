"""One round after the other, as a straight line; everything else here is waiting for the right
word.

    overlap 0    compute r | extract | exchange r ........ | apply r | compute r+1 ...
    overlap 1    compute r | extract | compute r+1 (at a guess of r) | extract | apply r | compute r+2 ...
                                     '- exchange r .................'

(as soon as the commit of r is there with its payloads, be it between two passes:
`node.round.compute`; and before round `overlap_from` every run goes as with overlap 0)

The trainer takes final words strictly in order and never goes on without one: it waits, catches up
or starts over, and says which. A payload that a commit leaves out goes back into the momentum. A
node that is to end waits no longer than its last rounds may take, and not at all while it catches
up: where it stands is saved.

Whether its state is right the coordinator says, who hears all: told to resync, the trainer discards
the state and replays the log, and says on the way what it comes to after the round in question. It
never judges itself.

The state is saved between extract and announce: what others know of, the file knows of too. A kill
loses at most what the rounds since the last save left in the momentum, and nothing counts twice
(`node.round.crash_recovery`).
"""

import asyncio
import logging

from node.control.decisions import Decision
from node.control.members import MemberList
from node.demo.engine import Extraction
from node.gossip.swarm import NotRetainedError
from node.model.training import RoundWork
from node.replica.position import Pending, Position
from node.round.catch_up import RETRY_SECONDS
from node.round.compute import train_round
from node.round.context import RoundContext
from node.round.crash_recovery import CrashRecovery
from node.round.deadline import AWAY_S, FINISHED_S, Deadline, DeadlinePassedError
from node.round.witness import WitnessReports
from protocol import wire_pb2 as wire
from protocol.clock import longest_slot
from protocol.ids import Digest, sha256
from protocol.payload import Header, sealed

log = logging.getLogger("lockstep.node")


class Trainer:
    """Drives one replica through a run. Also the coordinator client's listener."""

    def __init__(self, parts: RoundContext) -> None:
        self._parts = parts
        self._rounds = parts.info.spec.rounds
        self._pending: dict[int, Pending] = {}  # announced, and not settled
        restored = parts.restored
        self._unannounced = (
            {pending.round: pending for pending in restored.pending} if restored else {}
        )
        self._earlier = CrashRecovery(parts.own, parts.replica, restored)
        self._opened: wire.RoundOpened | None = None
        self._newest_trained = max(self._unannounced, default=-1)
        self._unsaved_rounds = 0
        self._compute_ms = 1
        self._apply_ms = 0
        self._changed = asyncio.Event()
        self._unready = False
        self._resync: wire.Resync | None = None
        self._obeyed = wire.Resync(round=-1)
        self._receipts = WitnessReports(
            parts.own, parts.info.spec.rounds.copies_min, self._send_receipts
        )
        self._roster = MemberList()
        self._finished = ""
        self._patience = Deadline()
        self._limited_round = -1
        self._rest_s = (1 + self._rounds.overlap) * longest_slot(self._rounds).milliseconds / 1000
        self._in_round = False
        self._leaving = False
        self._over = False

    # ---- the straight line

    async def run(self) -> str:
        """Train until the run is finished or `leave` was called; why it ended, in words."""
        try:
            for round in sorted(self._unannounced):
                await self._resume(self._unannounced[round])
            while (opened := await self._next_round()) is not None:
                self._in_round = True
                await self._round(opened)
                self._in_round = False
            await self._settle_rest()
        except DeadlinePassedError:
            log.warning(
                "ended before round %s: what it needs for that did not come",
                self._parts.ledger.next_round,
            )
        self._over = True
        return self._finished or "this node was asked to leave"

    async def _round(self, opened: wire.RoundOpened) -> None:
        work = await self._compute(opened)  # until the bell
        pending, payload = await asyncio.to_thread(
            self._extract, opened, work
        )  # DCT, top-k; the rest stays
        await self._save_when_due()  # on disk before anybody hears of it
        await self._publish(pending, payload)  # offered to neighbours, announced to the coordinator
        while self._parts.ledger.next_round <= opened.round - self._rounds.overlap_at(
            opened.round + 1
        ):
            await self._settle_next()  # applied: the same bits on every node; or reclaimed

    # ---- its parts

    async def _compute(self, opened: wire.RoundOpened) -> RoundWork | None:
        parts, progress = self._parts, self._parts.progress
        progress.phase, progress.note = f"trains round {opened.round}", opened.reason
        parts.swarm.open(opened.round)
        self._earlier.end()
        if not progress.rounds_trained:
            self._unsaved_rounds = (
                parts.save_every
            )  # the file may be of a life that ended well: save soon
        started_ms = parts.client.now_ms()
        pending = self._pending.get(opened.round - 1)
        work = await train_round(
            parts, opened, pending, lambda left_ms: self._settle_early(opened.round, left_ms)
        )
        self._compute_ms = max(1, parts.client.now_ms() - started_ms)
        return work

    async def _settle_early(self, opened_round: int, left_ms: int) -> bool:
        """In the middle of a round's work: settle the one in front of it if all that takes is here,
        and if more time is left for work than was last taken.
        """
        word = self._parts.ledger.at_hand()
        if word is None or word.round >= opened_round or left_ms < 2 * self._apply_ms:
            return False
        if word.commit and not self._parts.swarm.holds(word.commit):
            return False
        await self._settle_next()
        return True

    def _extract(self, opened: wire.RoundOpened, work: RoundWork | None) -> tuple[Pending, bytes]:
        """Momentum to payload and announcement. A muted node keeps its momentum and announces only
        its work.

        What leaves the momentum is in the book at the same instant: no interruption finds it in
        neither.
        """
        announced = wire.Announced(round=opened.round, compute_ms=self._compute_ms)
        payload, extraction = b"", None
        if work:
            announced.samples, announced.loss = work.samples, work.loss_nats_per_token
        if work and not opened.muted:
            extraction = self._parts.replica.extract(opened.round)
            payload = self._encoded(opened.round, extraction)
            announced.digest, announced.payload_bytes = sha256(payload), len(payload)
        rate_bits = opened.learning_rate_bits, opened.decay_bits
        pending = Pending(wire.NodeMessage(announced=announced), extraction, rate_bits)
        self._newest_trained, self._unannounced[opened.round] = opened.round, pending
        return pending, payload

    def _encoded(self, round: int, extraction: Extraction) -> bytes:
        parts, shape = self._parts, self._parts.replica.shape_at(round)
        body = extraction.body(shape)
        payload = sealed(Header(parts.info.run_id, round, parts.own), body, shape)
        parts.progress.payload_bytes, parts.progress.payload_values = len(payload), body.values
        return payload

    async def _resume(self, pending: Pending) -> None:
        """An undecided round from before the restart. Its payload is made again from the saved
        extraction: what was announced may be committed, and after a kill or a power cut nobody else
        need have it.
        """
        self._parts.swarm.open(pending.round)
        payload = self._encoded(pending.round, pending.extraction) if pending.extraction else b""
        await self._publish(pending, payload)

    async def _publish(self, pending: Pending, payload: bytes) -> None:
        """To the log first: what the coordinator hears of can be had, whatever happens to this
        process.
        """
        if payload:
            await self._parts.swarm.publish(pending.round, payload)
        self._pending[pending.round] = self._unannounced.pop(pending.round)
        self._parts.client.send(pending.announcement)
        self._parts.progress.phase = f"exchanges round {pending.round}"

    async def _settle_next(self) -> None:
        """Take the next final word: apply its commit, or reclaim what it leaves out."""
        parts, before = self._parts, self.position
        word = await self._patience.wait(parts.ledger.next())
        kept: list[Digest] = []
        if word.commit:
            kept = [entry.digest for entry in word.commit.entries]
            try:
                payloads = await self._patience.wait(parts.swarm.collect(word.commit, word.holders))
            except (NotRetainedError, DeadlinePassedError) as error:
                self._stand_at(before)
                if not isinstance(error, NotRetainedError):
                    raise
                await self._jump(str(error))
                return
            started_ms = parts.client.now_ms()
            digest = await asyncio.to_thread(parts.replica.apply, word.commit, payloads)
            await self._earlier.counted(word.commit, payloads)
            parts.progress.round, parts.progress.state_digest = word.round, digest
            snapshot = (
                await asyncio.to_thread(parts.catch_up.write, word.commit)
                if parts.catch_up
                else b""
            )
            self._report(word, digest, snapshot)
            self._apply_ms = parts.client.now_ms() - started_ms
        self._settle(word.round, kept)

    def _settle(self, round: int, kept: list[Digest]) -> None:
        """The round is decided: count this node's payload, or reclaim it."""
        pending, progress = self._pending.pop(round, None), self._parts.progress
        if pending and pending.extraction:
            if pending.digest in kept:
                progress.rounds_counted += 1
            else:
                self._parts.replica.engine.reclaim(pending.extraction)
                progress.rounds_reclaimed += 1
        self._parts.swarm.settle(round, kept)

    async def _settle_rest(self) -> None:
        """Wait for the last words, but not for ever: what is undecided then is saved with the
        state.
        """
        self._over = True
        if self._pending:
            await asyncio.to_thread(self._parts.save, self.position)
        while self._pending:
            self._limit_word()
            await self._settle_next()

    def _limit_word(self) -> None:
        """Anew for each word; to look again for the payloads of one is to wait on."""
        if self._limited_round != self._parts.ledger.next_round:
            self._limited_round = self._parts.ledger.next_round
            self._limit()

    def _limit(self) -> None:
        if self._leaving:
            rest_s = 2 * self._rest_s if self._in_round else self._rest_s if self._pending else 0
            self._patience.limit(rest_s if self._parts.client.connected else min(rest_s, AWAY_S))
        elif self._finished:
            self._patience.limit(max(FINISHED_S, self._rest_s))

    def _report(self, word: Decision, digest: int, snapshot: bytes) -> None:
        """Tell the coordinator: while the node catches up only what it asked about, and the last
        state with `Ready`.
        """
        if word.recorded_digest is not None and word.recorded_digest != digest:
            self._say_different(f"after round {word.round}", digest, word.recorded_digest)
        if not self._unready or (self._obeyed.number and word.round == self._obeyed.round):
            applied = wire.Applied(round=word.round, state_digest=digest, snapshot_sha256=snapshot)
            self._parts.client.send(wire.NodeMessage(applied=applied))

    @property
    def position(self) -> Position:
        """Where in the log the replica stands."""
        ledger = self._parts.ledger
        known = self._unannounced | self._pending
        pending = tuple(known[round] for round in sorted(known))
        unsaved_rounds = max(
            self._earlier.unsaved_rounds, 0 if self._over else self._parts.save_every - 1
        )
        return Position(ledger.next_round, ledger.head, ledger.head_round, pending, unsaved_rounds)

    async def _save_when_due(self) -> None:
        self._unsaved_rounds += 1
        if self._unsaved_rounds >= self._parts.save_every:
            self._unsaved_rounds = 0
            await asyncio.to_thread(self._parts.save, self.position)

    # ---- waiting

    async def _next_round(self) -> wire.RoundOpened | None:
        """The next round to work in; None when there will be none for this node."""
        parts = self._parts
        while True:
            if self._resync:
                await self._start_over(self._resync)
            elif self._in_step() and (opened := self._take_opened()):
                return opened
            elif self._leaving and not self._pending:
                return None  # what is decided meanwhile it applies another time
            elif parts.ledger.behind():
                await self._catch_up()
            elif self._finished or self._leaving:
                return None
            else:
                self._say_ready()
                if opened := self._take_opened():
                    return opened
                parts.progress.phase = (
                    "waits for a round" if parts.client.connected else parts.client.state
                )
                self._changed.clear()
                await self._changed.wait()

    async def _catch_up(self) -> None:
        """One word nearer to the end of the log; many, by a snapshot, when the log is too long for
        its keepers.
        """
        parts = self._parts
        self._limit_word()
        parts.progress.phase = (
            f"catches up: round {parts.ledger.next_round} of {parts.ledger.decided_round}"
        )
        if parts.catch_up and parts.catch_up.too_far_behind(parts.ledger):
            await self._jump(
                f"{parts.ledger.decided_round - parts.ledger.next_round} rounds behind"
            )
        else:
            await self._settle_next()
            await self._save_when_due()

    async def _jump(self, reason: str) -> None:
        """Go on from a snapshot in place of the rounds before it; if there is none to be had, a
        little later.
        """
        parts = self._parts
        log.warning("looks for a snapshot reason=%s", reason)
        jump = None
        if parts.catch_up:
            finding = parts.catch_up.find(
                self.position, parts.ledger.decided_round, self._pending, parts.own
            )
            jump = await self._patience.wait(finding)
        if jump is None:
            parts.progress.note = f"cannot go on yet: {reason}, and no member has a snapshot"
            await self._patience.wait(asyncio.sleep(RETRY_SECONDS))
            return
        await asyncio.to_thread(parts.replica.adopt, jump.path)
        position, digest = jump.landmark.position, parts.replica.digest
        self._stand_at(position)
        parts.progress.round, parts.progress.state_digest, parts.progress.note = (
            position.head_round,
            digest,
            "",
        )
        for round in sorted(self._pending):
            if round < position.next_round:
                self._settle(round, jump.kept.get(round, []))
        await self._earlier.passed(jump.own, parts.swarm.kept)
        if digest == jump.landmark.state_digest:
            await asyncio.to_thread(parts.save, self.position)
        else:
            self._say_different(
                f"of the snapshot of round {position.head_round}",
                digest,
                jump.landmark.state_digest,
            )

    def _stand_at(self, position: Position) -> None:
        self._parts.ledger.resume(position.next_round, position.head, position.head_round)

    def _say_different(self, which: str, digest: int, recorded: int) -> None:
        differs = f"the state {which} is {digest:016x}, the record says {recorded:016x}"
        log.warning("%s; the coordinator will judge", differs)
        self._parts.progress.note = differs

    def _in_step(self) -> bool:
        """May the opened round be trained before what is decided meanwhile is applied?"""
        opened, hindered = self._opened, self._unready or self._finished or self._leaving
        if opened is None or hindered:
            return False
        return self._parts.ledger.in_step(opened.round, self._rounds.overlap_at(opened.round))

    def _take_opened(self) -> wire.RoundOpened | None:
        opened, next_round = self._opened, self._parts.ledger.next_round
        if opened and self._earlier.may_be_named(next_round, opened.round):
            return None  # yet: first the words
        self._opened = None
        if opened and opened.round > self._newest_trained and opened.round >= next_round:
            return opened
        return None  # decided meanwhile, or told again after a reconnect

    def _say_ready(self) -> None:
        if self._unready:
            replica, ledger = self._parts.replica, self._parts.ledger
            ready = wire.Ready(
                round=ledger.head_round,
                state_digest=replica.digest,
                has_momentum=replica.has_momentum,
            )
            ready.resyncs = self._obeyed.number
            self._parts.client.send(wire.NodeMessage(ready=ready))
            self._unready = False

    async def _start_over(self, resync: wire.Resync) -> None:
        """Discard the state, on disk too, and replay the log."""
        parts = self._parts
        log.warning("starts over reason=%s", resync.reason)
        parts.progress.note, parts.progress.phase = (
            f"started over: {resync.reason}",
            "discards its state",
        )
        parts.progress.resyncs += 1
        self._resync, self._obeyed, self._unready, self._opened = None, resync, True, None
        await asyncio.to_thread(parts.replica.reset)
        parts.ledger.rewind()
        self._pending.clear()
        self._earlier.end()
        await asyncio.to_thread(
            parts.save, self.position
        )  # a restart must not bring back what was discarded

    # ---- the coordinator client's listener

    def welcomed(self, welcome: wire.Welcome) -> None:
        """A new session: say again what still holds, and that this node is ready once it is."""
        self._parts.ledger.saw_decided(welcome.decided_round)
        self._set_members(welcome.members)
        self._unready = True
        for round, pending in sorted(self._pending.items()):
            self._parts.client.send(pending.announcement)
            self.report_holding(round, self._parts.swarm.holding(round))
        self._changed.set()

    def received(self, message: wire.CoordinatorMessage) -> None:
        """Sort the run's events to where they wait for their turn."""
        match message.WhichOneof("kind"):
            case "members":
                self._set_members(message.members)
            case "opened":
                self._opened = message.opened
            case "committed":
                self._parts.ledger.committed(message.committed)
            case "skipped":
                self._parts.ledger.skipped(message.skipped)
            case "resync":
                self._resync = message.resync
            case "evicted":
                self._parts.progress.note = (
                    f"removed by the coordinator: {message.evicted.reason}; joining again"
                )
            case "finished":
                self._finished = message.finished.reason
                self._limit()
            case _:
                pass  # a newer coordinator's message that this version has no use for
        self._changed.set()

    def report_holding(self, round: int, digests: list[Digest]) -> None:
        """Receipts for the coordinator: this node holds these payloads, verified."""
        self._receipts.add(round, digests, len(self._roster.members))

    def _send_receipts(self, round: int, digests: list[Digest]) -> None:
        self._parts.client.send(
            wire.NodeMessage(holding=wire.Holding(round=round, digests=digests))
        )

    def leave(self) -> None:
        """Finish the round, not what it catches up with, and end `run`."""
        self._leaving = True
        self._limit()
        self._changed.set()

    def _set_members(self, told: wire.Members) -> None:
        self._roster.take(told)
        self._parts.swarm.set_members(self._roster.members, self._roster.relays)

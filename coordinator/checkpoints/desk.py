"""Carries out what `coordinator.machine.rules.publishing` decides: asks the members, takes
the writer's files, and watches that they come.

    AskCheckpoint --> messages; the writer's has a ticket
    parts with the ticket --> CheckpointStore --all came--> checked --> CheckpointStored
                                   '--a wrong part, or none for PATIENCE_MS--> CheckpointFailed
    CheckpointMade --> the older ones are removed
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from coordinator.checkpoints.store import CheckpointStore, Progress
from coordinator.history import Contributions
from coordinator.machine.events.effects import AskCheckpoint, CheckpointMade
from coordinator.machine.events.inputs import CheckpointFailed, CheckpointStored, RoomGiven
from coordinator.machine.rules import publishing
from coordinator.machine.state.checkpoints import Work
from coordinator.sequencer import Sequencer
from protocol import wire_pb2 as wire
from protocol.errors import LockstepError
from protocol.ids import PeerId

log = logging.getLogger("lockstep.coordinator")

PATIENCE_MS = 180_000
"""Time without any progress after which a member that was drawn is not waited for."""

LOOK_S = 2.0
"""Pause between two looks at the progress."""

NOTE_MS = 10_000
"""Progress that a restart may forget."""

SAID_MS = 10_000
"""Time for which the first part waits for the member's word on the session, which it follows."""

CONTRIBUTORS_MAX = 64
"""Contributors that a model card names."""

TICKET_BYTES = 32

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass(slots=True)
class _Upload:
    round: int
    writer: PeerId
    ticket: bytes
    begun: bool = False


class CheckpointDesk:
    """The checkpoints of one coordinator."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: CheckpointStore,
        contributions: Callable[[], Contributions],
    ) -> None:
        self._sequencer, self._store, self._contributions = sequencer, store, contributions
        self._lock = asyncio.Lock()
        self._upload: _Upload | None = None
        self._moved_ms, self._noted_ms = 0, 0
        self._noted = True
        """Whether the store may keep a note of a work's progress."""
        self._seen: object = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self, room_bytes: int, kept: int) -> None:
        """Give the room, and watch from now on."""
        given = self._sequencer.rounds.state.checkpoints
        if (given.room_bytes, given.kept) != (room_bytes, kept):
            await self._sequencer.submit(RoomGiven(room_bytes, kept))
        self._go_on()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop watching."""
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    @property
    def busy(self) -> bool:
        """Whether a member is at work on a checkpoint."""
        return self._work is not None

    @property
    def _work(self) -> Work | None:
        return self._sequencer.rounds.state.checkpoints.work

    # ---- effects

    def messages(
        self, ask: AskCheckpoint
    ) -> tuple[wire.CoordinatorMessage, dict[PeerId, wire.CoordinatorMessage]]:
        """The message to everyone, and those to the members that were drawn."""
        state = self._sequencer.rounds.state
        contributions, names = self._contributions(), state.checkpoints.names
        asked = wire.CheckpointAsked(
            round=ask.round,
            step=ask.step,
            samples=state.totals.samples_counted,
            contributors=[
                wire.Contributor(peer_id=peer, name=names.get(peer, ""), samples=samples)
                for peer, samples in contributions.most[:CONTRIBUTORS_MAX]
            ],
            contributors_in_all=contributions.in_all,
        )
        if measured := state.evaluation.newest:
            asked.validation_loss, asked.validation_round = measured.loss, measured.round
        own = {}
        if ask.second:
            own[ask.second] = wire.CheckpointAsked(second=True)
        if ask.writer:
            upload = self._upload
            if upload is None or (upload.round, upload.writer) != (ask.round, ask.writer):
                ticket = secrets.token_bytes(TICKET_BYTES)
                upload = self._upload = _Upload(ask.round, ask.writer, ticket)
            room = state.checkpoints.room_bytes
            own[ask.writer] = wire.CheckpointAsked(
                write=True, ticket=upload.ticket, room_bytes=room
            )
        for message in own.values():
            message.MergeFrom(asked)
        return _told(asked), {peer: _told(message) for peer, message in own.items()}

    def made(self, effect: CheckpointMade) -> None:
        """Say so, and remove the older ones."""
        made = effect.checkpoint
        seconds = f"confirmed by {made.confirmed_by}" if made.confirmed_by else "no second member"
        log.info(
            "checkpoint",
            extra={
                "run": self._sequencer.rounds.run_id,
                "round": made.round,
                "state": f"{made.state_digest:016x}",
                "bytes": made.file_bytes,
                "writer": made.writer,
                "confirmed": seconds,
                "directory": self._store.directory / made.name,
            },
        )
        self._remove_others(effect.kept)

    def _remove_others(self, kept: Sequence[str]) -> None:
        try:
            self._store.keep(kept)
        except LockstepError as error:
            log.warning("old checkpoints stay", extra={"reason": str(error)})

    # ---- the writer's files

    async def take(self, part: wire.CheckpointPart) -> wire.CheckpointReply:
        """Take one part, or the word that all have come."""
        async with self._lock:
            upload = self._upload
            if upload is None or not hmac.compare_digest(upload.ticket, part.ticket):
                return _refused("expected the ticket of the member that was drawn, got another")
            if not await self._awaits(upload):
                return _refused(
                    "another member was drawn in the meantime, or the room is too small"
                )
            self._moved_ms = self._sequencer.now_ms()
            try:
                await self._take(upload, part)
            except LockstepError as error:
                self._end(upload)
                log.warning(
                    "checkpoint refused", extra={"peer": upload.writer, "reason": str(error)}
                )
                failed = CheckpointFailed(upload.writer, upload.round, str(error))
                await self._sequencer.submit(failed)
                return _refused(str(error))
        return wire.CheckpointReply()

    def _end(self, upload: _Upload) -> None:
        """This upload is over; another may have been asked for in the meantime."""
        if self._upload is upload:
            self._upload = None

    async def _awaits(self, upload: _Upload) -> bool:
        """Whether the run waits for these files; the member's word may come a moment later."""
        until_ms = self._sequencer.now_ms() + SAID_MS
        while (work := self._work) and (work.round, work.writer) == (upload.round, upload.writer):
            if work.writer not in work.awaited:
                return work.stored is None
            if self._sequencer.now_ms() >= until_ms:
                return False
            await asyncio.sleep(0.05)
        return False

    async def _take(self, upload: _Upload, part: wire.CheckpointPart) -> None:
        checkpoints = self._sequencer.rounds.state.checkpoints
        if not upload.begun:
            upload.begun = True
            await self._patiently(self._store.keep, [each.name for each in checkpoints.made])
            await self._patiently(self._store.begin, checkpoints.room_bytes)
        if part.file:
            await self._patiently(self._store.put, part.file, part.offset, part.data)
            return
        found = await self._patiently(self._store.complete, upload.round)
        self._end(upload)
        await self._sequencer.submit(CheckpointStored(upload.writer, upload.round, *found))

    async def _patiently(
        self,
        work: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> _Result:
        """The result of disk work in a thread, which waits where descriptors are short."""
        patient = self._sequencer.patience.outlast
        return await asyncio.to_thread(patient, lambda: work(*arguments, **named))

    # ---- watching

    def _go_on(self) -> None:
        """A restart gives the members no time anew: what they have had counts."""
        self._moved_ms, self._seen = self._sequencer.now_ms(), _progress(self._work)
        work, noted = self._work, self._store.remembered()
        if work and noted and (noted.round, noted.writer) == (work.round, work.writer):
            self._moved_ms = min(self._moved_ms, noted.moved_ms)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        work, now_ms = self._work, self._sequencer.now_ms()
        if (seen := _progress(work)) != self._seen:
            self._seen, self._moved_ms, self._noted_ms = seen, now_ms, 0
        if work is None:
            if self._noted:
                self._noted = False
                with suppress(LockstepError):
                    await self._patiently(self._store.forget)
            return
        if self._moved_ms >= self._noted_ms + NOTE_MS:
            self._noted_ms, self._noted = self._moved_ms, True
            progress = Progress(work.round, work.writer, self._moved_ms)
            with suppress(LockstepError):  # a disk that takes no note says so elsewhere
                await self._patiently(self._store.remember, progress)
        if now_ms - self._moved_ms > PATIENCE_MS:
            peer, reason = publishing.stuck(work)
            log.warning("no checkpoint", extra={"peer": peer, "reason": reason})
            await self._sequencer.submit(CheckpointFailed(peer, work.round, reason))


def _progress(work: Work | None) -> object:
    """What changes when a work comes on, but for the parts of its files."""
    return work and (work.round, work.writer, work.second, len(work.said), work.stored)


def _told(asked: wire.CheckpointAsked) -> wire.CoordinatorMessage:
    return wire.CoordinatorMessage(checkpoint=asked)


def _refused(reason: str) -> wire.CheckpointReply:
    return wire.CheckpointReply(refused=reason[:256])

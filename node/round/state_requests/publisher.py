"""A node's part in publishing the run's model: it has the state that was asked for, writes it, and
sends it.

    asked for round r --the replica comes to r--> said --files go out, beside the rounds--> done
         '-- it was past r already: declined

The state is taken between two rounds, in the trainer's line, so that it is exactly that of round r;
the files then go out part by part while the node trains, with a pause after each. On a thin line
parts are small, because heartbeats wait behind them.
"""

import asyncio
import logging
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from node.data.tokenizer import Tokenizer
from node.model.card import CardFacts, model_card
from node.model.checkpoint import save_checkpoint
from node.model.publish import local_path, publish_directory
from node.replica.digest import canonical_sha256, state_digest
from node.replica.replica import Replica
from node.settings import NodeSettings
from node.system.files import storage_errors
from protocol import wire_pb2 as wire
from protocol.border.checkpoint_files import CARD_NAME
from protocol.border.networks import is_for_everybody
from protocol.border.text import clean
from protocol.errors import LockstepError, UnavailableError
from protocol.ids import Digest
from protocol.limits import PART_BYTES
from protocol.run_info import RunInfo

log = logging.getLogger("lockstep.node")

DIRECTORY_NAME = "published"
"""Folder of the files that go out, in a node's directory."""

TRIES = 61
"""Attempts to send one part: three minutes, as long as the coordinator waits for one. A disk that
takes a model of gigabytes can stop it for half a minute."""

RETRY_S = 3.0
"""Pause between two of them."""

LOSS_PATIENCE_S = 60.0
"""Longest wait of a checkpoint for the validation loss of its state, which its writer measures
beside the rounds."""


PART_BYTES_FIRST = 4096
"""Bytes of the first part, and the least of a later one."""

HELD_S = 0.25
"""Time by which a part may take longer than the quickest: messages of the session, which has the
same connection, wait behind it."""


class PartSize:
    """The bytes of the next part, on a line that nobody knows: more while the line hardly feels
    them. Pure.
    """

    def __init__(self) -> None:
        self.bytes = PART_BYTES_FIRST
        self._quickest_s = math.inf

    def took(self, count: int, seconds: float) -> None:
        """Record the time from the start of a part of `count` bytes to its answer."""
        self._quickest_s = min(self._quickest_s, seconds)
        if seconds - self._quickest_s > HELD_S:
            self.bytes = max(self.bytes // 2, PART_BYTES_FIRST)
        elif count == self.bytes:  # the end of a file says nothing of a larger part
            self.bytes = min(2 * self.bytes, PART_BYTES)


Send = Callable[[wire.NodeMessage], None]

Put = Callable[[wire.CheckpointPart], Awaitable[wire.CheckpointReply]]

LossOf = Callable[[int, float], Awaitable[float | None]]


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where a checkpoint goes, and how a node says so."""

    directory: Path
    """Where the files lie while they go out."""
    send: Send
    put: Put
    url: str = ""
    """An address of the volunteer's; empty: none."""
    upload_limit: int = 0
    """Bytes per second; 0: none."""


class Publisher:
    """The publisher of one node. `write(directory, about)` writes the files of the replica's state,
    without the card; `committed()` gives its parameters. Both block. `loss_of(round, patience_s)`
    waits for the validation loss of a state, if this node measures it.
    """

    def __init__(
        self,
        info: RunInfo,
        outlet: Outlet,
        committed: Callable[[], Mapping[str, Tensor]],
        write: Callable[[Path, Mapping[str, object]], None],
        loss_of: LossOf,
    ) -> None:
        self._loss_of = loss_of
        self._info, self._outlet, self._committed, self._write = info, outlet, committed, write
        self._asked: wire.CheckpointAsked | None = None
        self._going: asyncio.Task[None] | None = None
        self._hurry = self._leaving = False

    def asked(self, message: wire.CheckpointAsked) -> None:
        """Remember what is asked for, in place of anything that was asked before."""
        if not self._leaving and (message.write or message.second or self._outlet.url):
            self._asked = message

    async def show_state(self, round: int) -> None:
        """Say what the state is if it is the one that is asked for, and begin to send it."""
        asked = self._asked
        if asked is None or asked.round > round:
            return
        self._asked = None
        if asked.round < round:
            self._decline(asked, f"its state holds round {round} already")
        else:
            await self._take(asked)

    async def finish(self) -> None:
        """Return when everything that was begun is out; without the pauses, nothing waits now."""
        self._hurry = True
        if self._going:
            await asyncio.gather(self._going, return_exceptions=True)

    def save(self, directory: Path, round: int) -> None:
        """Write the present state, the one after `round`, for this node's owner. Blocks."""
        parameters = self._committed()
        digest, sha256 = state_digest(parameters), canonical_sha256(parameters)
        self._write(directory, self._about(round, digest, sha256))

    def _about(self, round: int, digest: int, sha256: Digest) -> dict[str, object]:
        return {
            "run_id": self._info.run_id,
            "name": self._info.spec.name,
            "round": round,
            "state_digest": f"{digest:016x}",
            "sha256": sha256.hex(),
        }

    def leave(self) -> None:
        """This node is to leave: another one writes the checkpoint."""
        self._leaving = True
        if self._going:
            self._going.cancel()

    async def stop(self) -> None:
        """Give up what is on its way."""
        if self._going:
            self._going.cancel()
            await asyncio.gather(self._going, return_exceptions=True)

    # ---- the state

    async def _take(self, asked: wire.CheckpointAsked) -> None:
        """Begin a checkpoint. A member that is drawn to write gives up an older one, for which
        nobody waits now; an address of the volunteer's gets one after the other.
        """
        busy = self._going is not None and not self._going.done()
        if busy and asked.write:
            await self.stop()
        files = asked.write or (bool(self._outlet.url) and not busy)
        try:
            said = await asyncio.to_thread(self._made, asked, files=files)
        except LockstepError as error:
            self._decline(asked, str(error))
            return
        if asked.write or asked.second:
            self._outlet.send(wire.NodeMessage(checkpoint=said))
        if files:
            self._going = asyncio.create_task(self._go(asked, said))

    def _made(self, asked: wire.CheckpointAsked, *, files: bool) -> wire.CheckpointSaid:
        """This node's report on its state; the files are written if they are wanted."""
        parameters = self._committed()
        digest, sha256 = state_digest(parameters), canonical_sha256(parameters)
        said = wire.CheckpointSaid(round=asked.round, state_digest=digest, sha256=sha256)
        if files:
            self._write_files(asked, digest, sha256)
            size = sum(path.stat().st_size for path in self._outlet.directory.iterdir())
            said.file_bytes = size if asked.write else 0
        return said

    def _write_files(self, asked: wire.CheckpointAsked, digest: int, sha256: Digest) -> None:
        self._write(self._outlet.directory, self._about(asked.round, digest, sha256))
        known = asked.validation_loss if asked.HasField("validation_loss") else None
        self._write_card(asked, digest, sha256, (known, asked.validation_round))

    def _write_card(
        self,
        asked: wire.CheckpointAsked,
        digest: int,
        sha256: Digest,
        validation: tuple[float | None, int],
    ) -> None:
        """`validation`: a loss, and the round after which it was measured."""
        directory = self._outlet.directory
        contributors = [
            (each.peer_id, clean(each.name), each.samples) for each in asked.contributors
        ]
        facts = CardFacts(
            round=asked.round,
            step=asked.step,
            samples=asked.samples,
            state_digest=f"{digest:016x}",
            sha256=sha256.hex(),
            contributors=contributors,
            contributors_in_all=asked.contributors_in_all,
            validation_loss=validation[0],
            validation_round=validation[1],
        )
        with storage_errors(directory):
            (directory / CARD_NAME).write_text(model_card(self._info, facts), encoding="utf-8")

    def _decline(self, asked: wire.CheckpointAsked, reason: str) -> None:
        log.info("no checkpoint from here", extra={"round": asked.round, "reason": reason})
        if asked.write or asked.second:
            said = wire.CheckpointSaid(round=asked.round, failure=clean(reason))
            self._outlet.send(wire.NodeMessage(checkpoint=said))

    # ---- its way out

    async def _go(self, asked: wire.CheckpointAsked, said: wire.CheckpointSaid) -> None:
        directory, url = self._outlet.directory, self._outlet.url
        try:
            loss = await self._loss_of(asked.round, LOSS_PATIENCE_S)
            if loss is not None:
                digests = said.state_digest, Digest(said.sha256)
                measured = loss, asked.round
                await asyncio.to_thread(self._write_card, asked, *digests, measured)
            if url:
                await self._publish(said, url)
            if asked.write:
                await self._upload(asked)
        except LockstepError as error:
            reason = str(error)
            log.warning("checkpoint not sent", extra={"round": asked.round, "reason": reason})
            self._decline(asked, reason)
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def _publish(self, said: wire.CheckpointSaid, url: str) -> None:
        """Put the files at the volunteer's address, and tell it where everybody can read it."""
        try:
            await asyncio.to_thread(publish_directory, self._outlet.directory, url)
        except LockstepError as error:  # the coordinator gets its files all the same
            log.warning("checkpoint not published", extra={"url": url, "reason": str(error)})
            return
        log.info("checkpoint published", extra={"round": said.round, "url": url})
        if is_for_everybody(url):
            told = wire.CheckpointSaid(
                round=said.round, state_digest=said.state_digest, sha256=said.sha256, url=url
            )
            self._outlet.send(wire.NodeMessage(checkpoint=told))

    async def _upload(self, asked: wire.CheckpointAsked) -> None:
        files = sorted(self._outlet.directory.iterdir())
        size = sum(path.stat().st_size for path in files)
        if size > asked.room_bytes:
            return  # the coordinator says so itself
        part_size = PartSize()
        for path in files:
            await self._send_file(asked, path, part_size)
        await self._put(wire.CheckpointPart(ticket=asked.ticket))
        log.info("checkpoint sent", extra={"round": asked.round, "bytes": size})

    async def _send_file(
        self, asked: wire.CheckpointAsked, path: Path, part_size: PartSize
    ) -> None:
        with storage_errors(path), path.open("rb") as file:
            offset = 0
            while data := await asyncio.to_thread(file.read, part_size.bytes):
                part = wire.CheckpointPart(
                    ticket=asked.ticket, file=path.name, offset=offset, data=data
                )
                began_s = time.monotonic()
                await self._put(part)
                offset += len(data)
                took_s = time.monotonic() - began_s
                part_size.took(len(data), took_s)
                await asyncio.sleep(self._pause_s(len(data), took_s))

    def _pause_s(self, count: int, took_s: float) -> float:
        """The time that the line is left to payloads after a part, within the volunteer's limit."""
        limit = self._outlet.upload_limit
        limited_s = count / limit - took_s if limit else 0.0
        return max(0.0, limited_s, 0.0 if self._hurry else took_s)

    async def _put(self, part: wire.CheckpointPart) -> None:
        for attempt in range(TRIES):
            try:
                reply = await self._outlet.put(part)
                break
            except UnavailableError:
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(RETRY_S)
        if reply.refused:
            raise UnavailableError(f"the coordinator takes no more of it: {clean(reply.refused)}")


def publisher_of(
    settings: NodeSettings,
    info: RunInfo,
    replica: Replica,
    tokenizer: Tokenizer,
    ways: tuple[Send, Put],
    *,
    loss_of: LossOf,
) -> Publisher:
    """The publisher of a node with these settings; `ways` lead to the coordinator. Raises
    `SettingsError` for an address that fsspec cannot write here.
    """
    if settings.publish:
        local_path(settings.publish)

    def write(directory: Path, about: Mapping[str, object]) -> None:
        model = replica.trainee.model
        save_checkpoint(directory, model, replica.committed, tokenizer, about)

    outlet = Outlet(
        settings.directory / DIRECTORY_NAME,
        *ways,
        settings.publish,
        settings.upload_limit,
    )
    return Publisher(info, outlet, lambda: replica.committed, write, loss_of)

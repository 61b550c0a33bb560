"""Keeps the heads that a process knows, and ends the process when they prove two histories.

start   the heads of an earlier start; a proof that was kept: the run is not joined again
watch   the newest head on disk, now and then; one that only peers know is shown to the
        coordinator, which lacks it, or gives it soon
        a proof is found: it is kept in the directory, and `watch` raises
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from node.system.clock import own_clock_ms
from node.system.files import outlasting, replacing_file, storage_errors
from node.system.run_notes import RunNote, read_note, write_note
from protocol import wire_pb2 as wire
from protocol.codec.commits import SignedCommit, open_commit
from protocol.codec.heads import PROOF_NAME, Head, Heads, read_proof
from protocol.errors import (
    DataError,
    EquivocationError,
    RemoteProtocolError,
    StorageError,
    UnavailableError,
)
from protocol.run_info import RunInfo

log = logging.getLogger("lockstep.node")

NOTE_NAME = "head.json"
"""The file that holds the newest head taken, for the next start."""

LOOK_S = 1.0
"""Pause between two looks whether a proof was found."""

KEEP_LOOKS = 10
"""Looks between two writes of the newest head, and two showings of one that the coordinator has not
given."""

COMPARED_ROUNDS = 32
"""Rounds before the newest known head from which another history is read to compare it: in two that
parted lately, commits of one step are about as many rounds apart as one has skipped more."""

COMPARE_S = 10.0
"""Longest wait for the coordinator's commits when its chain does not hold."""

_Result = TypeVar("_Result")


class _Note(RunNote):
    round: int = -1
    step: int = -1
    digest: str = ""
    signature: str = ""


class HeadKeeper:
    """The heads of one run in a process's directory. `fetch(after_round)` asks the coordinator for
    commits. Making one raises `EquivocationError` when a proof of an earlier start is there, and
    `StorageError`.
    """

    def __init__(
        self, info: RunInfo, directory: Path, fetch: Callable[[int], Awaitable[wire.Commits]]
    ) -> None:
        self.heads = Heads(info.run_id, info.coordinator_key)
        self._directory, self._fetch = directory, fetch
        self._kept: Head | None = None
        self._keeping = threading.Lock()
        self._to_compare = False
        self._refuse_known()
        self._restore()

    def document(self) -> dict[str, Any]:
        """The heads for /status.json."""
        own, proof = self.heads.own, self.heads.equivocation
        return {
            "round": own.round if own else -1,
            "forged": self.heads.forged,
            "equivocation": proof.words if proof else "",
        }

    def fill(self, hello: wire.Hello) -> None:
        """Put the newest head into a hello."""
        if newest := self.heads.newest:
            hello.head.CopyFrom(newest.message)

    def greeted(self, welcome: wire.Welcome) -> None:
        """Weigh the head of the coordinator. `UnavailableError` when it lacks a commit that this
        process has from it: there is nothing to do but to wait for the newer one.
        """
        own, told = self.heads.own, welcome.head if welcome.HasField("head") else None
        if told:
            self.heads.show(told)
            self._to_compare = own is not None and told.step > own.step
        if own and (told is None or told.step < own.step):
            newest = f"its newest commit is of round {told.round}" if told else "it has no commit"
            raise UnavailableError(
                f"the coordinator was started from an old copy of its directory: {newest}, and "
                f"this process has its commit of round {own.round}; waits for the newer directory"
            )

    async def explained(self, work: Awaitable[_Result]) -> _Result:
        """The result of work along the coordinator's chain; `EquivocationError` in place of
        `RemoteProtocolError` where the chain does not hold because it is another history.
        """
        try:
            return await work
        except RemoteProtocolError:
            await self.compare()
            raise

    async def compare(self) -> None:
        """Compare the coordinator's history with the newest commit taken, if it answers in time;
        `EquivocationError` when the two differ.
        """
        await self._end_if_proven()
        if own := self.heads.own:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMPARE_S):
                    await self.fetch(max(-1, own.round - COMPARED_ROUNDS))
        await self._end_if_proven()

    async def fetch(self, after_round: int) -> wire.Commits:
        """Commits of the coordinator after a round, whose heads are known from now on."""
        reply = await self._fetch(after_round)
        for told in reply.commits:
            signed = SignedCommit(told.body, told.signature)
            self.heads.take(open_commit(signed, self.heads.coordinator_key), signed)
        return reply

    async def watch(self, hello: wire.Hello, send: Callable[[wire.NodeMessage], None]) -> None:
        """Keep `hello` and the disk up to date until cancelled; `send` reaches the coordinator.
        `EquivocationError` once a proof is found and kept.
        """
        try:
            for looks in count():
                await self._end_if_proven()
                if self._to_compare:
                    self._to_compare = False
                    await self.compare()
                self.fill(hello)
                if looks % KEEP_LOOKS == 0:
                    await asyncio.to_thread(self._keep)
                    self._show_unseen(send)
                await asyncio.sleep(LOOK_S)
        finally:
            self._keep()

    def _show_unseen(self, send: Callable[[wire.NodeMessage], None]) -> None:
        if unseen := self.heads.unseen:
            beat = wire.Heartbeat(sent_ms=own_clock_ms(), head=unseen.message)
            send(wire.NodeMessage(heartbeat=beat))

    def _keep(self) -> None:
        """Write the newest head taken to disk, if it is another one. A disk that refuses is
        logged. Blocks, also until a write that is under way is done: the newest comes last.
        """
        with self._keeping:
            own = self.heads.own
            if own is None or own == self._kept:
                return
            numbers = self.heads.run_id, own.round, own.step
            note = _Note(*numbers, own.digest.hex(), own.signature.hex())
            try:
                write_note(self._directory / NOTE_NAME, note)
            except StorageError as error:
                log.warning("head not kept", extra={"reason": str(error)})
            self._kept = own

    async def _end_if_proven(self) -> None:
        proof, path = self.heads.equivocation, self._directory / PROOF_NAME
        if proof is None:
            return
        try:
            await asyncio.to_thread(_write_proof, path, proof.document())
            kept = _where(path)
        except StorageError as error:
            kept = f"The proof is not kept: {error}"
        log.error("two histories", extra={"run": self.heads.run_id, "reason": proof.words})
        raise EquivocationError(_told(proof.words, kept))

    def _refuse_known(self) -> None:
        path = self._directory / PROOF_NAME
        with storage_errors(path, doing="read"):
            blob = path.read_bytes() if path.exists() else b""
        try:
            proof = read_proof(blob)
        except DataError:
            return  # none, or no proof
        if (proof.run_id, proof.coordinator_key) == (self.heads.run_id, self.heads.coordinator_key):
            raise EquivocationError(_told(proof.words, _where(path)))

    def _restore(self) -> None:
        path = self._directory / NOTE_NAME
        note = read_note(path, _Note(self.heads.run_id), log, "newest head unknown")
        try:
            digest, signature = bytes.fromhex(note.digest), bytes.fromhex(note.signature)
            said = wire.Head(round=note.round, step=note.step, digest=digest, signature=signature)
        except ValueError:
            return
        self.heads.restore(said)


def _where(path: Path) -> str:
    return f"The proof, which lockstep verify --proof checks, is in {path}"


@outlasting
def _write_proof(path: Path, document: bytes) -> None:
    with replacing_file(path) as temporary:
        temporary.write_bytes(document)


def _told(words: str, kept: str) -> str:
    return (
        f"{words}. It is stolen or used dishonestly, or two copies of its directory are at work: "
        f"this process leaves the run. {kept}"
    )

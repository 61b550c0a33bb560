"""The search for copies beside a replay: every committed payload is read, before its commit is
applied, and compared with those before it.

    payloads of a commit --sketches--> beside earlier ones --near: compared whole--> judged
                                                                   evidence told <--'

Payloads are read twice, here and by the replay, so that no more than two are in memory.
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lockstep.audit.acting import bare_movement
from lockstep.audit.copies.judge import Copy, CopyBook, foreign, is_proof
from lockstep.audit.copies.likeness import (
    Near,
    Sent,
    Sketch,
    SketchWindow,
    drawn_chunks,
    part_of,
    sketch_of,
)
from lockstep.audit.copies.payloads import Payloads
from lockstep.audit.copies.twins import Twins
from node.system.run_notes import RunNote, read_note, write_note
from protocol.codec.commits import Commit, Entry
from protocol.codec.evidence import Evidence, words
from protocol.codec.payload import Coefficients
from protocol.codec.scales import scales_of
from protocol.errors import StorageError, UnavailableError
from protocol.ids import Digest, PeerId
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec
from protocol.sums.movements import Movement, counted_codes

log = logging.getLogger("lockstep.auditor")

BOOK_NAME = "copies.json"
"""Name of the file with what was found, in the auditor's directory."""

SAVE_ROUNDS = 50
"""Rounds after which it is written, when nothing was found."""


class SavedCopies(RunNote):
    """The file of copies."""

    book: CopyBook = msgspec.field(default_factory=CopyBook)


class CopyWatch:
    """The search in one run. `secret` draws the chunks that are looked at; `tell` is given what is
    found.
    """

    def __init__(
        self,
        info: RunInfo,
        *,
        secret: bytes,
        tell: Callable[[Evidence], None],
        path: Path,
    ) -> None:
        self._info, self._tell, self._path = info, tell, path
        self._seed = int.from_bytes(hashlib.sha256(b"copies" + secret).digest())
        unusable = "copies that were found cannot be used"
        self._book = read_note(path, SavedCopies(info.run_id), log, unusable).book
        self._window = SketchWindow()
        self._saved_round = self._book.newest_round
        self._restarts, self._goes_back = 0, False
        self.twins: list[Twins] = []
        """Like payloads of the round that was looked at last, of which one may be the copy."""
        self.movements: dict[PeerId, Movement] = {}
        """Those of that round, without places and signs, where signs weigh unlike."""

    def drop(self) -> None:
        """The replay goes back: earlier payloads come again."""
        self._window.clear()
        self._goes_back = True

    async def look(
        self, commit: Commit, voids: frozenset[Digest], read: Payloads, *, restarts: int
    ) -> set[PeerId]:
        """Judge the payloads of a commit that is about to be applied; returns the authors whose
        payloads of this round are alike, or turned against the others'. `restarts` counts those of
        the run up to here.

        Raises `UnavailableError`, `StorageError` when a payload is not there, with nothing judged.
        """
        if restarts != self._restarts:  # the same samples may be trained again from an old state
            self._restarts = restarts
            self._window.clear()
        if self._goes_back:
            self._goes_back = False
            self._book.go_back(commit.round)
        self.twins, self.movements = [], {}
        sketches, copies = await self._read(commit, voids, read)
        compared = await asyncio.to_thread(self._window.add, sketches)
        self._book.learn(commit.round, len(sketches) + len(copies), compared.usual)
        named = compared.opposed
        for near in compared.near:
            if near.sent in (copy.sent for copy in copies):
                continue
            value, proven = await self._looked_at(near, read)
            if proven:
                copies.append(Copy(near.sent, near.earlier, value, min(1.0, self._book.usual)))
            elif near.earlier.round == commit.round:
                alike = self._book.alike(near.sent, near.earlier, value)
                named |= alike
                if alike:
                    usual = min(1.0, self._book.usual)
                    self.twins.append(Twins(near.sent, near.earlier, value, usual))
        await self._take(copies, commit.round)
        return named

    async def _read(
        self, commit: Commit, voids: frozenset[Digest], read: Payloads
    ) -> tuple[list[Sketch], list[Copy]]:
        """The sketches of a commit's payloads, and those whose header names another."""
        chunks = drawn_chunks(self._seed, read.shape.chunks)
        parts, copies = list[tuple[Entry, Coefficients]](), list[Copy]()
        async for entry, header, coefficients in read.of_commit(commit, voids):
            if (header.author, header.round) != (entry.author, commit.round):
                sent = Sent(commit.round, entry.author, entry.digest)
                copies.append(foreign(sent, header.author, header.round))
            elif header.run_id == self._info.run_id:
                parts.append((entry, part_of(coefficients, chunks)))
                if (algorithm := self._info.spec.algorithm).facts.scaled:
                    bare = bare_movement(commit, entry, coefficients, algorithm)
                    self.movements[entry.author] = bare
        return self._sketches(commit, parts), copies

    def _sketches(
        self, commit: Commit, parts: Sequence[tuple[Entry, Coefficients]]
    ) -> list[Sketch]:
        """The sketches of a commit's payloads, by their parts in the drawn chunks."""
        algorithm, scales = self._info.spec.algorithm, None
        if algorithm.facts.scaled and parts:
            movements = [bare_movement(commit, *each, algorithm) for each in parts]
            scales = scales_of(counted_codes(movements, len(parts[0][1].counts)))
        return [
            sketch_of(
                Sent(commit.round, entry.author, entry.digest),
                part,
                None if scales is None else scales[place],
            )
            for place, (entry, part) in enumerate(parts)
        ]

    async def _looked_at(self, near: Near, read: Payloads) -> tuple[float, bool]:
        """How far two payloads are alike, and whether the later one is a copy; 0 for what is not in
        the archive any more.
        """
        try:
            value = await read.likeness(near.sent, near.earlier)
            if not self._book.reaches(near.sent.round, value):
                return value, False
            author, round = near.sent.author, near.earlier.round
            own = self._window.sent_by(author, round)
            counted = own and self._window.sent_by(author, round - 1)
            then = await read.likeness(own, near.earlier) if own and counted else None
        except (UnavailableError, StorageError):
            return 0.0, False
        return value, is_proof(near.sent, near.earlier, value, then)

    async def _take(self, copies: list[Copy], round: int) -> None:
        for copy in copies:
            evidence = self._book.take(copy, self._info.run_id)
            if evidence:
                about = {"peer": evidence.author, "reason": words(evidence)}
                log.error("COPIED WORK", extra=about)
                self._tell(evidence)
        if copies or round >= self._saved_round + SAVE_ROUNDS:
            await self.save()

    async def save(self) -> None:
        """Keep what was found on disk."""
        self._saved_round = self._book.newest_round
        await asyncio.to_thread(write_note, self._path, SavedCopies(self._info.run_id, self._book))

    def document(self) -> dict[str, Any]:
        """The search for /status.json."""
        book = self._book
        return {
            "words": book.words,
            "payloads": book.payloads,
            "round": book.newest_round,
            "verdicts": book.verdicts,
            "usual": round(book.usual, 4) if math.isfinite(book.usual) else None,
            "alike": [
                {
                    "peers": [pair.one, pair.other],
                    "rounds": pair.rounds,
                    "newest_round": pair.newest_round,
                    "likeness": round(pair.likeness, 4),
                }
                for pair in reversed(book.pairs)
            ],
            "found": [{"peer_id": each.author, "reason": words(each)} for each in book.found],
        }


def uncompared(spec: RunSpec) -> str:
    """Why nobody looks for copies in a run; empty when somebody does."""
    if spec.algorithm.facts.sends_parameters:
        return f"payloads of {spec.algorithm.name} hold parameters, which are much alike"
    return ""

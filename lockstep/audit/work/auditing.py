"""The audit of one run's work beside its replay.

    before a commit is applied --drawn--> parameters copied --replayed--> passes, one at a time
                                                                    '--> judged --> evidence told

The replay comes first: a round is drawn only while the replay is with the run, one pass is made
between two looks for new commits, and a pass that takes longer goes on beside the replay. The
parameters before the round are copied; there is one copy, so one panel is audited at a time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from lockstep.audit.acting import weights_of
from lockstep.audit.copies.payloads import Payload
from lockstep.audit.copies.twins import Twins, copies
from lockstep.audit.work.ages import Ages
from lockstep.audit.work.judge import Book, PayloadAudit, Row
from lockstep.audit.work.lottery import Budget, panel
from lockstep.audit.work.recompute import Recomputation, Recomputer
from node.exact.sign_audit import Agreement, Signs, Weights
from node.replica.replica import Replica
from node.system.run_notes import RunNote, read_note, write_note
from protocol import wire_pb2 as wire
from protocol.audit import rule
from protocol.audit.lots import Draw
from protocol.codec.commits import Commit, Entry
from protocol.codec.evidence import WHOLE, Evidence, words
from protocol.errors import DataError, LocalProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, RunId
from protocol.run_info import RunInfo
from protocol.shuffle import Share
from protocol.sums.movements import Movement

log = logging.getLogger("lockstep.auditor")

NEAR_ROUNDS = 1
"""Rounds that the replay may be behind while a panel is drawn."""

AUTHORS_SHOWN = 64
"""Authors in the status, those that were audited last."""

BOOK_NAME = "work.json"
"""Name of the file with the audits, in the auditor's directory."""


class SavedAudits(RunNote):
    """The file of audits."""

    book: Book = msgspec.field(default_factory=Book)
    ages: Ages = msgspec.field(default_factory=Ages)


@dataclass(slots=True)
class Panel:
    """The audits of a round that are in hand."""

    round: int
    draw: Draw
    left: list[tuple[Entry, tuple[Share, ...]]]
    """Payloads that are not audited yet, with the positions of their samples."""
    ages: Ages
    """Those of the round."""
    twins: Sequence[Twins]
    weights: Mapping[PeerId, Weights]
    """What the signs of the round's authors weigh."""
    followed: dict[tuple[PeerId, PeerId], Signs] = field(default_factory=dict)
    """Signs of like payloads, as `lockstep.audit.copies.twins` wants them."""
    payload: bytes = b""
    """The first one, once its passes have begun."""
    passes: Recomputation | None = None
    looks: list[PayloadAudit] = field(default_factory=list)


class WorkWatch:
    """The audits of one run. `share` is the part of the run's compute that they may take; `tell` is
    given what is found; `draws` says the auditor's draw of a round.
    """

    def __init__(
        self,
        info: RunInfo,
        recomputer: Recomputer,
        share: float,
        *,
        draws: Callable[[int], Draw],
        tell: Callable[[Evidence], None],
        path: Path,
    ) -> None:
        self._info, self._recomputer, self._tell = info, recomputer, tell
        self._draws, self._path = draws, path
        self._budget = Budget(share)
        unusable = "audits of work cannot be used"
        saved = read_note(
            path, SavedAudits(info.run_id, Book(info.spec.algorithm.name)), log, unusable
        )
        self._book, self._ages = saved.book, saved.ages
        self._panel: Panel | None = None
        self._task: asyncio.Future[None] | None = None
        """A pass that takes longer than the replay wants to wait."""
        self._broken = ""
        """Why nothing is audited any more; empty while something may be."""

    def passed(self, commit: Commit) -> None:
        """The log has a commit, audited or not."""
        self._budget.earn(time.monotonic(), len(commit.entries))
        samples = {entry.author: entry.samples for entry in commit.entries}
        self._ages.committed(commit.round, samples)

    async def before(
        self,
        commit: Commit,
        recorded: wire.Committed,
        voids: frozenset[Digest],
        replica: Replica,
        *,
        behind: int,
        named: frozenset[PeerId] = frozenset(),
        twins: Sequence[Twins] = (),
        movements: Mapping[PeerId, Movement] = MappingProxyType({}),
    ) -> None:
        """A commit is about to be applied: maybe draw a panel of its authors. Those that the
        comparison of payloads has `named` are suspects; of `twins` one may be the copy; of
        `movements` it has read how far the step moves by each sign, if not by all alike.
        """
        self.passed(commit)
        overlaps = self._info.spec.rounds.overlap_at(commit.round) > 0
        busy = self._panel or self._task or self._broken or behind > NEAR_ROUNDS
        if busy or overlaps or not self._budget.allows:
            return
        said = trained(commit, recorded, voids)
        draw = self._draws(commit.round)
        if commit.round >= rule.EARLY_ROUNDS and not draw.is_drawn(
            len(commit.entries), panel=rule.PANEL
        ):
            return
        authors = drawn(draw, commit.round, said, named, book=self._book, ages=self._ages)
        if not authors:
            return
        started_s = time.monotonic()
        await asyncio.to_thread(
            self._recomputer.stand_at, replica.committed, commit.learning_rate_bits
        )
        weights = await asyncio.to_thread(weights_of, movements, replica.shape.chunks)
        self._budget.spend(time.monotonic() - started_s)
        entries = {entry.author: entry for entry in commit.entries}
        left = [(entries[author], said[author]) for author in authors]
        self._panel = Panel(commit.round, draw, left, deepcopy(self._ages), twins, weights)

    def drop(self) -> None:
        """The replay goes back: the round in hand may not be what it was."""
        self._panel = None

    async def step(self, payload: Payload, seconds: float) -> bool:
        """Make one pass of the panel in hand, or begin one and wait no longer than this; False when
        there is none.
        """
        if self._panel is None and self._task is None:
            return False
        task = self._task or asyncio.ensure_future(self._step(self._panel, payload))
        done, _ = await asyncio.wait({task}, timeout=seconds)
        self._task = None if done else task
        if done:
            task.result()
        return True

    async def close(self) -> None:
        """Give up the pass in hand."""
        self._panel = None
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _step(self, work: Panel | None, payload: Payload) -> None:
        if work is None:
            return
        if not work.left:
            await self._judge(work)
            self._panel = None
            return
        started_s = time.monotonic()
        try:
            await self._pass(work, payload)
        except UnavailableError as error:
            about = {"round": work.round, "reason": str(error)}
            log.info("payload not audited", extra=about)
            work.left.pop(0)
            work.passes = None
        except DataError as error:
            self._broken, self._panel = str(error), None
            log.error("the audit of work has ended", extra={"reason": self._broken})
        self._budget.spend(time.monotonic() - started_s)

    async def _pass(self, work: Panel, payload: Payload) -> None:
        entry, shares = work.left[0]
        if work.passes is None:
            work.payload = await payload(work.round, entry)
            work.passes = self._recomputer.begin(shares)
        if await asyncio.to_thread(work.passes.next):
            return
        await asyncio.to_thread(work.passes.finish)
        weights = work.weights.get(entry.author)
        found = await asyncio.to_thread(self._recomputer.agreement, work.payload, weights)
        work.left.pop(0)
        work.passes = None
        if found.compared:
            work.looks.append(look_of(entry, found, work.ages))
        await self._follow(work, entry.author, payload)

    async def _follow(self, work: Panel, author: PeerId, payload: Payload) -> None:
        """Hold the like payloads against the gradient of this author of one of them."""
        for pair in work.twins:
            both = (pair.one, pair.other)
            if author not in (sent.author for sent in both):
                continue
            for sent in both:
                entry = Entry(sent.author, sent.digest, 0, 0, 0)
                with contextlib.suppress(UnavailableError):
                    blob = await payload(work.round, entry)
                    found = await asyncio.to_thread(self._recomputer.followed, blob)
                    if found is not None:
                        work.followed[author, sent.author] = found

    async def _judge(self, work: Panel) -> None:
        run_id = self._info.run_id
        evidence = proven(self._book, work.round, work.looks, run_id, work.draw)
        by = self._book.thresholds
        evidence += self._book.keep(work.round, copies(work.twins, work.followed, run_id, by))
        await asyncio.to_thread(self._save)
        for each in evidence:
            about = {"peer": each.author, "reason": words(each)}
            log.error("WORK NOT DONE", extra=about)
            self._tell(each)

    def _save(self) -> None:
        write_note(self._path, SavedAudits(self._info.run_id, self._book, self._ages))

    def _words(self) -> str:
        if self._broken:
            return f"has ended: {self._broken}"
        return self._book.words

    def document(self) -> dict[str, Any]:
        """The audit of work for /status.json."""
        book = self._book
        newest = list(book.rows.items())[: -AUTHORS_SHOWN - 1 : -1]
        return {
            "words": self._words(),
            "audits": book.audits,
            "round": book.newest_round,
            "verdicts": book.verdicts,
            "seconds": round(self._budget.spent_s, 1),
            "suspects": sorted(book.suspects),
            "authors": [_shown(author, rows) for author, rows in newest if rows],
            "found": [{"peer_id": each.author, "reason": words(each)} for each in book.found],
        }


def _shown(author: PeerId, rows: Sequence[Row]) -> dict[str, Any]:
    """The audits of one author that are kept, for people."""
    newest = rows[-1].audit
    return {
        "peer_id": author,
        "audits": len(rows),
        "round": newest.round,
        "agreement": newest.agreement / WHOLE,
        "expected": newest.expected / WHOLE,
    }


def trained(
    commit: Commit, recorded: wire.Committed, voids: frozenset[Digest] = frozenset()
) -> Mapping[PeerId, tuple[Share, ...]]:
    """The positions that the authors of a commit say they trained; without those whose payload is
    void, and those whose samples the record does not name.
    """
    found = {}
    for entry, said in zip(commit.entries, recorded.trained, strict=False):
        try:
            shares = tuple(Share(share.first, share.count) for share in said.shares)
        except LocalProtocolError:
            continue
        is_all = entry.samples and sum(share.count for share in shares) == entry.samples
        if is_all and entry.digest not in voids:
            found[entry.author] = shares
    return found


def drawn(
    draw: Draw,
    round: int,
    authors: Collection[PeerId],
    named: frozenset[PeerId],
    *,
    book: Book,
    ages: Ages,
) -> list[PeerId]:
    """The authors of a round, which its `draw` has drawn, that are audited; in the first rounds,
    drawn or not, those alone that are `named`: more than turned signs is not told there.
    """
    due = [author for author in authors if book.is_due(author, round)]
    if round < rule.EARLY_ROUNDS:
        return draw.order(named.intersection(due))[: rule.PANEL]
    found = panel(
        draw,
        [author for author in due if author in named or book.judges(even=ages.is_even(author))],
        book.suspects | named,
        lambda other, first: book.compares(ages.known.get(first), ages.known.get(other)),
    )
    return found if len(found) > 1 else []  # nobody to compare with


def proven(
    book: Book, round: int, looks: Sequence[PayloadAudit], run_id: RunId, draw: Draw
) -> list[Evidence]:
    """What the audits of a round prove, by its draw."""
    if round < rule.EARLY_ROUNDS:
        return book.take_early(round, looks, run_id)
    return book.take(round, looks, run_id, draw)


def look_of(entry: Entry, found: Agreement, ages: Ages) -> PayloadAudit:
    """What the audit of one payload has found."""
    author = entry.author
    age, settled = ages.of(author), ages.is_settled(author)
    return PayloadAudit(
        author,
        entry.digest,
        found.share,
        found.compared,
        age,
        settled,
        samples=entry.samples,
        even=ages.is_even(author),
    )

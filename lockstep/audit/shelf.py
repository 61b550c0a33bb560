"""What an auditor keeps over a restart: the state that it has replayed to, and its counts.

    audit.json           counts for each place in the log that a saved state may have
    audit.safetensors    the newest saved state and its place (`Replica.save`)

The counts are written first, with those of the state before: whichever of the two writes a kill
comes between, the state that is there finds the counts of its own place.
"""

import logging
from copy import deepcopy
from pathlib import Path

import msgspec

from lockstep.audit.findings import Findings
from lockstep.audit.tally import Tally
from lockstep.audit.walk import LogWalk
from node.replica.position import Position
from node.system.run_notes import RunNote, read_note, write_note
from protocol.ids import RunId

log = logging.getLogger("lockstep.auditor")

STATE_NAME = "audit.safetensors"
"""Name of the file with the replayed state."""

COUNTS_NAME = "audit.json"
"""Name of the file with the counts."""


class Counts(msgspec.Struct):
    """The counts of an audit at one place in the log."""

    next_round: int
    began_after: int = -1
    replayed: int = 0
    voids: int = 0
    restarts: int = 0
    payloads_ignored: int = 0
    tally: Tally = msgspec.field(default_factory=Tally)


class SavedCounts(RunNote):
    """The file of counts."""

    places: list[Counts]


class AuditShelf:
    """The saved state of one audit in `directory`; it is to be saved every `save_every` rounds."""

    def __init__(self, directory: Path, run_id: RunId, save_every: int) -> None:
        self.save_every = save_every
        self._state, self._counts = directory / STATE_NAME, directory / COUNTS_NAME
        self._run_id = run_id
        self._on_disk: Counts | None = None
        """Counts of the state that is on disk."""
        self.saved_round = -1
        """Round of the state that was saved last, or with which the audit began."""

    def save(self, walk: LogWalk, place: Position, counts: Counts) -> None:
        """Keep the state at a place; blocks. `StorageError` leaves the older one."""
        before = self._on_disk
        older = [before] if before and before.next_round != counts.next_round else []
        write_note(self._counts, SavedCounts(self._run_id, [*older, counts]))
        walk.replica.save(self._state, place)
        self._on_disk, self.saved_round = counts, place.head_round

    def load(self, walk: LogWalk, before: int | None = None) -> tuple[Position, Counts] | None:
        """Put the replica where it was saved; None, and genesis, when nothing is, when it is
        damaged, or when the round `before` lies in it already.
        """
        place = walk.replica.load(self._state)
        saved = read_note(self._counts, SavedCounts(self._run_id, []), log, "counts cannot be used")
        counts = {each.next_round: each for each in saved.places}
        self._on_disk = counts.get(place.next_round) if place else None
        too_new = place is not None and before is not None and place.next_round > before
        if place is None or self._on_disk is None or too_new:
            walk.replica.reset()
            return None
        return place, deepcopy(self._on_disk)


def put_into(findings: Findings, counts: Counts) -> None:
    """Let the findings count on from saved ones."""
    for name in ("began_after", "replayed", "voids", "restarts"):
        setattr(findings, name, getattr(counts, name))


def counts_of(findings: Findings, place: Position, ignored: int, tally: Tally) -> Counts:
    """The counts at a place; a copy."""
    return Counts(
        place.next_round,
        began_after=findings.began_after,
        replayed=findings.replayed,
        voids=findings.voids,
        restarts=findings.restarts,
        payloads_ignored=ignored,
        tally=deepcopy(tally),
    )

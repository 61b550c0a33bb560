"""Reads and checks the chain of the operator's acts in a journal, without the coordinator: it may
be at work, or stopped.

A row that was changed does not have its digest; one that was taken out or put in breaks the link of
the next. Acts that were cut off the end are found by anybody who kept a later digest.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from coordinator.journal_file import reading
from coordinator.machine.events import acts
from coordinator.machine.events.acts import Act, Ordered
from protocol.codec.decoding import UNREADABLE
from protocol.errors import StorageError
from protocol.ids import Digest, RunId


@dataclass(frozen=True, slots=True)
class LoggedAct:
    """One act of a sound log."""

    sequence: int
    """Number of its event in the journal."""
    act: Act
    given_s: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class ActLog:
    """The acts of a run, oldest first, and the digest of the newest."""

    run_id: RunId
    acts: tuple[LoggedAct, ...]
    head: Digest


def read_acts(journal: Path) -> ActLog:
    """The acts in a journal. Raises `StorageError` with the place of the first one that is not what
    the chain says.
    """
    run_id, rows = _rows(journal)
    head, found = acts.first_digest(run_id), list[LoggedAct]()
    for sequence, body in rows:
        try:
            event = msgspec.msgpack.decode(body, type=Ordered)
        except UNREADABLE as error:
            raise StorageError(
                f"{journal}: act {len(found) + 1} (event {sequence}) is damaged: {error}"
            ) from None
        if flaw := acts.flaw(event, head):
            raise StorageError(
                f"{journal}: act {len(found) + 1} (event {sequence}, {acts.words(event.act)}) was "
                f"changed, or one before it: {flaw}"
            )
        head = event.digest
        found.append(LoggedAct(sequence, event.act, event.given_s, head))
    return ActLog(run_id, tuple(found), head)


def _rows(journal: Path) -> tuple[RunId, list[tuple[int, bytes]]]:
    with reading(journal) as file:
        run = file.execute("SELECT value FROM meta WHERE key = 'run_id'").fetchone()
        rows = file.execute(
            "SELECT sequence, body FROM events WHERE kind = ? ORDER BY sequence",
            (Ordered.__name__,),
        ).fetchall()
    if run is None:
        raise StorageError(f"{journal}: expected the journal of a run, found an empty one")
    return RunId(run[0]), rows

"""Is a journal what its events make of it? The whole history is folded again from the first event.

Checked: the file itself, that no event is missing or damaged, that every commit on record is the
one that the events decide, signed by this run's key and linked to the one before, and that every
snapshot is the state of its events.
"""

from dataclasses import dataclass

from coordinator.journal import Journal, RecordedCommit
from coordinator.machine.events import CommitRound, Effect
from coordinator.machine.rounds import Rounds
from coordinator.state_snapshot import durable, remember
from protocol.commits import commit_bytes, open_commit
from protocol.errors import LockstepError, StorageError


@dataclass(frozen=True, slots=True)
class Checked:
    """What a sound journal holds."""

    events: int
    commits: int
    snapshots: int
    head_round: int


def check_journal(journal: Journal, rounds: Rounds, coordinator_key: bytes) -> Checked:
    """Fold `journal` into the fresh machine `rounds`. Raises `StorageError` that says where it is
    damaged.
    """
    if damage := journal.damage():
        raise StorageError(f"the journal's file is damaged: {damage}")
    recorded = _recorded(journal)
    snapshots = dict(journal.snapshots())
    count = 0
    for sequence, at_ms, event in journal.numbered_events():
        if sequence != count + 1:
            raise StorageError(f"expected event {count + 1} in the journal, found event {sequence}")
        try:
            effects = rounds.handle(event, at_ms)
        except LockstepError as error:
            raise StorageError(
                f"event {sequence} ({event}) does not follow from those before it: {error}"
            ) from None
        _compare_commits(effects, recorded, coordinator_key, sequence)
        if sequence in snapshots and durable(snapshots[sequence]) != durable(remember(rounds)):
            raise StorageError(
                f"the snapshot after event {sequence} is not the state that the events lead to"
            )
        count = sequence
    if recorded:
        raise StorageError(
            f"the commit of round {min(recorded)} is on record, and no event decides it"
        )
    return Checked(count, rounds.committed, len(snapshots), rounds.head_round)


def _recorded(journal: Journal) -> dict[int, RecordedCommit]:
    rows: dict[int, RecordedCommit] = {}
    while page := journal.commits(max(rows, default=-1), 1000):
        rows |= {row.round: row for row in page}
    return rows


def _compare_commits(
    effects: list[Effect],
    recorded: dict[int, RecordedCommit],
    coordinator_key: bytes,
    sequence: int,
) -> None:
    """Take the commits that an event decided off the record; the machine itself links them."""
    for effect in effects:
        if isinstance(effect, CommitRound):
            row = recorded.pop(effect.commit.round, None)
            if row is None or row.signed.body != commit_bytes(effect.commit):
                found = "no commit" if row is None else "another commit"
                raise StorageError(
                    f"event {sequence} decides round {effect.commit.round}, and {found} is on record"
                )
            open_commit(row.signed, coordinator_key)

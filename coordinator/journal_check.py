"""Checks a journal: folds its whole history again from the first event.

A sound journal has an undamaged file, no missing or damaged event, only commits that its events
decide (signed by the run's key, each linked to the one before), and only snapshots that equal the
state after their events.
"""

from dataclasses import dataclass

from coordinator.journal import Journal, RecordedCommit
from coordinator.machine.events import CommitRound, Effect
from coordinator.machine.rounds import Rounds
from coordinator.machine.run_state import RunState
from coordinator.state_snapshot import decode_state, durable_part
from protocol.codec.commits import commit_bytes, open_commit
from protocol.errors import LockstepError, StorageError


@dataclass(frozen=True, slots=True)
class Checked:
    """Size of a sound journal."""

    events: int
    commits: int
    snapshots: int
    head_round: int


def check_journal(journal: Journal, rounds: Rounds, coordinator_key: bytes) -> Checked:
    """Fold `journal` into the fresh machine `rounds`. Raises `StorageError` with the place of the
    damage.
    """
    if damage := journal.damage():
        raise StorageError(f"the journal's file is damaged: {damage}")
    recorded = _recorded(journal)
    snapshots = dict(journal.snapshots())
    count = 0
    for sequence, at_ms, event in journal.numbered_events():
        if sequence != count + 1:
            raise StorageError(f"expected event {count + 1} in the journal, got event {sequence}")
        try:
            effects = rounds.handle(event, at_ms)
        except LockstepError as error:
            raise StorageError(
                f"event {sequence} ({event}) does not follow from those before it: {error}"
            ) from None
        _compare_commits(effects, recorded, coordinator_key, sequence)
        if sequence in snapshots:
            _compare_state(decode_state(snapshots[sequence]), rounds.state, sequence)
        count = sequence
    if recorded:
        raise StorageError(
            f"the commit of round {min(recorded)} is on record, and no event decides it"
        )
    state = rounds.state
    return Checked(count, state.totals.committed, len(snapshots), state.head_round)


def _recorded(journal: Journal) -> dict[int, RecordedCommit]:
    rows: dict[int, RecordedCommit] = {}
    while page := journal.commits(max(rows, default=-1), 1000):
        rows |= {row.round: row for row in page}
    return rows


def _compare_state(found: RunState, folded: RunState, sequence: int) -> None:
    if durable_part(found) != durable_part(folded):
        raise StorageError(
            f"the snapshot after event {sequence} is not the state that the events lead to"
        )


def _compare_commits(
    effects: list[Effect],
    recorded: dict[int, RecordedCommit],
    coordinator_key: bytes,
    sequence: int,
) -> None:
    """Compare the commits that an event decides with those on record, and take these off
    `recorded`. That they are linked follows: the machine links its own.
    """
    for effect in effects:
        if isinstance(effect, CommitRound):
            row = recorded.pop(effect.commit.round, None)
            if row is None or row.signed.body != commit_bytes(effect.commit):
                found = "no commit" if row is None else "another commit"
                raise StorageError(
                    f"event {sequence} decides round {effect.commit.round}, "
                    f"and {found} is on record"
                )
            open_commit(row.signed, coordinator_key)

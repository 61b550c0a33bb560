"""Checks a journal: folds its whole history again from the first event.

A sound journal has an undamaged file, no missing or damaged event, only commits that its events
decide (signed by the run's key, each linked to the one before), only voids and restarts that its
events make, and only snapshots that equal the state after their events.
"""

from dataclasses import dataclass

from coordinator.journal import Journal, RecordedCommit, RecordedEntry
from coordinator.machine.events import Chained, CommitRound, Effect
from coordinator.machine.rounds import Rounds
from coordinator.machine.run_state import RunState
from coordinator.state_snapshot import decode_state, durable_part
from protocol.codec.chain import Reschedule, Restart, Void, open_entry
from protocol.codec.commits import commit_bytes, open_commit
from protocol.errors import LockstepError, StorageError

_LAST_ROUND = 2**62


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
    recorded, entries = _recorded(journal), journal.entries(0, _LAST_ROUND)
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
        _compare_entries(effects, entries, coordinator_key, sequence)
        if sequence in snapshots:
            _compare_state(decode_state(snapshots[sequence]), rounds.state, sequence)
        count = sequence
    if recorded:
        raise StorageError(
            f"the commit of round {min(recorded)} is on record, and no event decides it"
        )
    if entries:
        raise StorageError(
            f"an entry of the chain after round {entries[0].after_round} is on record, and no "
            "event makes it"
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
            if row.trained != effect.trained:
                raise StorageError(
                    f"event {sequence} decides round {effect.commit.round} with other samples than "
                    "those on record"
                )


def _compare_entries(
    effects: list[Effect], entries: list[RecordedEntry], coordinator_key: bytes, sequence: int
) -> None:
    """Compare the entries of the chain that an event makes with the next on record, and take these
    off `entries`.
    """
    for effect in effects:
        match effect:
            case Chained(Void() as entry):
                makes = f"makes a payload of round {entry.round} void"
            case Chained(Restart() as entry):
                makes = f"lets the run go on from a checkpoint after round {entry.round}"
            case Chained(Reschedule() as entry):
                makes = f"changes the schedule after round {entry.round}"
            case _:
                continue
        row = entries.pop(0) if entries else None
        if row is None or open_entry(row.signed, coordinator_key, entry.run_id) != entry:
            found = "none" if row is None else "another one"
            raise StorageError(f"event {sequence} {makes}, and {found} is on record")

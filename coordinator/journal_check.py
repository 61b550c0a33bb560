"""Checks a journal: folds its whole history again from the first event.

A sound journal has an undamaged file, no missing or damaged event, only commits that its events
decide (signed by the run's key, each linked to the one before) with the loss, the samples and the
majority's digest that its events lead to, only decisions, voids and restarts that its events make,
and only snapshots that equal the state after their events. So each of its tables is covered.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from coordinator.journal import Journal, RecordedCommit, RecordedEntry
from coordinator.machine.decided_rounds import DecidedRound, OpenRounds
from coordinator.machine.events.effects import Chained, CommitRound, Effect, RecordDigest
from coordinator.machine.machine import RunMachine
from coordinator.machine.state.run_state import RunState
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


def check_journal(journal: Journal, rounds: RunMachine, coordinator_key: bytes) -> Checked:
    """Fold `journal` into the fresh machine `rounds`. Raises `StorageError` with the place of the
    damage.
    """
    if damage := journal.damage():
        raise StorageError(f"the journal's file is damaged: {damage}")
    recorded, entries = _recorded(journal), journal.entries(0, _LAST_ROUND)
    snapshots = dict(journal.snapshots())
    rows, digests, count = dict(recorded), dict[int, RecordDigest](), 0
    open_rounds, decided = OpenRounds(), journal.decided(0, _LAST_ROUND)
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
        _compare_decisions(open_rounds.follow(effects, at_ms), decided, sequence)
        digests |= {each.round: each for each in effects if isinstance(each, RecordDigest)}
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
    if decided:
        raise StorageError(f"round {min(decided)} is on record as decided, and no event decides it")
    _compare_digests(rows, digests)
    state = rounds.state
    return Checked(count, state.totals.committed, len(snapshots), state.head_round)


def _recorded(journal: Journal) -> dict[int, RecordedCommit]:
    rows: dict[int, RecordedCommit] = {}
    while page := journal.commits(max(rows, default=-1), 1000, for_audit=True):
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
            if open_commit(row.signed, coordinator_key) != effect.commit:
                raise StorageError(
                    f"event {sequence} decides round {effect.commit.round} with other authors than "
                    "those on record"
                )
            if row.trained != effect.trained:
                raise StorageError(
                    f"event {sequence} decides round {effect.commit.round} with other samples than "
                    "those on record"
                )
            if row.signed_sums not in ((), effect.signed):  # of old rounds they are gone
                raise StorageError(
                    f"event {sequence} decides round {effect.commit.round} with other signatures "
                    "of summers than those on record"
                )
            loss = None if math.isnan(effect.loss) else effect.loss  # SQLite has no NaN
            if row.loss != loss:
                raise StorageError(
                    f"event {sequence} decides round {effect.commit.round} with the loss {loss}, "
                    f"and {row.loss} is on record"
                )


def _compare_decisions(
    decided: Iterable[DecidedRound], recorded: dict[int, DecidedRound], sequence: int
) -> None:
    """Compare the decisions that an event makes with those on record, and take these off
    `recorded`. How a round began is not compared: a restart tells it anew.
    """
    for each in decided:
        row = recorded.pop(each.round, None)
        if row is None or (row.reason, row.decided_ms) != (each.reason, each.decided_ms):
            found = "none" if row is None else "another decision"
            raise StorageError(
                f"event {sequence} decides round {each.round} at {each.decided_ms} ms"
                f"{each.reason and f' ({each.reason})'}, and {found} is on record"
            )


def _compare_digests(rows: dict[int, RecordedCommit], digests: dict[int, RecordDigest]) -> None:
    """Compare what is on record of the members' agreement with the last word of the events."""
    for round, row in rows.items():
        found = row.state_digest, row.reports, row.dissent, row.snapshot_sha256
        last = digests.get(round)
        expected = (
            (last.state_digest, last.reports, last.dissent, last.snapshot_sha256)
            if last
            else (None, 0, 0, b"")
        )
        if found != expected:
            raise StorageError(
                f"the digest of round {round} on record is not the one that the events lead to"
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

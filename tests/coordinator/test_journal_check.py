"""The check accepts a sound journal and names the place of damage in another."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from coordinator.journal import Journal
from coordinator.journal_check import Checked, check_journal
from coordinator.machine.events.inputs import Applied, Joined, Left, NotHeld, Ready, RestartAsked
from coordinator.machine.machine import RunMachine
from protocol.errors import LockstepError, StorageError
from protocol.handshake import public_bytes
from protocol.ids import sha256
from tests.coordinator.machine.driver import RUN, A, B, payload_digest
from tests.coordinator.test_sequencer import (
    COORDINATOR_KEY,
    a_round,
    announcement,
    desk_of,
    joining,
    quiet_spec,
    submit,
)

ROUNDS = 4


@pytest.fixture
async def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of four rounds, one with its digest, and snapshots in between."""
    monkeypatch.setattr("coordinator.sequencer.SNAPSHOT_EVENTS", 7)
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B))
        for round in range(ROUNDS):
            await submit(desk, *a_round(round))
        await submit(desk, *(Applied(peer, 0, 7, b"") for peer in (A, B)))
    return tmp_path


@contextmanager
def opened(directory: Path) -> Iterator[Journal]:
    journal = Journal(directory / "journal.sqlite")
    try:
        yield journal
    finally:
        journal.close()


def checked(directory: Path) -> Checked:
    with opened(directory) as journal:
        return check_journal(journal, RunMachine(quiet_spec(), RUN), public_bytes(COORDINATOR_KEY))


def alter(directory: Path, statement: str) -> None:
    with closing(sqlite3.connect(directory / "journal.sqlite")) as database, database:
        assert database.execute(statement).rowcount > 0


def test_a_sound_journal_is_counted(directory: Path) -> None:
    found = checked(directory)
    assert (found.commits, found.head_round) == (ROUNDS, ROUNDS - 1)
    assert found.snapshots >= 2
    assert found.events >= 20


async def test_a_restart_from_a_snapshot_is_the_state_of_all_events(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(directory) as journal:
        after, _ = journal.newest_snapshot()
    folded: list[int] = []
    real = Journal.numbered_events
    monkeypatch.setattr(
        Journal,
        "numbered_events",
        lambda self, after=0: (folded.append(after), real(self, after))[1],
    )
    async with desk_of(directory) as desk:
        await submit(desk, *a_round(ROUNDS))
        assert desk.sequencer.rounds.state.totals.committed == ROUNDS + 1
    assert folded[0] == after > 0
    assert checked(directory).commits == ROUNDS + 1


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "DELETE FROM events WHERE sequence = 9",
            "expected event 9 in the journal, got event 10",
        ),
        ("UPDATE events SET body = x'c1' WHERE sequence = 5", r"event 5 \(\w+\) is damaged"),
        (
            "UPDATE events SET kind = 'Nothing' WHERE sequence = 6",
            r"event 6 \(Nothing\) is damaged",
        ),
        ("UPDATE events SET at_ms = 0 WHERE sequence = 8", "event 8 .* does not follow"),
        ("DELETE FROM commits WHERE round = 2", "decides round 2, and no commit is on record"),
        (
            "UPDATE commits SET body = x'00' WHERE round = 1",
            "decides round 1, and another commit is on record",
        ),
        (
            "UPDATE commits SET signature = zeroblob(64) WHERE round = 0",
            "signed by this run's coordinator",
        ),
        (
            "INSERT INTO commits SELECT 77, body, signature, x'', loss FROM commits LIMIT 1",
            "round 77 is on record, and no",
        ),
        ("UPDATE commits SET loss = 1.5 WHERE round = 1", "with the loss .*, and 1.5 is on record"),
        ("UPDATE commits SET loss = NULL WHERE round = 1", "the loss .*, and None is on record"),
        (
            "UPDATE digests SET state_digest = x'0000000000000001' WHERE round = 0",
            "the digest of round 0 on record is not the one that the events lead to",
        ),
        ("UPDATE digests SET reports = 9 WHERE round = 0", "the digest of round 0 on record"),
        ("DELETE FROM digests WHERE round = 0", "the digest of round 0 on record"),
        ("UPDATE rounds SET reason = 'x' WHERE round = 1", "another decision is on record"),
        ("UPDATE rounds SET decided_ms = 1 WHERE round = 1", "another decision is on record"),
        (
            "INSERT INTO rounds SELECT 77, reason, 1, 1, 1, 1, 1 FROM rounds LIMIT 1",
            "round 77 is on record as decided, and no event decides it",
        ),
        ("UPDATE snapshots SET state = x'c1'", "expected a snapshot of a run's state"),
    ],
)
def test_damage_is_reported_with_its_place(directory: Path, statement: str, words: str) -> None:
    alter(directory, statement)
    with pytest.raises(LockstepError, match=words):
        checked(directory)


def test_a_decision_that_is_missing_on_record_is_found(directory: Path) -> None:
    alter(directory, "DELETE FROM rounds WHERE round = 1")
    with pytest.raises(StorageError, match=r"decides round 1 at .*, and none is on record"):
        checked(directory)


def test_a_snapshot_that_is_not_the_state_of_its_events_is_refused(directory: Path) -> None:
    alter(
        directory,
        "UPDATE snapshots SET state = (SELECT state FROM snapshots ORDER BY sequence DESC LIMIT 1)",
    )
    with pytest.raises(StorageError, match="is not the state that the events lead to"):
        checked(directory)


def test_an_overwritten_page_of_the_file_is_reported(directory: Path) -> None:
    with opened(directory):
        pass  # a last close moves what is in the write-ahead log into the file
    path = directory / "journal.sqlite"
    blob = bytearray(path.read_bytes())
    for page in range(4096, len(blob), 4096):
        blob[page : page + 64] = b"\xa5" * 64
    path.write_bytes(blob)
    with pytest.raises(StorageError):
        checked(directory)


# ---- voids


@pytest.fixture
def no_time_for_voids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds need the settings that the journal was made with."""
    monkeypatch.setattr("coordinator.machine.rules.voiding.LEAST_MS", 0)
    monkeypatch.setattr("coordinator.machine.rules.voiding.SLOTS", 0)


@pytest.fixture
async def with_a_void(tmp_path: Path, no_time_for_voids: None) -> Path:
    """A journal whose first round counts a payload of B that A lacked when B was gone."""
    spec = quiet_spec(rounds={"quorum": 1})
    async with desk_of(tmp_path, spec) as desk:
        await submit(desk, *joining(A), *joining(B), *a_round(0), Left(B, "goodbye"))
        await submit(desk, NotHeld(A, 0, (payload_digest(B, 0),)))
        await desk.told(lambda: bool(desk.sequencer.tail))
        assert [entry.round for entry in desk.journal.entries(0, 0)] == [0]
        tail = desk.sequencer.tail
    async with desk_of(tmp_path, spec) as again:
        assert again.sequencer.tail == tail
        await submit(again, Joined(A, (), "", "", ""), Ready(A, 0, 2, voids=1))
        await submit(again, announcement(A, 1))
        assert again.journal.last_commits(1)[0].round == 1
        assert again.sequencer.tail == ()
    return tmp_path


def checked_with_a_void(directory: Path) -> Checked:
    rounds = RunMachine(quiet_spec(rounds={"quorum": 1}), RUN)
    with opened(directory) as journal:
        return check_journal(journal, rounds, public_bytes(COORDINATOR_KEY))


def test_a_journal_with_a_void_is_sound_and_goes_on_after_a_restart(
    with_a_void: Path,
) -> None:
    assert checked_with_a_void(with_a_void).commits == 2


def test_a_void_that_is_missing_on_record_or_that_no_event_makes_is_found(
    with_a_void: Path,
) -> None:
    alter(
        with_a_void,
        "INSERT INTO entries SELECT 9, after_round, round, body, signature FROM entries",
    )
    with pytest.raises(StorageError, match="after round 0 is on record, and no event makes it"):
        checked_with_a_void(with_a_void)
    alter(with_a_void, "DELETE FROM entries")
    with pytest.raises(
        StorageError, match="makes a payload of round 0 void, and none is on record"
    ):
        checked_with_a_void(with_a_void)


# ---- restarts from a checkpoint


@pytest.fixture
async def with_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal whose run went on from a checkpoint after its first round, and one round more."""
    monkeypatch.setattr("coordinator.sequencer.SNAPSHOT_EVENTS", 3)
    asked = RestartAsked(sha256(b"parameters"), 2**64 - 1, forced=True)
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), *a_round(0), asked)
        tail = desk.sequencer.tail
        assert [entry.round for entry in desk.journal.entries(0, 0)] == [-1]
    async with desk_of(tmp_path) as again:
        assert again.sequencer.tail == tail
        for peer in (A, B):
            ready = Ready(peer, 0, 2**64 - 1, voids=1)
            await submit(again, Joined(peer, (), "", "", ""), ready)
        await submit(again, *a_round(again.sequencer.rounds.state.undecided[0].round))
        assert again.sequencer.head_round > 0
        assert again.sequencer.tail == ()
    return tmp_path


def test_a_journal_with_a_restart_from_a_checkpoint_is_sound_and_goes_on(
    with_a_restart: Path,
) -> None:
    assert checked(with_a_restart).commits == 2


def test_a_restart_from_a_checkpoint_that_is_missing_on_record_is_found(
    with_a_restart: Path,
) -> None:
    alter(with_a_restart, "DELETE FROM entries")
    with pytest.raises(StorageError, match="go on from a checkpoint after round 0, and none is on"):
        checked(with_a_restart)

"""The journal: everything or nothing, and only for the run that it belongs to."""

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.bound_run import FORMAT
from coordinator.journal import SNAPSHOTS_KEPT, Journal, RecordedEntry
from coordinator.machine.decided_rounds import DecidedRound
from coordinator.machine.events.acts import Ban, Salted, TokenShown, Vouched, first_digest, ordered
from coordinator.machine.events.effects import RecordDigest
from coordinator.machine.events.inputs import (
    Announced,
    Applied,
    Audited,
    CheckpointFailed,
    CheckpointSaid,
    CheckpointStored,
    Concluded,
    Disconnected,
    Evaluated,
    Event,
    Heartbeat,
    HeldParts,
    Holding,
    InstantReached,
    Joined,
    Lapsed,
    Left,
    LinksMeasured,
    NotHeld,
    OfferEnded,
    PartsHeld,
    Ready,
    RestartAsked,
    Restarted,
    RoomGiven,
    Summed,
    SummersLate,
    SumsOffered,
    VoidDue,
)
from protocol.codec.chain import SignedEntry
from protocol.codec.commits import (
    Commit,
    Entry,
    SignedCommit,
    genesis_digest,
    open_commit,
    sign_commit,
)
from protocol.errors import SettingsError, ShortageError, StorageError, VersionError
from protocol.handshake import public_bytes
from protocol.ids import RunId, sha256
from protocol.mixing.link_report import MeasuredLink
from protocol.shuffle import Share
from protocol.sums.signed import SumSigned
from tests.coordinator.disk import leave_pages
from tests.coordinator.machine.driver import RUN, A, B
from tests.support.shortage import no_descriptors

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)

EVENTS: list[Event] = [
    Joined(A, ("10.0.0.1:1", "[::1]:2"), "Bücher", "2 cores", "lockstep 0"),
    Ready(A, -1, 2**64 - 1),
    Announced(A, 3, b"d" * 32, 2**48 - 1, 7, 1000, 0.1),
    Announced(B, 3, b"", 0, 0, 0, -1e300),
    Holding(B, 3, (sha256(b"a"), sha256(b"b"))),
    Holding(B, 3, ()),
    Applied(A, 3, 0, b""),
    Applied(A, 3, 1, b"s" * 32),
    Audited(A, -1, 2**64 - 1, b"s" * 32, 1),
    Left(A, "goodbye"),
    NotHeld(A, 3, (sha256(b"a"),)),
    PartsHeld(A, 3, (HeldParts(2**64 - 1, 2**64 - 1), HeldParts(0, 1))),
    Summed(A, 3, 63, sha256(b"a"), 4000, 2**32 - 1, b"k" * 32, b"s" * 64),
    SummersLate(3),
    SumsOffered(A, "relay", 2**64 - 1),
    OfferEnded(A),
    LinksMeasured(A, (MeasuredLink(B, 12, 20_000_000),)),
    VoidDue(3, sha256(b"a")),
    RestartAsked(sha256(b"a"), 2**64 - 1),
    Disconnected(A),
    Lapsed(B),
    InstantReached(3, "publish_by"),
    Concluded(),
    Restarted(),
    Vouched(A),
    Salted(b"s" * 32),
    TokenShown(A, sha256(b"secret"), 1_700_000_000),
    ordered(Ban("192.0.2.7", "noise"), 1_700_000_000, first_digest(RUN)),
    RoomGiven(2 * 10**9, 2),
    CheckpointSaid(A, 3, 2**64 - 1, sha256(b"a"), 4000, "hf://a/b", ""),
    CheckpointStored(A, 3, 2**64 - 1, sha256(b"a"), 4000),
    CheckpointFailed(A, 3, "its disk is full"),
    Evaluated(A, 3, 1.5, 8, sha256(b"a"), ""),
    Evaluated(A, 3, 0.0, 0, b"", "it is too busy"),
]


def signed(round: int) -> SignedCommit:
    entry = Entry(A, sha256(b"payload"), 100, 1, 8)
    return sign_commit(Commit(RUN, round, round, (entry,), 0, 0, genesis_digest(RUN)), KEY)


def everything_in(journal: Journal) -> tuple[object, ...]:
    commits = journal.commits(-1, 10, for_audit=True)
    found = commits, journal.entries(0, 10), list(journal.events())
    return *found, journal.snapshots(), journal.spec(), journal.decided(0, 10), journal.names()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    journal.bind(RUN, b"{}")
    yield journal
    journal.close()


def test_there_is_an_example_of_every_durable_event() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event)) - {Heartbeat}


def test_events_come_back_as_they_were_with_their_times(journal: Journal, path: Path) -> None:
    journal.append([(1000 + place, event) for place, event in enumerate(EVENTS)], [], [])
    journal.close()
    again = Journal(path)
    again.bind(RUN, b"{}")
    assert list(again.events()) == [(1000 + place, event) for place, event in enumerate(EVENTS)]
    again.close()


def test_commits_come_back_with_their_signature_and_the_majority(journal: Journal) -> None:
    journal.append(
        [],
        [(0, signed(0), 2.5), (2, signed(2), float("nan"))],
        [RecordDigest(0, 2**64 - 1, 3, 1, b"s" * 32)],
    )
    first, second = journal.commits(-1, 10)
    assert open_commit(first.signed, public_bytes(KEY)).round == 0
    assert (first.loss, first.state_digest, first.reports, first.dissent) == (2.5, 2**64 - 1, 3, 1)
    assert first.snapshot_sha256 == b"s" * 32
    assert (second.round, second.loss, second.state_digest, second.reports) == (2, None, None, 0)


def test_commits_are_paged_oldest_first_and_newest_first(journal: Journal) -> None:
    journal.append([], [(round, signed(round), 1.0) for round in (0, 1, 4, 5)], [])
    assert [row.round for row in journal.commits(0, 2)] == [1, 4]
    assert [row.round for row in journal.commits(5, 2)] == []
    assert [row.round for row in journal.last_commits(3)] == [5, 4, 1]


def test_what_summers_signed_is_kept_for_the_newest_rounds_with_sums(journal: Journal) -> None:
    said = tuple(SumSigned(n, sha256(b"r"), bytes(32), bytes(64), (1,)) for n in range(2))
    for round in (0, 2, 3, 7):
        commits = [(round, signed(round), 1.0)]
        journal.append([], commits, [], signed_sums={round: said}, signed_rounds=2)
    journal.append([], [(8, signed(8), 1.0)], [], signed_rounds=2)
    found = {row.round: row.signed_sums for row in journal.commits(-1, 10, for_audit=True)}
    assert found == {0: (), 2: (), 3: said, 7: said, 8: ()}
    assert not any(row.signed_sums for row in journal.commits(-1, 10)), "nobody has asked"


def test_a_later_majority_replaces_the_earlier_one(journal: Journal) -> None:
    journal.append([], [(0, signed(0), 1.0)], [RecordDigest(0, 7, 1, 0, b"")])
    journal.append([], [], [RecordDigest(0, 8, 3, 1, b"")])
    (row,) = journal.commits(-1, 1)
    assert (row.state_digest, row.reports, row.dissent) == (8, 3, 1)


def test_another_runs_file_is_refused_with_both_names(journal: Journal) -> None:
    other = RunId("ef" * 16)
    with pytest.raises(
        SettingsError, match=f"expected the journal of run {other}, .* got one of run {RUN}"
    ):
        journal.bind(other, b"{}")


@pytest.mark.parametrize("found", ["2", "99"])
def test_another_format_is_refused_in_one_line_that_tells_the_way_out(
    journal: Journal, path: Path, found: str
) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE meta SET value = ? WHERE key = 'format'", (found,))
    for use in (lambda: journal.bind(RUN, b"{}"), journal.spec):
        with pytest.raises(VersionError) as caught:
            use()
        assert str(caught.value) == (
            f"{path}: expected journal format {FORMAT}, got {found}; continue this run with the "
            "release of Lockstep that wrote it, or use another --directory"
        )


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET kind = 'Nonsense' WHERE sequence = 2",
        "UPDATE events SET body = X'C1' WHERE sequence = 2",
        "UPDATE events SET body = X'80' WHERE sequence = 2",
        "UPDATE events SET body = substr(body, 1, length(body) - 1) WHERE sequence = 2",
    ],
)
def test_a_damaged_event_is_named(journal: Journal, path: Path, damage: str) -> None:
    journal.append([(0, event) for event in EVENTS[:3]], [], [])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(damage)
    with pytest.raises(StorageError, match=r"event 2 \(\w+\) is damaged"):
        list(journal.events())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE commits SET body = 7",
        "UPDATE commits SET signature = 1.5",
        "UPDATE commits SET body = 'text', signature = '!'",
        "UPDATE leases SET body = x'a3b2fffe'",  # text that is no UTF-8
        "UPDATE digests SET reports = 'many'",
        "UPDATE entries SET body = 7",
        "UPDATE rounds SET reason = x'ff'",
        "UPDATE rounds SET decided_ms = 'text'",
        "UPDATE events SET body = x'81a3b2fffe01' WHERE kind = 'Joined'",
        "UPDATE events SET kind = CAST(x'b2ff' AS TEXT)",
        "UPDATE events SET body = 'text'",
        "UPDATE events SET body = x'81a3b2fffe01'",
        "UPDATE snapshots SET state = 7",
        "UPDATE meta SET value = 7 WHERE key = 'run_json'",
        "UPDATE meta SET value = x'7b22' WHERE key = 'run_json'",
    ],
)
def test_a_value_that_damage_has_made_is_a_damaged_file_and_no_bug(
    journal: Journal, path: Path, damage: str
) -> None:
    row = RecordDigest(0, 1, 1, 0, b"")
    trained = {0: ((Share(0, 4),),)}
    chained = [RecordedEntry(-1, 0, SignedEntry(b"entry", b"s" * 64))]
    journal.append(
        [(1, Lapsed(A)), (1, Joined(A, (), "attic", "", ""))],
        [(0, signed(0), 1.0)],
        [row],
        b"state",
        chained,
        trained=trained,
        decided=[DecidedRound(0, "", 1)],
    )
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        assert database.execute(damage).rowcount > 0
        database.commit()
    with pytest.raises(StorageError, match="damaged"):
        everything_in(journal)


def test_decisions_and_names_are_kept(journal: Journal) -> None:
    rows = [DecidedRound(0, "", 12, 10, 2, 4, 1), DecidedRound(1, "nobody came", 14)]
    joined = [Joined(A, (), "attic", "", ""), Lapsed(A), Joined(B, (), "", "", "")]
    journal.append([(1, event) for event in joined], [], [], decided=rows)
    journal.append([(2, Joined(A, (), "cellar", "", ""))], [], [], decided=[DecidedRound(2, "")])
    assert list(journal.decided(0, 1).values()) == rows
    assert journal.decided(2, 2**62) == {2: DecidedRound(2, "")}
    assert journal.names() == {A: "cellar", B: ""}


def test_names_are_found_without_reading_every_event(journal: Journal, path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        query = "EXPLAIN QUERY PLAN SELECT body FROM events WHERE kind = 'Joined' ORDER BY sequence"
        (plan,) = database.execute(query).fetchall()
    assert "USING INDEX joined" in plan[-1]


def test_a_file_that_is_no_journal_is_a_storage_error(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database, it is a letter to a friend " * 100)
    with pytest.raises(
        StorageError,
        match=f"cannot use the journal {path}: file is not a database; the file is dam",
    ):
        Journal(path)


def test_a_directory_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot use the journal"):
        Journal(tmp_path / "file" / "journal.sqlite")


def test_a_round_that_has_a_commit_takes_no_second_one_and_leaves_nothing(journal: Journal) -> None:
    journal.append([(0, Lapsed(A))], [(0, signed(0), 1.0)], [])
    with pytest.raises(StorageError, match="UNIQUE constraint failed"):
        journal.append(
            [(1, Lapsed(B))],
            [(1, signed(1), 1.0), (0, signed(0), 2.0)],
            [RecordDigest(0, 1, 1, 0, b"")],
        )
    assert list(journal.events()) == [(0, Lapsed(A))]
    assert [(row.round, row.loss, row.state_digest) for row in journal.commits(-1, 10)] == [
        (0, 1.0, None)
    ]
    journal.append([(2, Lapsed(B))], [(1, signed(1), 1.0)], [])
    assert len(journal.commits(-1, 10)) == 2


def test_a_full_disk_says_so_and_leaves_nothing(journal: Journal) -> None:
    leave_pages(journal, 2)
    batch = [(0, Left(A, "x" * 256))] * 500
    with pytest.raises(StorageError, match=r"database or disk is full; free space"):
        journal.append(batch, [(0, signed(0), 1.0)], [])
    assert list(journal.events()) == []
    assert journal.commits(-1, 10) == []
    leave_pages(journal, 10_000)
    journal.append(batch, [(0, signed(0), 1.0)], [])
    assert len(list(journal.events())) == 500


class SlowDigests(list[RecordDigest]):
    """Digests that keep the transaction which writes them open until they may be written."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.may_write = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[RecordDigest]:
        self.reached.set()
        assert self.may_write.wait(20)
        return iter(())


def test_only_the_newest_snapshots_stay(journal: Journal) -> None:
    for number in range(2 * SNAPSHOTS_KEPT):
        journal.append([(number, Lapsed(A))], [], [], b"state %d" % number)
    assert journal.newest_snapshot() == (2 * SNAPSHOTS_KEPT, b"state %d" % (2 * SNAPSHOTS_KEPT - 1))
    kept = [sequence for sequence, _ in journal.snapshots()]
    assert kept == list(range(SNAPSHOTS_KEPT + 1, 2 * SNAPSHOTS_KEPT + 1))


@pytest.fixture
def slow_write(journal: Journal) -> Iterator[SlowDigests]:
    """The journal writes an event and the commit of round 0 until `may_write` is set."""
    digests = SlowDigests()
    arguments = ([(0, Lapsed(A))], [(0, signed(0), 1.0)], digests)
    writer = threading.Thread(target=journal.append, args=arguments)
    writer.start()
    assert digests.reached.wait(20)
    yield digests
    digests.may_write.set()
    writer.join(20)


def test_a_commit_that_is_being_written_is_not_served(
    journal: Journal, slow_write: SlowDigests
) -> None:
    assert journal.commits(-1, 10) == []
    assert journal.last_commits(10) == []
    slow_write.may_write.set()
    journal.append([], [], [])  # comes after the first
    assert [row.round for row in journal.commits(-1, 10)] == [0]


def test_close_waits_for_a_write_under_way(
    journal: Journal, path: Path, slow_write: SlowDigests
) -> None:
    closer = threading.Thread(target=journal.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    slow_write.may_write.set()
    closer.join(20)
    again = Journal(path)
    assert list(again.events()) == [(0, Lapsed(A))]
    again.close()
    with pytest.raises(StorageError, match="closed database"):
        journal.append([], [], [])


def test_a_killed_writer_loses_nothing_that_was_appended(
    journal: Journal, path: Path, tmp_path: Path
) -> None:
    journal.append([(0, Lapsed(A))], [(0, signed(0), 1.0)], [])
    copy = tmp_path / "copy.sqlite"
    for suffix in ("", "-wal"):  # what is on disk while the file is open is what a kill leaves
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    survivor = Journal(copy)
    assert list(survivor.events()) == [(0, Lapsed(A))]
    assert [row.round for row in survivor.commits(-1, 10)] == [0]
    survivor.close()


def test_two_coordinators_on_one_directory_are_refused_and_a_closed_one_lets_go(path: Path) -> None:
    first = Journal(path)
    with pytest.raises(StorageError, match="another coordinator runs in"):
        Journal(path)
    first.close()
    Journal(path).close()


def test_a_journal_that_cannot_be_opened_for_lack_of_descriptors_is_not_broken(
    tmp_path: Path,
) -> None:
    with no_descriptors(), pytest.raises(ShortageError, match="Too many open files"):
        Journal(tmp_path / "journal")


def test_an_open_journal_needs_no_further_descriptor(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with no_descriptors():
        journal.bind(RUN, b"{}")
        journal.append([(1, Disconnected(A))] * 500, [], [], state=b"x" * 100_000)
        assert journal.commits(-1, 10) == []
        assert len(list(journal.events())) == 500
    journal.close()


def test_a_lack_of_memory_is_a_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    with monkeypatch.context() as patched:
        patched.setattr(msgspec, "convert", _no_memory)
        with pytest.raises(ShortageError, match="memory"):
            journal.snapshots()
    journal.close()


def _no_memory(*_: object) -> None:
    raise MemoryError


@pytest.fixture
def generous() -> Iterator[None]:
    """An account whose new files everybody may read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(path: Path) -> dict[str, int]:
    """Modes of the files with the journal's contents."""
    files = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in files}


@pytest.mark.skipif(os.name == "nt", reason="Windows has other rights than modes")
def test_other_accounts_read_neither_a_new_journal_nor_one_of_an_earlier_release(
    path: Path, generous: None
) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as earlier:
        earlier.execute("PRAGMA journal_mode = WAL")
        earlier.execute("CREATE TABLE hosts (host TEXT)")
        assert modes(path) == dict.fromkeys(modes(path), 0o644)
        journal = Journal(path)
        assert modes(path) == dict.fromkeys(modes(path), 0o600)
        journal.close()
    earlier.close()
    fresh = path.with_name("fresh.sqlite")
    journal = Journal(fresh)
    journal.append([(0, Lapsed(A))], [], [])
    assert modes(fresh) == dict.fromkeys(modes(fresh), 0o600)
    journal.close()

"""The coordinator's journal: every durable event and every commit, in one SQLite file.

    meta       one row per fact that never changes: run id, run file, format version
    events     (sequence, time, kind, msgpack body): state = fold(events)
    snapshots  (sequence of the last event in it, state): a shorter way there; the newest few
    commits    (round, body, signature, list of authors where the body names one, loss)
    digests    (round, state digest that the majority reported after the commit, counts)
    leases     (round, msgpack): the positions of the data order behind each entry of a commit
    sums       (round, msgpack): what the summers of a commit have signed; of the newest rounds
    rounds     (round, why it was skipped, its times): what of a decision is in no commit
    entries    (round of the commit before it, round that it is about, body, signature): what is in
               the chain beside commits

A batch of events and its decisions are written in one transaction (WAL, synchronous FULL) before
any of its effects leaves the process. Commits are read over a second connection, which sees only
finished transactions: a commit that is being written is never served. SQLite's own errors are
translated to `StorageError` here, and to `ShortageError` where they pass. The file has hosts, bans,
tokens and the salt of witnesses: other accounts of the machine cannot read it.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

import msgspec

from coordinator.bound_run import FORMAT, difference, require_format, spec_in
from coordinator.journal_file import close_to_others, connected, locked, translated
from coordinator.machine.decided_rounds import DecidedRound
from coordinator.machine.events.effects import RecordDigest
from coordinator.machine.events.inputs import Event, Heartbeat, Joined
from protocol.codec.chain import SignedEntry
from protocol.codec.commits import SignedCommit
from protocol.codec.decoding import UNREADABLE
from protocol.errors import SettingsError, StorageError
from protocol.ids import PeerId, RunId
from protocol.runfile import RunSpec
from protocol.shuffle import Share
from protocol.sums.signed import SumSigned

JOURNAL_NAME = "journal.sqlite"
"""Name of the journal in a coordinator's directory."""

SNAPSHOTS_KEPT = 4
"""Newest snapshots that stay: a restart reads one, the others are for `--check` to compare."""

_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event) if kind is not Heartbeat}

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS events (sequence INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (sequence INTEGER PRIMARY KEY, state BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS commits (round INTEGER PRIMARY KEY, body BLOB NOT NULL,
    signature BLOB NOT NULL, author_list BLOB NOT NULL, loss REAL);
CREATE TABLE IF NOT EXISTS digests (round INTEGER PRIMARY KEY, state_digest BLOB NOT NULL,
    reports INTEGER NOT NULL, dissent INTEGER NOT NULL, snapshot_sha256 BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS leases (round INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS sums (round INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY, reason TEXT NOT NULL,
    decided_ms INTEGER, opened_ms INTEGER, assigned INTEGER, slot_ms INTEGER, compute_ms INTEGER);
CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, after_round INTEGER NOT NULL,
    round INTEGER NOT NULL, body BLOB NOT NULL, signature BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS joined ON events (sequence) WHERE kind = 'Joined';
"""

_Leases: TypeAlias = tuple[tuple[Share, ...], ...]

_Sums: TypeAlias = tuple[SumSigned, ...]

_RoundRow: TypeAlias = tuple[int, str, int | None, int | None, int | None, int | None, int | None]

_CommitRow: TypeAlias = tuple[
    int,
    bytes,
    bytes,
    bytes,
    float | None,
    bytes | None,
    bytes | None,
    bytes | None,
    int | None,
    int | None,
    bytes | None,
]
"""A commit with what is on record about it: `Journal._commits` names the columns. Damage makes
values of other types, which SQLite permits.
"""

_ENTRIES = """
SELECT after_round, round, body, signature FROM entries WHERE round BETWEEN :first AND :last
OR after_round BETWEEN coalesce((SELECT max(round) FROM commits WHERE round < :first), -1) AND :last
ORDER BY number
"""


@dataclass(frozen=True, slots=True)
class RecordedCommit:
    """A commit as nodes ask for it, with the digest that the majority reported after it. `reports`
    is 0, or `state_digest` None, when no digest is on record.
    """

    round: int
    signed: SignedCommit
    loss: float | None
    state_digest: int | None
    reports: int
    dissent: int
    snapshot_sha256: bytes
    trained: tuple[tuple[Share, ...], ...] = ()
    """Positions of the data order behind each entry; empty where none are told."""
    signed_sums: tuple[SumSigned, ...] = ()
    """What its summers have signed, if it is one of the newest, and was asked for."""


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """An entry of the chain that is no commit: it follows the commit of `after_round`."""

    after_round: int
    round: int
    """The round whose payload it makes void; -1 for an entry that is about the whole state."""
    signed: SignedEntry


class Journal:
    """The journal of one run. Every method raises `StorageError` for a disk that is full, read-only
    or damaged, and `ShortageError` where descriptors or memory are short.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading, self._writing = threading.Lock(), threading.Lock()
        with self._translated(), ExitStack() as opened:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened.enter_context(closing(locked(path)))
            close_to_others(path)
            self._database = opened.enter_context(closing(connected(path)))
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_TABLES)
            self._reader = opened.enter_context(closing(connected(path)))
            self._reader.execute("PRAGMA query_only = ON")
            for each in (self._database, self._reader):  # which opens their files here and now
                each.execute("PRAGMA temp_store = MEMORY")
                each.execute("SELECT count(*) FROM meta").fetchone()
            self._opened = opened.pop_all()

    def bind(self, run_id: RunId, run_json: bytes) -> None:
        """Tie the file to a run on first use. Raises `SettingsError` for the journal of another
        run and `VersionError` for one of another format.
        """
        with self._translated():
            stored = dict(self._database.execute("SELECT key, value FROM meta").fetchall())
            if not stored:
                rows = {"format": FORMAT, "run_id": run_id, "run_json": run_json}
                self._database.executemany("INSERT INTO meta VALUES (?, ?)", rows.items())
                return
        require_format(stored, self._path)
        if stored.get("run_id") != run_id:
            reason = difference(stored.get("run_json", b""), run_json)
            raise SettingsError(
                f"{self._path}: expected the journal of run {run_id}, which this run file and key "
                f"make, got one of run {stored.get('run_id')}: {reason}"
            )

    def append(
        self,
        events: Sequence[tuple[int, Event]],
        commits: Sequence[tuple[int, SignedCommit, float]],
        digests: Sequence[RecordDigest],
        state: bytes | None = None,
        entries: Sequence[RecordedEntry] = (),
        *,
        trained: Mapping[int, tuple[tuple[Share, ...], ...]] = MappingProxyType({}),
        signed_sums: Mapping[int, tuple[SumSigned, ...]] = MappingProxyType({}),
        signed_rounds: int = 1000,
        decided: Sequence[DecidedRound] = (),
    ) -> None:
        """Write a batch, all or nothing: (time, event) pairs, (round, commit, mean loss) triples,
        digests, entries of the chain, by round what the authors of a commit trained and its summers
        signed, and the rounds that it decides. Signatures are kept for `signed_rounds` rounds.
        `state` is the encoded state after these events; a restart begins from it.
        """
        rows = [
            (at_ms, type(event).__name__, msgspec.msgpack.encode(event)) for at_ms, event in events
        ]
        with self._translated(), self._writing, self._transaction():
            self._database.executemany(
                "INSERT INTO events (at_ms, kind, body) VALUES (?, ?, ?)", rows
            )
            self._database.executemany(
                "INSERT INTO commits VALUES (?, ?, ?, ?, ?)",
                [(round, *astuple(signed), loss) for round, signed, loss in commits],
            )
            self._database.executemany(
                "INSERT INTO leases VALUES (?, ?)",
                [(round, msgspec.msgpack.encode(shares)) for round, shares in trained.items()],
            )
            self._append_sums(signed_sums, signed_rounds)
            self._database.executemany(
                "INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?, ?)",
                [_digest_row(row) for row in digests],
            )
            self._database.executemany(
                "INSERT INTO entries (after_round, round, body, signature) VALUES (?, ?, ?, ?)",
                [
                    (row.after_round, row.round, row.signed.body, row.signed.signature)
                    for row in entries
                ],
            )
            self._database.executemany(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", map(astuple, decided)
            )
            if state is not None:
                self._database.execute(
                    "INSERT INTO snapshots SELECT max(sequence), ? FROM events", (state,)
                )
                self._database.execute(
                    "DELETE FROM snapshots WHERE sequence NOT IN "
                    "(SELECT sequence FROM snapshots ORDER BY sequence DESC LIMIT ?)",
                    (SNAPSHOTS_KEPT,),
                )

    def _append_sums(self, said: Mapping[int, tuple[SumSigned, ...]], rounds: int) -> None:
        """Write what summers have signed, and drop it of all but the newest rounds with sums."""
        rows = [(round, msgspec.msgpack.encode(signed)) for round, signed in said.items()]
        self._database.executemany("INSERT INTO sums VALUES (?, ?)", rows)
        if rows:
            self._database.execute(
                "DELETE FROM sums WHERE round <= "
                "(SELECT round FROM sums ORDER BY round DESC LIMIT 1 OFFSET ?)",
                (rounds,),
            )

    def snapshots(self) -> list[tuple[int, bytes]]:
        """(sequence of the last event in it, state) of every snapshot, oldest first."""
        with self._translated():
            query = "SELECT sequence, state FROM snapshots ORDER BY sequence"
            found = self._database.execute(query).fetchall()
            return msgspec.convert(found, list[tuple[int, bytes]])

    def newest_snapshot(self) -> tuple[int, bytes | None]:
        """The last of `snapshots()`; (0, None) before the first."""
        with self._translated():
            query = "SELECT sequence, state FROM snapshots ORDER BY sequence DESC LIMIT 1"
            found = self._database.execute(query).fetchone() or (0, None)
            return msgspec.convert(found, tuple[int, bytes | None])

    def events(self) -> Iterator[tuple[int, Event]]:
        """All events in order, with their times."""
        for _, at_ms, event in self.numbered_events():
            yield at_ms, event

    def numbered_events(self, after: int = 0) -> Iterator[tuple[int, int, Event]]:
        """(sequence, time, event) of all events after number `after`; `StorageError` names the
        first damaged one.
        """
        with self._translated():
            rows = self._database.execute(
                "SELECT * FROM events WHERE sequence > ? ORDER BY sequence", (after,)
            )
            for row in rows:
                try:
                    sequence, at_ms, kind, body = msgspec.convert(row, tuple[int, int, str, bytes])
                    event: Event = msgspec.msgpack.decode(body, type=_KINDS[kind])
                except (KeyError, *UNREADABLE) as error:
                    raise StorageError(
                        f"{self._path}: event {row[0]} ({row[2]}) is damaged: {error}"
                    ) from None
                yield sequence, at_ms, event

    def commits(
        self, after_round: int, count: int, *, for_audit: bool = False
    ) -> list[RecordedCommit]:
        """At most `count` commits of rounds after `after_round`, oldest first; `for_audit` with
        their lists of authors, what authors have trained and what summers have signed.
        """
        where = "WHERE commits.round > ? ORDER BY commits.round LIMIT ?"
        return self._commits(where, (after_round, count), for_audit=for_audit)

    def last_commits(self, count: int) -> list[RecordedCommit]:
        """The newest commits, newest first, as for an audit."""
        return self._commits("ORDER BY commits.round DESC LIMIT ?", (count,), for_audit=True)

    def entries(self, first: int, last: int) -> list[RecordedEntry]:
        """Entries of the chain from the last commit before round `first` on up to the commit of
        round `last` or behind it, and those that are about these rounds; in their order.
        """
        with self._translated(), self._reading:
            found = self._reader.execute(_ENTRIES, {"first": first, "last": last}).fetchall()
            rows = msgspec.convert(found, list[tuple[int, int, bytes, bytes]])
        return [
            RecordedEntry(after, round, SignedEntry(body, signature))
            for after, round, body, signature in rows
        ]

    def decided(self, first: int, last: int) -> dict[int, DecidedRound]:
        """What is on record of the decisions of these rounds."""
        query = "SELECT * FROM rounds WHERE round BETWEEN ? AND ? ORDER BY round"
        with self._translated(), self._reading:
            found = self._reader.execute(query, (first, last)).fetchall()
            rows = msgspec.convert(found, list[_RoundRow])
        return {row[0]: DecidedRound(*row) for row in rows}

    def names(self) -> dict[PeerId, str]:
        """The newest name of everybody that was ever a member."""
        query = "SELECT body FROM events WHERE kind = 'Joined' ORDER BY sequence"
        with self._translated(), self._reading:
            joined = (
                msgspec.msgpack.decode(body, type=Joined) for (body,) in self._reader.execute(query)
            )
            return {each.peer: each.name for each in joined}

    def spec(self) -> RunSpec:
        """The run file that this journal is bound to. Raises `StorageError` when it is bound to
        none or damaged, `VersionError` when it is of another format.
        """
        with self._translated():
            stored = dict(self._database.execute("SELECT key, value FROM meta").fetchall())
        if not stored:
            raise StorageError(f"{self._path}: expected the journal of a run, got an empty one")
        return spec_in(stored, self._path)

    def damage(self) -> str:
        """Faults that SQLite finds in the file itself, with their places; empty for none."""
        with self._translated():
            found = [
                row[0] for row in self._database.execute("PRAGMA integrity_check(3)").fetchall()
            ]
        return "" if found == ["ok"] else "; ".join(found)

    def close(self) -> None:
        """Close once no other thread reads or writes: SQLite crashes when a database is closed
        while it is in use.
        """
        with self._reading, self._writing:
            self._opened.close()

    def _commits(
        self, where: str, arguments: tuple[int, ...], *, for_audit: bool
    ) -> list[RecordedCommit]:
        asked = int(for_audit)
        query = (
            "SELECT commits.round, commits.body, signature, "
            f"CASE {asked} WHEN 1 THEN author_list ELSE x'' END, loss, leases.body, sums.body, "
            "state_digest, reports, dissent, snapshot_sha256 "
            f"FROM commits LEFT JOIN leases ON leases.round = commits.round AND {asked} "
            f"LEFT JOIN sums ON sums.round = commits.round AND {asked} "
            f"LEFT JOIN digests ON digests.round = commits.round {where}"
        )
        with self._translated(), self._reading:
            found = self._reader.execute(query, arguments).fetchall()
            return [_recorded(*row) for row in msgspec.convert(found, list[_CommitRow])]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk has ended it already
                self._database.execute("ROLLBACK")
            raise

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self._path)


def _digest_row(row: RecordDigest) -> tuple[int, bytes, int, int, bytes]:
    digest = row.state_digest.to_bytes(8, "big")
    return row.round, digest, row.reports, row.dissent, row.snapshot_sha256


def _recorded(
    round: int,
    body: bytes,
    signature: bytes,
    author_list: bytes,
    loss: float | None,
    *joined: Any,
) -> RecordedCommit:
    """A row of `commits` joined with what is on record about it, of which all may be NULL."""
    leases, sums, state_digest, reports, dissent, snapshot_sha256 = joined
    return RecordedCommit(
        round,
        SignedCommit(body, signature, author_list),
        loss,
        int.from_bytes(state_digest, "big") if state_digest is not None else None,
        reports or 0,
        dissent or 0,
        snapshot_sha256 or b"",
        msgspec.msgpack.decode(leases, type=_Leases) if leases else (),
        msgspec.msgpack.decode(sums, type=_Sums) if sums else (),
    )

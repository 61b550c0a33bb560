"""The rounds of a journal, read beside its coordinator and after it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.journal import JOURNAL_NAME, Journal
from coordinator.machine.decided_rounds import DecidedRound
from coordinator.machine.events.effects import RecordDigest
from coordinator.machine.events.inputs import Evaluated
from coordinator.round_log import read_rounds
from protocol.codec.commit_sums import RangeSum
from protocol.codec.commits import Commit, Entry, genesis_digest, sign_commit
from protocol.errors import StorageError
from protocol.ids import sha256
from tests.coordinator.machine.driver import RUN, A, B, payload_digest
from tests.support.summed import sums_of

KEY = Ed25519PrivateKey.from_private_bytes(b"c" * 32)


def commit(round: int) -> Commit:
    entries = tuple(Entry(peer, payload_digest(peer, round), 100, round, 4) for peer in (A, B))
    results = tuple(RangeSum(number, sha256(b"sum"), 30 + number) for number in range(2))
    sums = sums_of(16, results, entries) if round == 1 else None
    return Commit(RUN, round, round, entries, 0, 0, genesis_digest(RUN), sums=sums)


def written(path: Path) -> Journal:
    """A journal of three commits and two skips, open."""
    opened = Journal(path)
    said = [Evaluated(A, 1, 3.25, 8), Evaluated(A, 2, 0.0, 8, failure="no data")]
    opened.append(
        [(1, each) for each in said],
        [(round, sign_commit(commit(round), KEY), 2.5) for round in (0, 1, 4)],
        [RecordDigest(1, 255, 2, 0, b"")],
        decided=[
            DecidedRound(0, "", 12_000, 10_000, 2, 4000, 1000),
            DecidedRound(1, "", 15_500, 12_500),
            DecidedRound(2, "nobody announced", 20_000, 16_000),
            DecidedRound(3, "too few", 24_000),
            DecidedRound(4, "", 30_000),
        ],
    )
    return opened


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Path]:
    """A journal that its coordinator holds open."""
    opened = written(tmp_path / JOURNAL_NAME)
    yield tmp_path / JOURNAL_NAME
    opened.close()


def test_every_decided_round_is_a_row(journal: Path) -> None:
    rows = list(read_rounds(journal))
    assert [(each.decided.round, each.decided.reason) for each in rows] == [
        (0, ""),
        (1, ""),
        (2, "nobody announced"),
        (3, "too few"),
        (4, ""),
    ]
    assert [each.decided.seconds for each in rows] == [2.0, 3.0, 4.0, None, None]
    assert [each.validation_loss for each in rows] == [None, 3.25, None, None, None]
    assert [each.commit is None for each in rows] == [False, False, True, True, False]
    assert rows[0].decided.assigned == 2
    assert rows[1].state_digest == (255).to_bytes(8, "big")
    assert (rows[4].samples, rows[4].payload_bytes, rows[4].loss) == (8, 200, 2.5)
    assert (rows[1].samples, rows[1].payload_bytes) == (8, 200), "by the list of authors"
    assert (rows[2].samples, rows[2].payload_bytes) == (0, 0)
    assert [each.result_bytes for each in rows] == [0, 61, 0, 0, 0]


def test_what_is_no_journal_is_refused(tmp_path: Path, journal: Path) -> None:
    with pytest.raises(
        StorageError, match=r"expected the journal of a coordinator at .*, found no"
    ):
        list(read_rounds(tmp_path / "none"))
    for damage in ("author_list = x'c1' WHERE round = 1", "body = x'c1'"):
        with closing(sqlite3.connect(journal)) as file, file:
            file.execute(f"UPDATE commits SET {damage}")
        with pytest.raises(StorageError, match="cannot read the journal"):
            list(read_rounds(journal))

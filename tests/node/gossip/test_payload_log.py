"""Promises of the payload log: nothing unverified comes out, nothing undecided goes, bounds hold,
torn files vanish.
"""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.gossip import payload_log
from node.gossip.payload_log import PayloadLog
from node.system import files
from protocol.errors import RemoteProtocolError, StorageError
from protocol.ids import sha256
from protocol.shortage import Patience
from tests.support.shortage import no_descriptors


def opened(directory: Path, rounds_max: int = 100, bytes_max: int = 10**9) -> PayloadLog:
    return PayloadLog(directory / "payloads", rounds_max, bytes_max)


def file_of(directory: Path, round: int, blob: bytes) -> Path:
    return directory / "payloads" / str(round) / sha256(blob).hex()


def test_a_payload_comes_back_whole_and_in_parts_also_after_a_restart(tmp_path: Path) -> None:
    blob = bytes(range(256)) * 40
    for log in (opened(tmp_path), opened(tmp_path)):
        digest = log.put(3, blob)
        assert (digest, log.size(digest), log.digests(3)) == (sha256(blob), len(blob), [digest])
        assert log.get(digest) == blob
        assert log.read(digest, 100, 50) == blob[100:150]
        assert log.read(digest, len(blob) - 10, 50) == blob[-10:]
    assert opened(tmp_path).read(digest, 7, 9) == blob[7:16]
    assert opened(tmp_path).get(digest) == blob


def test_a_payload_that_was_never_put_is_none(tmp_path: Path) -> None:
    log, digest = opened(tmp_path), sha256(b"other")
    assert (log.get(digest), log.size(digest), log.read(digest, 0, 1)) == (None, None, None)


def test_bytes_with_another_digest_than_expected_are_not_written(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(RemoteProtocolError, match="expected bytes with digest"):
        log.put(3, b"forged", expected=sha256(b"true"))
    assert not list((tmp_path / "payloads").iterdir())


@pytest.mark.parametrize("damage", [b"", b"payloaX", b"payload and more"])
@pytest.mark.parametrize("asked", ["get", "read"])
def test_a_damaged_file_is_deleted_and_neither_read_nor_served(
    tmp_path: Path, damage: bytes, asked: str
) -> None:
    digest = opened(tmp_path).put(3, b"payload")
    file_of(tmp_path, 3, b"payload").write_bytes(damage)
    log = opened(tmp_path)
    assert (log.get(digest) if asked == "get" else log.read(digest, 0, 3)) is None
    assert log.size(digest) is None
    assert not file_of(tmp_path, 3, b"payload").exists()
    log.put(3, b"payload")
    assert log.get(digest) == b"payload"


def test_a_file_that_vanished_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_log, "CACHE_BYTES_MAX", 0)
    log = opened(tmp_path)
    digest = log.put(3, b"payload")
    file_of(tmp_path, 3, b"payload").unlink()
    assert log.read(digest, 0, 3) is None
    assert log.get(digest) is None


def test_opening_removes_half_written_files_and_leaves_foreign_ones(tmp_path: Path) -> None:
    opened(tmp_path).put(3, b"payload")
    part = file_of(tmp_path, 3, b"half").with_suffix(".part")
    foreign = [tmp_path / "payloads" / "notes.txt", tmp_path / "payloads" / "3" / "README"]
    for path in (part, *foreign):
        path.write_bytes(b"half")
    assert opened(tmp_path).digests(3) == [sha256(b"payload")]
    assert not part.exists()
    assert all(path.exists() for path in foreign)


def test_settling_removes_payloads_that_were_not_committed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    kept, dropped, next_round = log.put(3, b"kept"), log.put(3, b"dropped"), log.put(4, b"next")
    log.settle(3, [kept])
    assert [log.get(digest) for digest in (kept, dropped, next_round)] == [b"kept", None, b"next"]
    assert opened(tmp_path).digests(3) == [kept]


def test_the_oldest_settled_rounds_go_first_by_count(tmp_path: Path) -> None:
    log = opened(tmp_path, rounds_max=2)
    for round in range(5):
        log.settle(round, [log.put(round, b"%d" % round)])
    assert [bool(log.digests(round)) for round in range(5)] == [False, False, False, True, True]
    assert sorted(path.name for path in (tmp_path / "payloads").iterdir()) == ["3", "4"]


def test_the_oldest_settled_rounds_go_first_by_size_and_undecided_ones_never(
    tmp_path: Path,
) -> None:
    log = opened(tmp_path, bytes_max=250)
    for round in range(4):
        log.put(round, bytes([round]) * 100)
    log.prune()
    assert all(log.digests(round) for round in range(4))  # 400 bytes, none of them decided
    log.settle(1, log.digests(1))
    assert [len(log.digests(round)) for round in range(4)] == [0, 0, 1, 1]


def test_recent_payloads_stay_in_memory_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_log, "CACHE_BYTES_MAX", 250)
    log = opened(tmp_path)
    blobs = [bytes([number]) * 100 for number in range(4)]
    digests = [log.put(0, blob) for blob in blobs]
    assert log.get(digests[0]) == blobs[0]  # from its file: now the third is the oldest in memory
    for blob in blobs:
        file_of(tmp_path, 0, blob).unlink()
    assert [log.get(digest) for digest in digests] == [blobs[0], None, None, blobs[3]]


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match=r"the disk is full: .*, which needs 7 bytes"):
        log.put(3, b"payload")
    assert log.get(sha256(b"payload")) is None
    assert not list((tmp_path / "payloads" / "3").iterdir())


def test_a_directory_that_cannot_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "payloads").write_text("a file")
    with pytest.raises(StorageError, match="cannot open"):
        opened(tmp_path)


_steps = st.lists(
    st.tuples(st.sampled_from(["put", "settle", "reopen"]), st.integers(0, 4), st.integers(0, 3))
)


@settings(max_examples=60)
@given(_steps)
def test_any_history_leaves_index_files_and_undecided_rounds_as_promised(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    directory, settled = tmp_path_factory.mktemp("log"), -1
    log, model = opened(directory, rounds_max=2), dict[int, set[bytes]]()
    for step, round, number in steps:
        blob = b"%d %d" % (round, number)
        if step == "put" and round > settled:
            log.put(round, blob)
            model.setdefault(round, set()).add(blob)
        elif step == "settle":
            settled = max(settled, round)
            model[round] = model.get(round, set()) & {blob}
            log.settle(round, [sha256(blob)])
        elif step == "reopen":
            log = opened(directory, rounds_max=2)
            if settled >= 0:
                log.settle(settled, log.digests(settled))
    model = {round: blobs for round, blobs in model.items() if blobs}
    files = {path.name for path in (directory / "payloads").glob("*/*")}
    assert files == {digest.hex() for round in range(5) for digest in log.digests(round)}
    for round, blobs in model.items():
        if round > settled:
            assert log.digests(round) == sorted(map(sha256, blobs))
    assert files <= {sha256(blob).hex() for blobs in model.values() for blob in blobs}
    log.prune()
    assert len([round for round in range(settled + 1) if log.digests(round)]) <= 2


# ---- for those who are behind


def filled(log: PayloadLog, rounds: range) -> None:
    for round in rounds:
        log.settle(round, [log.put(round, b"payload %d" % round)])


def kept(log: PayloadLog, rounds: range) -> list[int]:
    return [round for round in rounds if log.digests(round)]


def test_rounds_after_a_snapshot_that_is_fetched_stay_beyond_their_number(tmp_path: Path) -> None:
    needed: list[int | None] = [6]
    log = PayloadLog(tmp_path / "payloads", 5, 10**9, lambda: needed[0])
    filled(log, range(20))
    assert kept(log, range(20)) == list(range(7, 20))
    needed[0] = None
    filled(log, range(20, 21))
    assert kept(log, range(21)) == list(range(16, 21))


def test_rounds_that_a_peer_replays_stay_and_reading_the_newest_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(payload_log.time, "monotonic", lambda: now[0])
    log = opened(tmp_path, rounds_max=4)
    filled(log, range(6))
    assert log.read(sha256(b"payload 5"), 0, 4)
    filled(log, range(6, 12))
    assert kept(log, range(12)) == [8, 9, 10, 11]
    assert log.read(sha256(b"payload 9"), 0, 4)
    filled(log, range(12, 30))
    assert kept(log, range(30)) == list(range(9, 30))
    now[0] += payload_log.READ_S + 1
    filled(log, range(30, 31))
    assert kept(log, range(31)) == [27, 28, 29, 30]


def test_rounds_that_a_peer_needs_go_when_the_bytes_are_used_up(tmp_path: Path) -> None:
    size = len(b"payload 10")
    log = PayloadLog(tmp_path / "payloads", 5, 8 * size, lambda: 10)
    filled(log, range(10, 40))
    assert kept(log, range(40)) == list(range(32, 40))


def test_payloads_are_kept_and_read_when_descriptors_are_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = opened(tmp_path).put(1, b"old")
    log, waits = opened(tmp_path, rounds_max=1), list[float]()
    for work in (
        lambda: log.put(2, b"new"),
        lambda: log.get(old),
        lambda: log.settle(2, [sha256(b"new")]),
    ):
        with no_descriptors() as release:
            patience = Patience(lambda pause, free=release: (waits.append(pause), free()), str)
            monkeypatch.setattr(files, "_patience", patience)
            work()
    assert len(waits) == 3
    assert opened(tmp_path).get(sha256(b"new")) == b"new"
    assert not file_of(tmp_path, 1, b"old").parent.exists()

"""Snapshots on disk: the canonical bytes, whole or not at all, the newest two, and one on its way
here.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from node.replica import canonical, snapshot
from node.replica.canonical import canonical_bytes, canonical_size
from node.replica.digest import canonical_sha256
from node.replica.snapshot import (
    HELD_SECONDS,
    HELD_SECONDS_MAX,
    SNAPSHOTS_HELD_MAX,
    SNAPSHOTS_KEPT,
    Partial,
    Snapshots,
    file_sha256,
    read_snapshot,
)
from protocol.errors import StorageError
from protocol.ids import Digest, sha256

OTHER = Digest(b"o" * 32)


def parameters(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"b.weight": (7, 5), "a.weight": (300,), "b.bias": (), "c": (0, 4), "ä": (2, 3, 4)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_the_file_is_exactly_what_the_canonical_digest_is_of(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    digest = snapshots.write(3, parameters())
    path = snapshots.path(digest)
    assert path is not None
    assert digest == canonical_sha256(parameters()) == sha256(path.read_bytes())
    assert path.stat().st_size == canonical_size(parameters()) == snapshots.size(digest)


def test_strips_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = canonical_sha256(parameters())
    for module in (canonical, snapshot):
        monkeypatch.setattr(module, "STRIP_WORDS", 11)
    assert (
        sha256(b"".join(canonical_bytes(parameters())))
        == canonical_sha256(parameters())
        == expected
    )
    path = tmp_path / "file"
    path.write_bytes(b"".join(canonical_bytes(parameters())))
    other = parameters(seed=1)
    read_snapshot(path, other)
    assert canonical_sha256(other) == canonical_sha256(parameters())


def test_reading_gives_back_every_bit_also_of_what_is_not_a_number(tmp_path: Path) -> None:
    odd = {"x": torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])}
    snapshots = Snapshots(tmp_path)
    digest = snapshots.write(0, odd)
    read = {"x": torch.zeros(4)}
    read_snapshot(snapshots.path(digest) or tmp_path, read)
    assert torch.equal(read["x"].view(torch.int32), odd["x"].view(torch.int32))


def test_a_snapshot_of_another_model_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    path = snapshots.path(snapshots.write(0, {"a": torch.zeros(6), "b": torch.zeros(2)}))
    assert path is not None
    with pytest.raises(StorageError, match="expected a snapshot of 50 bytes, got 66"):
        read_snapshot(path, {"a": torch.zeros(2), "b": torch.zeros(2)})
    with pytest.raises(
        StorageError, match="expected the parameter b of this run's model, got another"
    ):
        read_snapshot(path, {"b": torch.zeros(6), "c": torch.zeros(2)})


def test_the_newest_two_stay_also_after_a_restart(tmp_path: Path) -> None:
    digests = [Snapshots(tmp_path).write(round, parameters(round)) for round in (9, 19, 109)]
    again = Snapshots(tmp_path)
    assert [again.size(digest) is not None for digest in digests] == [False, True, True]
    assert len(list(tmp_path.iterdir())) == 2


class Clock:
    """What `node.replica.snapshot` and `node.gossip.payload_log` ask for the time."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(snapshot, "time", clock)
    return clock


def test_a_snapshot_that_is_being_fetched_stays_until_a_minute_after_the_last_part(
    tmp_path: Path, clock: Clock
) -> None:
    snapshots = Snapshots(tmp_path)
    fetched, idle = snapshots.write(0, parameters(0)), snapshots.write(1, parameters(1))
    for round in range(2, 9):
        assert snapshots.read(fetched, 0, 10)
        assert snapshots.held_round() == 0
        snapshots.write(round, parameters(round))
        clock.seconds += HELD_SECONDS - 1
    assert snapshots.size(fetched) is not None
    assert snapshots.size(idle) is None
    clock.seconds += 2
    assert snapshots.held_round() is None
    snapshots.write(9, parameters(9))
    assert snapshots.size(fetched) is None
    assert len(list(tmp_path.iterdir())) == SNAPSHOTS_KEPT


def test_those_that_are_fetched_are_bounded_in_number_and_the_first_go_on(
    tmp_path: Path, clock: Clock
) -> None:
    snapshots = Snapshots(tmp_path)
    digests = list[Digest]()
    for round in range(9):
        digests.append(snapshots.write(round, parameters(round)))
        for digest in digests:
            snapshots.read(digest, 0, 1)
    held = [number for number, digest in enumerate(digests) if snapshots.size(digest) is not None]
    assert held == [*range(SNAPSHOTS_HELD_MAX), *range(9 - SNAPSHOTS_KEPT, 9)]


def test_nobody_holds_a_snapshot_for_ever(tmp_path: Path, clock: Clock) -> None:
    snapshots = Snapshots(tmp_path)
    slow = snapshots.write(0, parameters(0))
    for _ in range(HELD_SECONDS_MAX // (HELD_SECONDS // 2) + 1):
        assert snapshots.read(slow, 0, 1)
        clock.seconds += HELD_SECONDS // 2
    for round in (1, 2):
        snapshots.write(round, parameters(round))
    assert snapshots.size(slow) is None


def test_the_same_parameters_after_a_later_round_are_one_file(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    assert snapshots.write(9, parameters()) == snapshots.write(19, parameters())
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["19"]


def test_parts_are_read_from_an_offset_and_nothing_beyond_the_end(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    digest = snapshots.write(0, parameters())
    whole = b"".join(canonical_bytes(parameters()))
    assert snapshots.read(digest, 100, 50) == whole[100:150]
    assert snapshots.read(digest, len(whole) - 3, 50) == whole[-3:]
    assert snapshots.read(OTHER, 0, 50) is None


def test_a_file_damaged_on_disk_is_never_served(tmp_path: Path) -> None:
    digest = Snapshots(tmp_path).write(0, parameters())
    [path] = tmp_path.iterdir()
    blob = bytearray(path.read_bytes())
    blob[77] ^= 1
    path.write_bytes(blob)
    again = Snapshots(tmp_path)
    assert again.read(digest, 0, 10) is None
    assert again.path(digest) is None
    assert not path.exists()


def test_a_disk_that_refuses_leaves_no_half_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = Snapshots(tmp_path)
    first = snapshots.write(0, parameters())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot, "canonical_bytes", full)
    with pytest.raises(StorageError, match="disk is full"):
        snapshots.write(1, parameters(1))
    assert [path.name for path in tmp_path.iterdir()] == [f"0-{first.hex()}"]


def filled(partial: Partial, blob: bytes, offsets: list[int]) -> None:
    for offset in offsets:
        partial.put(offset, blob[offset : offset + partial.length(offset)])


def test_a_partial_goes_on_after_a_restart_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "RANGE_BYTES", 300)
    blob = b"".join(canonical_bytes(parameters()))
    snapshots, digest = Snapshots(tmp_path), sha256(blob)
    partial = snapshots.partial(digest, len(blob))
    everything = partial.missing
    assert everything == list(range(0, len(blob), 300))
    filled(partial, blob, [everything[-1], everything[0]])
    again = Snapshots(tmp_path).partial(digest, len(blob))
    assert again.missing == everything[1:-1]
    filled(again, blob, again.missing)
    assert snapshots.adopt(again, 4)
    assert [path.name for path in tmp_path.iterdir()] == [f"4-{digest.hex()}"]


def test_a_partial_with_another_digest_is_not_adopted(tmp_path: Path) -> None:
    blob = b"".join(canonical_bytes(parameters()))
    snapshots = Snapshots(tmp_path)
    partial = snapshots.partial(OTHER, len(blob))
    filled(partial, blob, partial.missing)
    assert not snapshots.adopt(partial, 4)
    assert snapshots.size(OTHER) is None
    partial.clear()
    assert list(tmp_path.iterdir()) == []


def test_what_has_come_of_an_older_snapshot_makes_room_for_a_newer(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.partial(OTHER, 1000)
    snapshots.partial(sha256(b"newer"), 1000)
    assert {path.stem for path in tmp_path.iterdir()} == {sha256(b"newer").hex()}


def test_the_sha256_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(3_000_001))
    assert file_sha256(path) == sha256(bytes(3_000_001))

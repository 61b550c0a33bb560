"""Ranges on disk: bounded, the least recently used go, nothing damaged is given out."""

import hashlib
from pathlib import Path

from node.data.remote.cache import RangeCache


def blob(number: int) -> tuple[bytes, bytes]:
    """A range of 100 bytes and its digest."""
    content = bytes([number]) * 100
    return hashlib.sha256(content).digest(), content


def put(cache: RangeCache, *numbers: int) -> None:
    for number in numbers:
        cache.put(*blob(number))


def held(cache: RangeCache) -> list[int]:
    return [number for number in range(10) if blob(number)[0] in cache]


def test_what_was_unused_for_longest_goes(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, 350)
    put(cache, 1, 2, 3)
    assert cache.get(blob(1)[0]) == blob(1)[1]
    put(cache, 4)
    assert held(cache) == [1, 3, 4]
    assert cache.held_bytes == 300 == sum(path.stat().st_size for path in tmp_path.glob("??/*"))


def test_it_is_there_after_a_restart_and_obeys_a_smaller_bound(tmp_path: Path) -> None:
    put(RangeCache(tmp_path, 1000), 1, 2, 3)
    assert held(RangeCache(tmp_path, 1000)) == [1, 2, 3]
    smaller = RangeCache(tmp_path, 250)
    assert len(held(smaller)) == 2
    assert smaller.held_bytes == sum(path.stat().st_size for path in tmp_path.glob("??/*"))


def test_a_damaged_or_missing_file_is_as_good_as_none(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, 1000)
    put(cache, 1, 2)
    (path,) = tmp_path.glob(f"??/{blob(1)[0].hex()}")
    path.write_bytes(b"torn")
    (gone,) = tmp_path.glob(f"??/{blob(2)[0].hex()}")
    gone.unlink()
    assert cache.get(blob(1)[0]) is None
    assert cache.get(blob(2)[0]) is None
    assert not path.exists()
    put(cache, 1)
    assert cache.get(blob(1)[0]) == blob(1)[1]


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    put(RangeCache(tmp_path, 1000), 1)
    left = tmp_path / blob(1)[0].hex()[:2] / "0123.new"
    left.write_bytes(b"half")
    RangeCache(tmp_path, 1000)
    assert not left.exists()


def test_a_range_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, 50)
    put(cache, 1)
    assert held(cache) == []

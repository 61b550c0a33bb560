"""A limit on the download holds for training data: a web server is not read faster, other backends
are paid for afterwards, and files of this machine cost nothing.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from node.data.remote.source import FileSource, HttpSource, source_of
from node.system.clock import own_clock_ms
from node.system.downlink import Downlink
from node.system.rate_limit import BURST_S
from tests.support.data_server import serving

LIMIT, COUNT = 100_000, 60_000


def test_ranges_of_a_web_server_come_no_faster_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(bytes(COUNT))
    with serving(tmp_path) as server:
        source = source_of(server.url, Downlink(LIMIT, own_clock_ms))
        assert isinstance(source, HttpSource)
        began_s = time.monotonic()
        with ThreadPoolExecutor(3) as pool:
            blobs = list(pool.map(lambda _: source.read("shard", 0, COUNT), range(3)))
        took_s = time.monotonic() - began_s
    assert [len(blob) for blob in blobs] == [COUNT] * 3
    assert LIMIT * (took_s + BURST_S) >= 3 * COUNT


def test_other_backends_wait_until_a_range_is_paid_and_own_files_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shard").write_bytes(bytes(COUNT))
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/shard", bytes(COUNT))
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    downlink = Downlink(LIMIT, lambda: 0)
    try:
        assert len(source_of("memory://bucket", downlink).read("shard", 0, COUNT)) == COUNT
    finally:
        memory.rm("/bucket", recursive=True)
    assert waits[-1] == pytest.approx((1.05 * COUNT - 0.25 * LIMIT) / (0.93 * LIMIT))
    own = source_of(tmp_path.as_uri(), downlink)
    assert isinstance(own, FileSource)
    assert len(own.read("shard", 0, COUNT)) == COUNT
    assert waits[1:] == [0.0], "nothing of it was charged"

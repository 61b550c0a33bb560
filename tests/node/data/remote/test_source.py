"""What comes from a server is bounded, whatever the server does. And a limit on the download holds:
a web server is not read faster, other backends are paid for afterwards, and files of this machine
cost nothing.
"""

import asyncio
import errno
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import fsspec
import pytest

from node.data.remote import source as reading
from node.data.remote.source import (
    AwayError,
    FileSource,
    HttpSource,
    Source,
    SourcePatience,
    source_of,
)
from node.system.clock import own_clock_ms
from node.system.downlink import Downlink
from node.system.rate_limit import BURST_S
from protocol.errors import DataError, StorageError
from tests.support import data_server
from tests.support.data_server import DataServer, Misbehaviour, serving

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


BLOB = bytes(range(256)) * 4000

IN_BETWEEN_BYTES = 16 * 1024**2
"""Bytes that the system and the client's library hold on the way, and more."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DataServer]:
    (tmp_path / "file").write_bytes(BLOB)
    with serving(tmp_path) as served:
        yield served


def test_a_whole_file_comes_as_it_is(server: DataServer) -> None:
    file = BytesIO()
    source_of(server.url).save("file", file, len(BLOB))
    assert file.getvalue() == BLOB == source_of(server.url).whole("file", len(BLOB))


def test_a_file_of_this_machine_comes_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 1000)
    (tmp_path / "file").write_bytes(BLOB)
    own = source_of(str(tmp_path))
    assert own.whole("file", len(BLOB)) == BLOB
    with pytest.raises(DataError, match=r"/file: expected at most 100 bytes, got more"):
        own.whole("file", 100)


@pytest.mark.parametrize(
    ("misbehaviour", "expected"),
    [
        (data_server.endless, "file: expected at most 1,000,000 bytes, got more"),
        (data_server.too_long, "file: expected at most 1,000,000 bytes, got more"),
        (data_server.compressed, "expected the bytes of the file, got them as gzip"),
    ],
)
def test_no_more_of_an_answer_is_taken_than_a_file_may_have(
    server: DataServer, misbehaviour: Misbehaviour, expected: str
) -> None:
    server.misbehaves = misbehaviour
    file = BytesIO()
    with pytest.raises(DataError, match=re.escape(expected)):
        source_of(server.url).save("file", file, 10**6)
    assert file.tell() <= 10**6 + 1
    assert server.sent_bytes < IN_BETWEEN_BYTES


def test_no_more_of_an_endless_answer_is_taken_than_the_range(server: DataServer) -> None:
    server.misbehaves = data_server.endless
    assert len(source_of(server.url).read("file", 10, 20)) == 11, "one too many, so it is seen"
    assert server.sent_bytes < IN_BETWEEN_BYTES


def test_a_server_that_compresses_a_range_is_named(server: DataServer) -> None:
    server.misbehaves = data_server.compressed
    with pytest.raises(DataError, match="the server must not compress"):
        source_of(server.url).read("file", 10, 20)


def test_a_server_that_answers_with_another_range_is_named(server: DataServer) -> None:
    server.misbehaves = data_server.elsewhere
    with pytest.raises(DataError, match=r"expected bytes from 10, got bytes 7-8/9"):
        source_of(server.url).read("file", 10, 20)


@pytest.mark.parametrize(
    "take",
    [
        lambda source: source.read("file", 0, 10**6),
        lambda source: source.save("file", BytesIO(), 10**6),
    ],
    ids=["range", "file"],
)
def test_a_server_that_drips_is_given_up(
    server: DataServer, monkeypatch: pytest.MonkeyPatch, take: Callable[[Source], object]
) -> None:
    monkeypatch.setattr(reading, "ANSWER_S", 0.3)
    server.misbehaves = data_server.dripping
    with pytest.raises(AwayError, match=r"expected 4,096 bytes a second, got less"):
        take(source_of(server.url))
    assert server.sent_bytes < data_server.DRIPS


async def test_patience_that_is_over_stays_over_until_bytes_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "ANSWER_S", 0.01)
    patience = SourcePatience()
    for wait_s in (3600, 0):
        with pytest.raises(TimeoutError):
            await patience.wait(asyncio.sleep(wait_s))
    patience.came(10**6)
    await patience.wait(asyncio.sleep(0))


def test_a_redirection_without_an_end_is_given_up(server: DataServer) -> None:
    server.misbehaves = data_server.redirecting
    with pytest.raises(AwayError, match="it redirects without an end"):
        source_of(server.url).save("file", BytesIO(), 10**6)
    assert len(server.asked) < 20


def test_a_file_is_taken_up_where_the_connection_broke(server: DataServer) -> None:
    server.misbehaves = data_server.cut_once
    file = BytesIO()
    source_of(server.url).save("file", file, len(BLOB))
    assert file.getvalue() == BLOB
    assert server.asked == [("file", ""), ("file", f"bytes={len(BLOB) // 2}-")]


def test_without_ranges_a_broken_file_is_not_taken_for_a_whole_one(server: DataServer) -> None:
    server.misbehaves, server.knows_ranges = data_server.cut_once, False
    with pytest.raises(
        AwayError, match=r"broke after 512,000 bytes, and the server knows no ranges"
    ):
        source_of(server.url).save("file", BytesIO(), len(BLOB))


class Full(BytesIO):
    def write(self, _: Any) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")


def test_a_full_disk_is_no_fault_of_the_server(server: DataServer) -> None:
    with pytest.raises(StorageError, match="the disk is full"):
        source_of(server.url).save("file", Full(), len(BLOB))

"""Promises of the blob server: payloads at once, snapshots at a bounded rate, first come first
served.
"""

import asyncio

import pytest

from node.gossip.blob_server import SNAPSHOT_BYTES_PER_SECOND, BlobServer
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, sha256
from tests.support.virtual_time import in_virtual_time, loop_ms, without_threads

MB = 1024 * 1024
PAYLOAD, SNAPSHOT = sha256(b"payload"), sha256(b"snapshot")


class Blobs:
    """A shelf with one blob of zeros."""

    def __init__(self, digest: Digest, size: int) -> None:
        self._digest, self._blob = digest, bytes(size)

    def size(self, digest: Digest) -> int | None:
        return len(self._blob) if digest == self._digest else None

    def read(self, digest: Digest, offset: int, count: int) -> bytes | None:
        return self._blob[offset : offset + count] if digest == self._digest else None


@pytest.fixture(autouse=True)
def _reads_take_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of several threads is first is not promised."""
    without_threads(monkeypatch)


def server(size: int = 64 * MB) -> BlobServer:
    return BlobServer(Blobs(PAYLOAD, size), Blobs(SNAPSHOT, size), loop_ms)


@in_virtual_time
async def test_late_joiners_together_get_a_bounded_rate() -> None:
    serving, read = server(), 0
    while read < 8 * SNAPSHOT_BYTES_PER_SECOND:
        for _ in range(2):  # two late joiners in turn
            answer = await serving.read(SNAPSHOT, read % (32 * MB), MB)
            assert answer is not None
            read += len(answer[1])
    assert 1000 * read / loop_ms() <= SNAPSHOT_BYTES_PER_SECOND
    assert 1000 * read / loop_ms() >= SNAPSHOT_BYTES_PER_SECOND * 0.9


@in_virtual_time
async def test_payloads_do_not_wait_for_snapshots() -> None:
    serving = server()
    for _ in range(64):
        assert await serving.read(PAYLOAD, 0, MB) == (64 * MB, bytes(MB))
    assert loop_ms() == 0


@in_virtual_time
async def test_snapshots_leave_in_the_order_in_which_they_were_asked_for() -> None:
    """The short ones too, which would have to wait less."""
    serving, order = server(), list[int]()

    async def take(number: int) -> None:
        await serving.read(SNAPSHOT, 0, (5 - number) * MB)
        order.append(number)

    await asyncio.gather(*(take(number) for number in range(5)))
    assert order == list(range(5))


async def test_the_last_part_is_as_long_as_the_rest() -> None:
    serving = server(size=100)
    assert await serving.read(SNAPSHOT, 90, 50) == (100, bytes(10))
    assert await serving.read(PAYLOAD, 0, 100) == (100, bytes(100))


async def test_an_unknown_blob_is_none_and_an_offset_behind_the_end_is_the_peers_fault() -> None:
    serving = server(size=100)
    assert await serving.read(sha256(b"unknown"), 0, 1) is None
    with pytest.raises(RemoteProtocolError, match="offset below 100, got 100"):
        await serving.read(SNAPSHOT, 100, 1)


async def test_a_node_without_snapshots_serves_payloads_alone() -> None:
    serving = BlobServer(Blobs(PAYLOAD, 7), None, loop_ms)
    assert await serving.read(PAYLOAD, 0, 7) == (7, bytes(7))
    assert await serving.read(SNAPSHOT, 0, 7) is None

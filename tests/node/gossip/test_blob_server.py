"""Promises of the blob server: payloads at once, snapshots at a bounded rate, first come first
served.
"""

import asyncio
import math

import pytest

from node.gossip import blob_server
from node.gossip.blob_server import SNAPSHOT_BYTES_PER_SECOND, BlobServer
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, sha256

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


class Clock:
    """Time that passes only while the server sleeps."""

    def __init__(self) -> None:
        self.now_ms = 0

    async def sleep(self, seconds: float) -> None:
        self.now_ms += math.ceil(1000 * seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(blob_server.asyncio, "sleep", clock.sleep)
    return clock


def server(clock: Clock, size: int = 64 * MB) -> BlobServer:
    return BlobServer(Blobs(PAYLOAD, size), Blobs(SNAPSHOT, size), lambda: clock.now_ms)


async def test_late_joiners_together_get_a_bounded_rate(clock: Clock) -> None:
    serving, read = server(clock), 0
    while read < 8 * SNAPSHOT_BYTES_PER_SECOND:
        for _ in range(2):  # two late joiners in turn
            answer = await serving.read(SNAPSHOT, read % (32 * MB), MB)
            assert answer is not None
            read += len(answer[1])
    assert 1000 * read / clock.now_ms <= SNAPSHOT_BYTES_PER_SECOND
    assert 1000 * read / clock.now_ms >= SNAPSHOT_BYTES_PER_SECOND * 0.9


async def test_payloads_do_not_wait_for_snapshots(clock: Clock) -> None:
    serving = server(clock)
    for _ in range(64):
        assert await serving.read(PAYLOAD, 0, MB) == (64 * MB, bytes(MB))
    assert clock.now_ms == 0


async def test_snapshots_leave_in_the_order_in_which_they_were_asked_for(clock: Clock) -> None:
    serving, order = server(clock), list[int]()

    async def take(number: int) -> None:
        await serving.read(SNAPSHOT, 0, 2 * MB)
        order.append(number)

    await asyncio.gather(*(take(number) for number in range(5)))
    assert order == list(range(5))


async def test_the_last_part_is_as_long_as_the_rest(clock: Clock) -> None:
    serving = server(clock, size=100)
    assert await serving.read(SNAPSHOT, 90, 50) == (100, bytes(10))
    assert await serving.read(PAYLOAD, 0, 100) == (100, bytes(100))


async def test_an_unknown_blob_is_none_and_an_offset_behind_the_end_is_the_peers_fault(
    clock: Clock,
) -> None:
    serving = server(clock, size=100)
    assert await serving.read(sha256(b"unknown"), 0, 1) is None
    with pytest.raises(RemoteProtocolError, match="offset below 100, got 100"):
        await serving.read(SNAPSHOT, 100, 1)


async def test_a_node_without_snapshots_serves_payloads_alone(clock: Clock) -> None:
    serving = BlobServer(Blobs(PAYLOAD, 7), None, lambda: clock.now_ms)
    assert await serving.read(PAYLOAD, 0, 7) == (7, bytes(7))
    assert await serving.read(SNAPSHOT, 0, 7) is None

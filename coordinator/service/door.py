"""The door of the coordinator: what one visitor, or all from one host, may ask of it.

Everything here is counted by host (an IPv4 address or an IPv6 /64 network) or by key, and costs the
visitor alone: calls and joins beyond a rate are refused and may be repeated later, messages beyond
it are read later. Honest nodes stay far below every limit; a house or a laboratory behind one
address has room for hundreds.
"""

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from cachetools import TTLCache

from protocol import wire_pb2 as wire
from protocol.border.token_bucket import TokenBuckets
from protocol.ids import PeerId

STREAMS_PER_HOST_MAX = 512
"""Sessions from one host that are not closed: each may hold a page of the member list that its
client does not read."""

UNPROVEN_PER_CONNECTION_MAX = 2
"""Sessions over one connection in which no key is proven yet; the gate bounds connections."""

JOINS_PER_KEY = (1.0, 4)
"""Joins of one key: per second, and at once. Each is journalled."""

JOINS_PER_HOST = (4.0, 128)
"""Joins from one host: per second, and at once (after a restart all nodes of a laboratory come
together). A join with the longest texts is 2.6 kB of journal."""

MESSAGES_PER_KEY = (100.0, 1000)
"""Messages of one member: per second, and at once. A busy round has one for each payload."""

MESSAGES_PER_HOST = (1000.0, 10_000)
"""Messages from one host: a fifth of a processor core."""

CALLS_PER_HOST = (50.0, 512)
"""Unary calls from one host: per second, and at once."""

CATCH_UP_PER_HOST = (8e6, 32_000_000)
"""Bytes of commits that one host may read: per second, and at once."""

DIGESTS_PER_MESSAGE = 16
"""Digests of a receipt that cost as much as a message."""

REPORT_COST = 5
"""Messages that a report of a state costs: it is journalled."""

DISK_FREE_BYTES_MIN = 16 * 1024 * 1024
"""Free disk below which no new member is taken: the journal must have room for the run's own
decisions."""

DISK_LOOK_S = 5.0
"""Pause between two looks at the disk."""


class Door:
    """The counts of one coordinator, whose journal is in `directory`. `clock_ms()` is a monotonic
    clock.
    """

    def __init__(
        self,
        directory: Path,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._directory, self._clock_ms = directory, clock_ms
        self._streams: Counter[str] = Counter()
        self._unproven: Counter[str] = Counter()
        self._joins_of_key: TokenBuckets[PeerId] = TokenBuckets(*JOINS_PER_KEY)
        self._joins_of_host: TokenBuckets[str] = TokenBuckets(*JOINS_PER_HOST)
        self._messages_of_key: TokenBuckets[PeerId] = TokenBuckets(*MESSAGES_PER_KEY)
        self._messages_of_host: TokenBuckets[str] = TokenBuckets(*MESSAGES_PER_HOST)
        self._calls_of_host: TokenBuckets[str] = TokenBuckets(*CALLS_PER_HOST)
        self._catch_up_of_host: TokenBuckets[str] = TokenBuckets(*CATCH_UP_PER_HOST)
        self._disk: TTLCache[str, int] = TTLCache(1, DISK_LOOK_S)

    # ---- sessions

    def open_stream(self, host: str, peer: str) -> str:
        """Count a session that a host opens on the connection of a peer. Returns why it may not;
        then nothing is counted.
        """
        if self._streams[host] >= STREAMS_PER_HOST_MAX:
            return f"expected at most {STREAMS_PER_HOST_MAX} open sessions from one host"
        if self._unproven[peer] >= UNPROVEN_PER_CONNECTION_MAX:
            return "expected a hello in the sessions that this connection has opened before"
        self._streams[host] += 1
        return ""

    def close_stream(self, host: str) -> None:
        """A session is closed, at its client too."""
        _count_down(self._streams, host)

    @contextlib.contextmanager
    def awaiting_hello(self, peer: str) -> Iterator[None]:
        """Counts a session of a connection as unproven to the end of the block."""
        self._unproven[peer] += 1
        try:
            yield
        finally:
            _count_down(self._unproven, peer)

    def refuses_join(self, peer: PeerId, host: str, *, known: bool) -> str:
        """Why a node with a proven key may not join now; empty when it may, and then the join is
        counted. `known`: it is a member already.
        """
        now_ms = self._clock_ms()
        if not known and self._disk_free() < DISK_FREE_BYTES_MIN:
            return "the coordinator's disk is nearly full; it takes no new members until it is not"
        if not self._joins_of_key.take(peer, 1, now_ms):
            return "this key has joined several times in the last seconds; try again in some"
        if not self._joins_of_host.take(host, 1, now_ms):
            return "many nodes have joined from this host just now; try again in some seconds"
        return ""

    async def pace(self, peer: PeerId, host: str, message: wire.NodeMessage) -> None:
        """Return when the message may be handled: at once, unless its sender is too fast."""
        now_ms, cost = self._clock_ms(), _cost(message)
        buckets = (
            self._messages_of_key.of(peer, now_ms),
            self._messages_of_host.of(host, now_ms),
        )
        wait_ms = max(bucket.wait_ms(cost, now_ms) for bucket in buckets)
        for bucket in buckets:
            bucket.charge(cost, now_ms)
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)

    # ---- unary calls

    def refuses_call(self, host: str) -> str:
        """Why a call is not answered; empty when it is, and then it is counted."""
        now_ms = self._clock_ms()
        if not self._calls_of_host.take(host, 1, now_ms):
            return f"expected at most {CALLS_PER_HOST[0]:g} calls per second from one host"
        if self._catch_up_of_host.of(host, now_ms).wait_ms(1, now_ms):
            return "this host reads commits too fast; try again in a second"
        return ""

    def charge_catch_up(self, host: str, count: int) -> None:
        """Count bytes of commits that a host was sent."""
        now_ms = self._clock_ms()
        self._catch_up_of_host.of(host, now_ms).charge(count, now_ms)

    def _disk_free(self) -> int:
        """Free bytes where the journal is, as of some seconds ago."""
        if "" not in self._disk:
            self._disk[""] = shutil.disk_usage(self._directory).free
        return self._disk[""]


def _cost(message: wire.NodeMessage) -> float:
    kind = message.WhichOneof("kind")
    if kind == "holding":
        return 1 + len(message.holding.digests) / DIGESTS_PER_MESSAGE
    if kind == "links":
        return REPORT_COST + len(message.links.links) / DIGESTS_PER_MESSAGE
    reports = ("ready", "applied", "audited", "evidence", "wrong_sum")
    return REPORT_COST if kind in reports else 1


def _count_down(counter: Counter[str], host: str) -> None:
    counter[host] -= 1
    if counter[host] <= 0:
        del counter[host]

"""The order of a node's uploads, and how many run at once. Pure.

    a peer asks      asked              start                  ended
                  ---------> waiting ----------> being served ---------> forgotten
                                                  sent, sent, ...

A thin uplink that serves all peers at once finishes all copies at the end, and until then no peer
can pass anything on. One after the other, the first copy is out in the time of one, and the peer
that has it serves others.

- Order: peers that are not being served; the oldest round, because nodes wait for its commit when
  rounds overlap; the rarest payload; this node's own (nobody else holds it, so it leaves first);
  the peer from which this node gets bytes fastest, because it passes them on fastest; first come,
  first served. Blobs of no undecided round, the wishes of a late joiner, come last, but a request
  that has waited for AGED_MS goes first.
- A peer is not released to an idle uplink if its turn here comes within SOON_MS; leaving would cost
  it more.
- Another upload starts while those under way explain less than the bytes that the uplink carries in
  AHEAD_MS. An upload explains the bytes that it may have on their way, by its own rate so far; so a
  fat uplink opens many, a thin one a single one, and a peer with a thin downlink does not hold up
  the others. The uplink's rate is measured: at least the rate of any single upload, and the rate of
  all together while the uplink was busy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from protocol.ids import Digest, PeerId

AHEAD_MS = 250
"""Time of the uplink for which uploads are opened ahead: longer than a round trip, so that the
uplink is not idle between uploads."""

AHEAD_BYTES_MIN = 16 * 1024
"""Least bytes opened ahead: an upload that hardly moves soon explains fewer, and does not hold up
all others."""

AGED_MS = 30_000
"""Waiting time after which a request goes before all others: a late joiner behind a busy uplink
must be served too."""

PIECE_BYTES = 256 * 1024
"""Most bytes that one upload explains."""

RATE_ASSUMED = 64 * 1024
"""Rate of an uplink before any measurement, in bytes per second: 0.5 Mbit/s. A thin one must not
begin with two uploads, each of which holds up the other and the heartbeats; a fat one is known by
its first acknowledgements."""

METER_MS = 250
"""Least time over which an uplink's rate is measured, during which it is never idle."""

METER_SENT = 4
"""Least acknowledgements over which it is measured."""

SOON_MS = 500
"""Waiting time below which a request is not released: to ask another peer costs round trips, and a
window that begins small."""

UPLOADS_MAX = 64
"""Uploads served at once; each holds a part in memory."""

Urgency = tuple[int, ...]
"""Compared in order; less is more urgent."""


class Upload(NamedTuple):
    """A peer that wants a blob of this node."""

    peer: PeerId
    digest: Digest


@dataclass(slots=True)
class _Asked:
    number: int
    left: int
    """Bytes not acknowledged yet."""
    asked_ms: int
    begun_ms: int | None = None
    sent: int = 0


class Uploads:
    """The uploads of one node; `urgency(peer, digest)` is `Exchange.urgency`."""

    def __init__(self, urgency: Callable[[PeerId, Digest], Urgency]) -> None:
        self._urgency = urgency
        self._asked: dict[Upload, _Asked] = {}
        self._count = 0
        self._rate = RATE_ASSUMED
        self._meter_ms = self._meter_bytes = self._meter_sent = 0
        self._full = True
        """Whether an upload has always waited since the meter started."""

    def asked(self, upload: Upload, size: int, now_ms: int) -> None:
        """Add a request for `size` bytes; a second one for the same blob replaces the first."""
        self._count += 1
        self._asked[upload] = _Asked(self._count, size, now_ms)

    def sent(self, upload: Upload, size: int, now_ms: int) -> None:
        """Record that the peer acknowledged `size` bytes."""
        asked = self._asked.get(upload)
        if asked is None:
            return  # late: the request is withdrawn
        asked.left -= size
        asked.sent += size
        if asked.begun_ms is not None:
            self._rate = max(self._rate, 1000 * asked.sent // max(1, now_ms - asked.begun_ms))
        self._meter_bytes += size
        self._meter_sent += 1
        elapsed_ms = now_ms - self._meter_ms
        if elapsed_ms >= METER_MS and self._meter_sent >= METER_SENT:
            # While no request waits, fewer bytes do not mean a thinner uplink.
            least = self._rate // 2 if self._full else self._rate
            self._rate = max(1000 * self._meter_bytes // elapsed_ms, least)
            self._restart_meter(now_ms)

    def ended(self, upload: Upload) -> None:
        """Forget a request: it is complete, withdrawn, or its link ended."""
        self._asked.pop(upload, None)

    def soon(self, upload: Upload) -> bool:
        """Whether a request waits, and the bytes of all others leave within `SOON_MS`."""
        if upload not in self._asked or self._asked[upload].begun_ms is not None:
            return False
        left = sum(asked.left for asked in self._asked.values()) - self._asked[upload].left
        return 1000 * left < SOON_MS * self._rate

    def start(self, now_ms: int) -> list[Upload]:
        """Begin the uploads that may run now, and return them; called after each event, and
        regularly.
        """
        serving = {upload for upload, asked in self._asked.items() if asked.begun_ms is not None}
        if not serving:
            self._restart_meter(now_ms)
        self._full = self._full and len(serving) < len(self._asked)
        ahead = max(self._rate * AHEAD_MS // 1000, AHEAD_BYTES_MIN)
        explained = sum(self._explains(self._asked[upload], now_ms) for upload in serving)
        started: list[Upload] = []
        while len(serving) < min(len(self._asked), UPLOADS_MAX) and (
            not serving or explained < ahead
        ):
            upload = self._next(serving, now_ms)
            self._asked[upload].begun_ms = now_ms
            explained += self._explains(self._asked[upload], now_ms)
            serving.add(upload)
            started.append(upload)
        return started

    def _next(self, serving: set[Upload], now_ms: int) -> Upload:
        served = {upload.peer for upload in serving}

        def order(upload: Upload) -> tuple[bool, bool, Urgency, int]:
            asked = self._asked[upload]
            fresh = now_ms - asked.asked_ms < AGED_MS
            return fresh, upload.peer in served, self._urgency(*upload), asked.number

        return min(self._asked.keys() - serving, key=order)

    def _explains(self, asked: _Asked, now_ms: int) -> int:
        """Bytes that an upload may have on their way: twice the best rate that it can have, with
        one piece whose arrival is not known yet.
        """
        elapsed_ms = 1 if asked.begun_ms is None else max(1, now_ms - asked.begun_ms)
        return min(asked.left, PIECE_BYTES, 2 * AHEAD_MS * (asked.sent + PIECE_BYTES) // elapsed_ms)

    def _restart_meter(self, now_ms: int) -> None:
        self._meter_ms, self._meter_bytes, self._meter_sent = now_ms, 0, 0
        self._full = True

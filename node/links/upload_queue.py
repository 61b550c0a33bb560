"""Whom to serve next: the order of a node's uploads, and how many run at once. Pure.

    a peer asks      asked              start                  ended
                  ---------> waiting ----------> being served ---------> forgotten
                                                  sent, sent, ...

A thin uplink that serves all who ask at once finishes with all of them at the end, and until then
nobody can pass anything on. One after the other, the first copy is out in the time of one, and its
taker serves others.

- Order: peers that are not being served; the oldest round, for its commit is what nodes wait for when rounds overlap;
  the rarest payload; this node's own (it leaves first, then: nobody else holds it); the peer from which this node gets
  bytes fastest, for it will pass them on fastest; first come, first served.
  What no undecided round knows, a late joiner's wish, comes last, but who waited for AGED_MS goes first.
- Who would go to an idle uplink is not let go when its turn comes within SOON_MS: leaving would cost it more.
- Another upload starts while those under way explain less than the bytes that the uplink carries in AHEAD_MS. An upload
  explains what it may have on its way, by its own rate so far; so a fat uplink opens many, a thin one a single one,
  and a peer with a thin downlink does not hold up the others. What the uplink carries is measured: at least what any
  upload by itself has got, and what all together got while the uplink was busy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from protocol.ids import Digest, PeerId

AHEAD_MS = 250
"""An uplink's bytes of this time are opened ahead: longer than a round trip, so that none is idle
between uploads."""

AHEAD_BYTES_MIN = 16 * 1024
"""But at least so many: a taker that hardly moves explains fewer soon, and does not hold up all
others."""

AGED_MS = 30_000
"""Who waited for so long is served before everybody else: a late joiner behind a busy uplink must
get there too."""

PIECE_BYTES = 256 * 1024
"""An upload has at most so much on its way, as far as opening another is concerned."""

RATE_ASSUMED = 256 * 1024
"""Bytes per second of an uplink of which nothing is known yet: 2 Mbit/s."""

METER_MS = 250
METER_SENT = 4
"""An uplink's rate is taken over at least this time and so many acknowledgements, during which it
was never idle."""

SOON_MS = 500
"""Whose turn comes so soon is not let go: to ask elsewhere costs round trips, and a window that
begins small."""

UPLOADS_MAX = 64
"""Uploads served at once: each holds a part in memory."""

Urgency = tuple[int, ...]
"""Less is more urgent."""


class Upload(NamedTuple):
    """A peer that wants a blob of this node."""

    peer: PeerId
    digest: Digest


@dataclass(slots=True)
class _Asked:
    number: int
    left: int
    """Bytes that are not acknowledged yet."""
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
        """Since the meter started somebody has always waited."""

    def asked(self, upload: Upload, size: int, now_ms: int) -> None:
        """A peer wants `size` bytes; a second request for the same takes the place of the first."""
        self._count += 1
        self._asked[upload] = _Asked(self._count, size, now_ms)

    def sent(self, upload: Upload, size: int, now_ms: int) -> None:
        """The peer acknowledged so many bytes."""
        asked = self._asked.get(upload)
        if asked is None:
            return  # late: the peer does not want it any more
        asked.left -= size
        asked.sent += size
        if asked.begun_ms is not None:
            self._rate = max(self._rate, 1000 * asked.sent // max(1, now_ms - asked.begun_ms))
        self._meter_bytes += size
        self._meter_sent += 1
        elapsed_ms = now_ms - self._meter_ms
        if elapsed_ms >= METER_MS and self._meter_sent >= METER_SENT:
            # With nobody waiting fewer bytes mean fewer wishes, and not a thinner uplink.
            least = self._rate // 2 if self._full else self._rate
            self._rate = max(1000 * self._meter_bytes // elapsed_ms, least)
            self._restart_meter(now_ms)

    def ended(self, upload: Upload) -> None:
        """Everything was sent, or the peer does not want it any more, or its link broke."""
        self._asked.pop(upload, None)

    def soon(self, upload: Upload) -> bool:
        """Whether it waits, and what all others still want leaves soon."""
        if upload not in self._asked or self._asked[upload].begun_ms is not None:
            return False
        left = sum(asked.left for asked in self._asked.values()) - self._asked[upload].left
        return 1000 * left < SOON_MS * self._rate

    def start(self, now_ms: int) -> list[Upload]:
        """The uploads that begin now. To be asked after each event, and now and then."""
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
        """Bytes that an upload may have on its way: twice what its rate can be at best, with one
        piece not yet known to have arrived."""
        elapsed_ms = 1 if asked.begun_ms is None else max(1, now_ms - asked.begun_ms)
        return min(asked.left, PIECE_BYTES, 2 * AHEAD_MS * (asked.sent + PIECE_BYTES) // elapsed_ms)

    def _restart_meter(self, now_ms: int) -> None:
        self._meter_ms, self._meter_bytes, self._meter_sent = now_ms, 0, 0
        self._full = True

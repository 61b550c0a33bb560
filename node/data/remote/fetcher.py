"""Fetches pieces of files in threads of its own, verifies them, and keeps them in the cache.

                  asked for                a thread is free             right digest
    (unknown) ---------------> queued ----------------------> fetched ---------------> kept
                                  ^                              |  |
                                  '---- the server is away ------'  '--> damaged: once more, then
                                        (a pause that doubles)           an error for who asked

A reader that waits goes before what is fetched beforehand. While the server is away nothing fails:
`waits` says so in words, and a reader that waits gives up at an instant of its own.
"""

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from node.data.remote.cache import RangeCache
from node.data.remote.source import AwayError, MissingError, Source
from node.system.backoff import Backoff
from protocol.errors import DataError, StorageError

log = logging.getLogger("lockstep.node")

FETCHES = 8
"""Requests under way at once: most of the time of a small one is the way to the server and back."""

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 500, 30_000
"""Pauses while the server is away."""

AHEAD_MAX = 4096
"""Pieces that are queued beforehand at most."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file at the source."""

    name: str
    start: int
    stop: int
    sha256: bytes
    """Digest that its bytes must have."""


class RangeFetcher:
    """The pieces of one source."""

    def __init__(self, source: Source, cache: RangeCache) -> None:
        self._source, self.cache = source, cache
        self._changed = threading.Condition()
        self._urgent: dict[Piece, None] = {}
        self._ahead: dict[Piece, None] = {}
        self._running: set[Piece] = set()
        self._asked: dict[Piece, Future[bytes]] = {}
        """The pieces that are queued or running."""
        self._readers: Counter[Piece] = Counter()
        """Readers that wait for each piece."""
        self._backoff, self._retry_s = Backoff(FIRST_PAUSE_MS, LONGEST_PAUSE_MS), 0.0
        self._closed = self._started = False
        self.waits = ""
        """Why nothing comes, in words, while the server is away."""
        self.fetched_bytes = 0

    def get(self, pieces: Sequence[Piece], until_s: float) -> list[bytes]:
        """The bytes of pieces; waits for them until the monotonic time `until_s`.

        Raises `AwayError` when they have not come by then, `DataError` for damaged data.
        """
        found = [self.cache.get(piece.sha256) for piece in pieces]
        futures = {
            piece: self._ask(piece)
            for piece, blob in zip(pieces, found, strict=True)
            if blob is None
        }
        try:
            return [
                blob
                if blob is not None
                else futures[piece].result(max(0.0, until_s - time.monotonic()))
                for piece, blob in zip(pieces, found, strict=True)
            ]
        except TimeoutError:
            reason = self.waits or f"{self._source.url} has not given the data in time"
            raise AwayError(f"no data to train on: {reason}") from None
        finally:
            self._give_up(futures)

    def prefetch(self, pieces: Iterable[Piece]) -> None:
        """Fetch these when no reader waits, in order; what was queued before for that is
        forgotten.
        """
        room = self.cache.bytes_max // 2
        with self._changed:
            for piece in self._ahead:
                self._asked.pop(piece, None)
            self._ahead.clear()
            for piece in pieces:
                room -= piece.stop - piece.start
                if room < 0 or len(self._ahead) >= AHEAD_MAX:
                    break
                if piece not in self._asked and piece.sha256 not in self.cache:
                    self._asked[piece] = Future()
                    self._ahead[piece] = None
            self._wake()

    def close(self) -> None:
        """End: readers that wait get `AwayError`. Requests under way are left to themselves."""
        with self._changed:
            self._closed = True
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(AwayError("no data to train on: the node ends"))
            self._asked.clear()
            self._changed.notify_all()

    def _ask(self, piece: Piece) -> "Future[bytes]":
        with self._changed:
            if self._closed:
                raise AwayError("no data to train on: the node ends")
            future = self._asked.setdefault(piece, Future())
            self._readers[piece] += 1
            self._ahead.pop(piece, None)
            if piece not in self._running:
                self._urgent[piece] = None
            self._wake()
            return future

    def _give_up(self, pieces: Iterable[Piece]) -> None:
        """One reader less waits for each of these."""
        with self._changed:
            for piece in pieces:
                self._readers[piece] -= 1
                if self._readers[piece] > 0:
                    continue
                del self._readers[piece]
                if piece in self._urgent:
                    del self._urgent[piece]
                    self._asked.pop(piece, None)

    def _wake(self) -> None:
        if not self._started:
            self._started = True
            for number in range(FETCHES):  # daemons: a hanging request holds up no exit
                name = f"data-{number}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._changed.notify_all()

    # ---- in the threads

    def _work(self) -> None:
        while piece := self._next():
            try:
                blob = self._fetched(piece)
            except (AwayError, MissingError) as error:  # a server that is mended answers again
                self._away(piece, str(error))
            except (DataError, StorageError) as error:
                self._ended(piece, error)
            except Exception as error:  # whoever waits for the piece must hear of it
                self._ended(piece, error)
                raise
            else:
                self._ended(piece, blob)

    def _next(self) -> Piece | None:
        """The next piece to fetch, as soon as there is one and the server is not away; None at the
        end.
        """
        with self._changed:
            while not self._closed:
                queue = self._urgent or self._ahead
                pause_s = self._retry_s - time.monotonic()
                if queue and pause_s <= 0:
                    piece = next(iter(queue))
                    del queue[piece]
                    self._running.add(piece)
                    return piece
                self._changed.wait(pause_s if queue else None)
        return None

    def _fetched(self, piece: Piece) -> bytes:
        found = b""
        for _ in range(2):
            blob = self._source.read(piece.name, piece.start, piece.stop)
            with self._changed:
                self.fetched_bytes += len(blob)
                self._answers()
            found = hashlib.sha256(blob).digest()
            if found == piece.sha256:
                self.cache.put(piece.sha256, blob)
                return blob
        raise DataError(
            f"{self._source.url}/{piece.name}: expected bytes {piece.start:,} to {piece.stop:,} "
            f"with SHA-256 {piece.sha256.hex()}, got {found.hex()} twice: the data there are "
            "damaged; tell the operator, or train on data of your own with --data"
        )

    def _answers(self) -> None:
        self._backoff.reset()
        self._retry_s = 0.0
        if self.waits:
            log.info("the data can be fetched again", extra={"url": self._source.url})
            self.waits = ""

    def _away(self, piece: Piece, reason: str) -> None:
        with self._changed:
            self._running.discard(piece)
            if piece in self._readers:
                self._urgent[piece] = None
            else:
                self._asked.pop(piece, None)
            now_s = time.monotonic()
            if now_s >= self._retry_s:  # else another thread has found the same just now
                self._retry_s = now_s + self._backoff.next() / 1000
            if not self.waits:
                log.warning("waits for data", extra={"reason": reason})
            self.waits = reason

    def _ended(self, piece: Piece, result: bytes | Exception) -> None:
        with self._changed:
            self._running.discard(piece)
            future = self._asked.pop(piece, None)
            if future is None or future.done():
                return
            if isinstance(result, bytes):
                future.set_result(result)
            else:
                future.set_exception(result)

"""Pulls under way: the part of the swarm's shell that fetches, verifies and keeps the bytes of
payloads.

One task per pull. A payload reaches the log only when its digest is right; until then its parts
wait in memory, so that the next source goes on where the last one stopped. How each pull ended is
told to the exchange."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any

from node.gossip.machine.events import Failure, Progressed, Pull, Pulled, PullFailed
from node.gossip.payload_log import PayloadLog
from node.gossip.transfer import Transfer
from node.links.network import (
    BlobRange,
    NotHeldError,
    PeerAddress,
    PeerNetwork,
    Purpose,
    WithdrawnError,
)
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import Digest, short

PARTIALS_MAX = 8
"""Transfers kept in memory that no pull is working on; the oldest is thrown away first."""

_log = logging.getLogger(__name__)


class Fetcher:
    """The live pulls of one swarm.

    `spawn` runs a background task whose death is noticed; `tell` is called with the progress of
    each pull and, unless it was dropped, with its end."""

    def __init__(
        self,
        size_max: int,
        log: PayloadLog,
        link: PeerNetwork,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        tell: Callable[[Progressed | Pulled | PullFailed], None],
    ) -> None:
        self._size_max = size_max
        self._log = log
        self._link = link
        self._spawn = spawn
        self._tell = tell
        self._tasks: dict[Digest, asyncio.Task[None]] = {}
        self._transfers: dict[Digest, Transfer] = {}
        self._discarded_bytes = 0

    def start(self, pull: Pull, source: PeerAddress, clock_ms: Callable[[], int]) -> None:
        """Begin a pull, from where an earlier one of the same payload stopped."""
        self._tasks[pull.digest] = self._spawn(self._run(pull, source, clock_ms))

    def drop(self, digest: Digest) -> None:
        """Stop a pull; what has arrived is kept."""
        if task := self._tasks.pop(digest, None):  # else it died, of a full disk for example
            task.cancel()

    def forget(self, round: int) -> None:
        """Throw away what has arrived of a round's payloads that nobody pulls any more."""
        self._throw_away(
            [digest for digest in self._idle() if self._transfers[digest].round == round]
        )

    @property
    def duplicate_bytes(self) -> int:
        """Payload bytes that arrived and were of no use."""
        return self._discarded_bytes + sum(
            transfer.discarded for transfer in self._transfers.values()
        )

    async def _run(self, pull: Pull, source: PeerAddress, clock_ms: Callable[[], int]) -> None:
        transfer = self._transfers.setdefault(pull.digest, Transfer(pull.round, self._size_max))
        transfer.begin(pull.source)
        try:
            rate = await self._fetch(pull, source, transfer, clock_ms)
            await asyncio.to_thread(self._log.put, pull.round, transfer.buffer, pull.digest)
        except (UnavailableError, RemoteProtocolError) as error:
            self._end(pull, _failed(pull, transfer, error))
        else:
            size = len(transfer.buffer)
            self._discarded_bytes += self._transfers.pop(pull.digest).discarded
            self._end(pull, Pulled(pull.digest, pull.source, size, rate))

    async def _fetch(
        self, pull: Pull, source: PeerAddress, transfer: Transfer, clock_ms: Callable[[], int]
    ) -> int:
        """Fill the transfer; at how many bytes per second they came, 0 if there were none to come.

        The rate is taken from the first part on, for what went before may have been a wait in the
        source's queue; a single part is measured from the request."""
        if transfer.complete:
            return 0  # the pull before this one was dropped in its last moment
        asked_ms, began_ms, counted = clock_ms(), 0, 0
        purpose = Purpose.CATCH_UP if pull.replayed else Purpose.PAYLOAD
        async with aclosing(
            self._link.fetch(source, BlobRange(pull.digest, len(transfer.buffer)), purpose)
        ) as parts:
            async for part in parts:
                complete = transfer.take(part, pull.source, pull.size if pull.exact else None)
                if began_ms:
                    counted += len(part.data)
                elif complete:
                    began_ms, counted = asked_ms, len(part.data)
                else:
                    began_ms = clock_ms()
                if complete:
                    return 1000 * counted // max(1, clock_ms() - began_ms)
                self._tell(Progressed(pull.digest, pull.source, len(part.data)))
        raise UnavailableError(
            f"{short(pull.source)} ended a transfer at {len(transfer.buffer)} of {pull.size} bytes"
        )

    def _end(self, pull: Pull, event: Pulled | PullFailed) -> None:
        del self._tasks[pull.digest]
        if isinstance(event, PullFailed):
            _log.debug(
                "round %d: a pull from %s failed: %s", pull.round, short(pull.source), event.reason
            )
        self._tell(event)
        idle = self._idle()
        self._throw_away(idle[: max(0, len(idle) - PARTIALS_MAX)])

    def _idle(self) -> list[Digest]:
        return [digest for digest in self._transfers if digest not in self._tasks]

    def _throw_away(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            transfer = self._transfers.pop(digest)
            self._discarded_bytes += transfer.discarded + len(transfer.buffer)


def _failed(pull: Pull, transfer: Transfer, error: Exception) -> PullFailed:
    failure = Failure.UNAVAILABLE
    if isinstance(error, NotHeldError):
        failure = Failure.ABSENT
    elif isinstance(error, WithdrawnError):
        failure = Failure.WITHDRAWN
    elif isinstance(error, RemoteProtocolError):
        mixed = not transfer.sources <= {pull.source}
        failure = Failure.UNAVAILABLE if mixed else Failure.FAULTY
        transfer.restart(alone=transfer.alone or mixed)
    return PullFailed(
        pull.digest, pull.source, failure, f"payload {pull.digest.hex()[:8]}: {error}"
    )

"""The live pulls of one swarm: fetches, verifies and keeps the bytes of payloads.

One task per pull. A payload reaches the log only when its digest is verified and, unless a commit
names it, `node.gossip.judge` has passed it. Until then its parts wait in memory, so that
the next source goes on where the last one stopped. The exchange, which decides what to pull
(`node.gossip.machine.pull_policy`), is told how each pull ended.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any

from node.gossip.judge import PayloadJudge
from node.gossip.machine import events
from node.gossip.payload_check import ForeignPartError, Verdict
from node.gossip.payload_log import PayloadLog
from node.gossip.transfer import Transfer
from node.links.network import (
    BlobRange,
    LinkBrokenError,
    NotHeldError,
    PeerAddress,
    PeerNetwork,
    Purpose,
    WithdrawnError,
)
from protocol.codec.payload_header import Blob
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, sha256, short

PARTIALS_MAX = 8
"""Transfers kept in memory without a pull that works on them; the oldest is thrown away first."""

log = logging.getLogger(__name__)


class WorthlessError(RemoteProtocolError):
    """The bytes are those of the digest, and count for nothing: every peer that offers them is at
    fault, whoever sent which part.
    """


class Fetcher:
    """Pulls under way and the transfers that they fill.

    `spawn` runs a background task whose death is noticed. `tell` is called with the progress of
    each pull and, unless it was dropped, with its end. `clock_ms()` is a monotonic clock.
    """

    def __init__(
        self,
        size_max: int,
        payload_log: PayloadLog,
        network: PeerNetwork,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        tell: Callable[[events.Progressed | events.Pulled | events.PullFailed], None],
        *,
        judge: PayloadJudge,
        clock_ms: Callable[[], int],
    ) -> None:
        self._size_max, self._judge, self._clock_ms = size_max, judge, clock_ms
        self._payload_log = payload_log
        self._network = network
        self._spawn = spawn
        self._tell = tell
        self._tasks: dict[Digest, asyncio.Task[None]] = {}
        self._transfers: dict[Digest, Transfer] = {}
        self._discarded_bytes = 0

    def start(self, pull: events.Pull, source: PeerAddress) -> None:
        """Begin a pull, from where an earlier one of the same payload stopped."""
        self._tasks[pull.digest] = self._spawn(self._run(pull, source))

    def drop(self, digest: Digest) -> None:
        """Stop a pull, and keep the bytes that have arrived."""
        if task := self._tasks.pop(digest, None):  # else it died, of a full disk for example
            task.cancel()

    def forget(self, round: int) -> None:
        """Throw away the bytes that have arrived of a round's payloads, except those of pulls under
        way.
        """
        self._throw_away(
            [digest for digest in self._idle() if self._transfers[digest].round == round]
        )

    @property
    def duplicate_bytes(self) -> int:
        """Payload bytes that arrived and were of no use."""
        return self._discarded_bytes + sum(
            transfer.discarded for transfer in self._transfers.values()
        )

    async def _run(self, pull: events.Pull, source: PeerAddress) -> None:
        transfer = self._transfers.setdefault(pull.digest, Transfer(pull.round, self._size_max))
        transfer.begin(pull.source)
        try:
            rate = await self._fetch(pull, source, transfer)
            check = self._judge.begin(pull.round, pull.digest, pull.ranges)
            verdict = await asyncio.to_thread(self._keep, pull, transfer.buffer, check)
        except (UnavailableError, RemoteProtocolError) as error:
            self._end(pull, _failed(pull, transfer, error))
        else:
            if verdict:
                self._judge.passed(pull.round, pull.digest, verdict)
            size = len(transfer.buffer)
            self._discarded_bytes += self._transfers.pop(pull.digest).discarded
            self._end(pull, events.Pulled(pull.digest, pull.source, size, rate))

    def _keep(
        self, pull: events.Pull, payload: bytearray, check: Callable[[Blob], Verdict]
    ) -> Verdict | None:
        """Put a whole payload into the log, and return what was found if it was checked. One that
        is named is wanted whatever it holds: it counts for nothing on every node.
        """
        verdict = None
        if not pull.named and sha256(payload) == pull.digest:  # else the log says so
            try:
                verdict = check(payload)
            except ForeignPartError:
                raise  # another author may list it, so that it counts
            except RemoteProtocolError as error:
                raise WorthlessError(str(error)) from None
        self._payload_log.put(pull.round, payload, pull.digest)
        return verdict

    async def _fetch(self, pull: events.Pull, source: PeerAddress, transfer: Transfer) -> int:
        """Fill the transfer; returns its rate in bytes per second, 0 if no byte had to be sent.

        The rate is measured from the first part on, because the time before it may have been spent
        in the source's queue; a transfer of one part is measured from the request.
        """
        if transfer.complete:
            return 0  # the pull before this one was dropped in its last moment
        asked_ms, began_ms, counted = self._clock_ms(), 0, 0
        purpose = Purpose.CATCH_UP if pull.replayed else Purpose.PAYLOAD
        blob = BlobRange(pull.digest, len(transfer.buffer))
        async with aclosing(self._network.fetch(source, blob, purpose)) as parts:
            async for part in parts:
                complete = transfer.append(part, pull.source, pull.size if pull.exact else None)
                if began_ms:
                    counted += len(part.data)
                elif complete:
                    began_ms, counted = asked_ms, len(part.data)
                else:
                    began_ms = self._clock_ms()
                if complete:
                    return 1000 * counted // max(1, self._clock_ms() - began_ms)
                self._tell(events.Progressed(pull.digest, pull.source, len(part.data)))
        raise UnavailableError(
            f"{short(pull.source)} ended a transfer at {len(transfer.buffer)} of {pull.size} bytes"
        )

    def _end(self, pull: events.Pull, event: events.Pulled | events.PullFailed) -> None:
        del self._tasks[pull.digest]
        if isinstance(event, events.PullFailed):
            log.debug("a pull failed", extra=_fields(pull.round, pull.source, event.reason))
        self._tell(event)
        idle = self._idle()
        self._throw_away(idle[: max(0, len(idle) - PARTIALS_MAX)])

    def _idle(self) -> list[Digest]:
        return [digest for digest in self._transfers if digest not in self._tasks]

    def _throw_away(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            transfer = self._transfers.pop(digest)
            self._discarded_bytes += transfer.discarded + len(transfer.buffer)


def _failed(pull: events.Pull, transfer: Transfer, error: Exception) -> events.PullFailed:
    failure = events.Failure.UNAVAILABLE
    if isinstance(error, NotHeldError):
        failure = events.Failure.ABSENT
    elif isinstance(error, LinkBrokenError):
        failure = events.Failure.BROKEN
    elif isinstance(error, WithdrawnError):
        failure = events.Failure.WITHDRAWN
    elif isinstance(error, WorthlessError):
        failure = events.Failure.WORTHLESS
        transfer.restart(alone=transfer.alone)
    elif isinstance(error, RemoteProtocolError):
        mixed = not transfer.sources <= {pull.source}
        failure = events.Failure.UNAVAILABLE if mixed else events.Failure.FAULTY
        transfer.restart(alone=transfer.alone or mixed)
    reason = f"payload {pull.digest.hex()[:8]}: {error}"
    return events.PullFailed(pull.digest, pull.source, failure, reason)


def _fields(round: int, peer: PeerId, reason: str) -> dict[str, object]:
    return {"round": round, "peer": short(peer), "reason": reason}

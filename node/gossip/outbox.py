"""Offers on their way out: one message at a time to each peer, with all that has come up
meanwhile."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from node.gossip.machine.events import Offer
from node.links.network import PeerAddress, PeerNetwork
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import PeerId, RunId, short
from protocol.limits import OFFERS_MAX
from protocol.wire_pb2 import OfferedPayload, Offers

_log = logging.getLogger(__name__)


class Outbox:
    """The outbox of one swarm. `failed(peer, round)` is called for each offer that did not get
    there."""

    def __init__(
        self,
        own: PeerId,
        run_id: RunId,
        link: PeerNetwork,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        failed: Callable[[PeerId, int], object],
    ) -> None:
        self._own = own
        self._run_id = run_id
        self._link = link
        self._spawn = spawn
        self._failed = failed
        self._waiting: dict[PeerId, list[Offer]] = {}

    def add(self, offer: Offer, to: PeerAddress) -> None:
        """Send an offer after those to the same peer that are on their way."""
        if offer.peer in self._waiting:
            self._waiting[offer.peer].append(offer)
        else:
            self._waiting[offer.peer] = [offer]
            self._spawn(self._send(to))

    async def _send(self, to: PeerAddress) -> None:
        waiting = self._waiting[to.peer_id]
        try:
            while waiting:
                together = _batch(waiting)
                del waiting[: len(together)]
                try:
                    await self._link.offer(to, self._message(together))
                except (UnavailableError, RemoteProtocolError) as error:
                    _log.debug("an offer to %s failed: %s", short(to.peer_id), error)
                    for offer in together:
                        self._failed(offer.peer, offer.round)
        finally:
            del self._waiting[to.peer_id]

    def _message(self, offers: list[Offer]) -> Offers:
        listed = [
            OfferedPayload(round=offer.round, digest=digest, payload_bytes=size)
            for offer in offers
            for digest, size in offer.payloads
        ]
        idle = offers[-1].idle  # else something has come up since
        return Offers(run_id=self._run_id, sender=self._own, offers=listed, idle=idle)


def _batch(waiting: list[Offer]) -> list[Offer]:
    """The first offers, at least one, as many as one message holds."""
    count, listed = 1, len(waiting[0].payloads)
    for offer in waiting[1:]:
        listed += len(offer.payloads)
        if listed > OFFERS_MAX:
            break
        count += 1
    return waiting[:count]

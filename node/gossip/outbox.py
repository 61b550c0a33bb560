"""Sends offers: one message at a time to each peer, with all offers that came up meanwhile."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from node.gossip.machine import events
from node.links.network import PeerAddress, PeerNetwork
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, RunId, short
from protocol.limits import OFFERS_MAX
from protocol.wire_pb2 import OfferedPayload, Offers

log = logging.getLogger(__name__)


class Outbox:
    """The outbox of one swarm. `failed(peer, round)` is called for each offer that did not
    arrive; `announced(round, digest)` is a payload's offer with its author's signature, None while
    that is not known.
    """

    def __init__(
        self,
        own: PeerId,
        run_id: RunId,
        network: PeerNetwork,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        failed: Callable[[PeerId, int], object],
        *,
        announced: Callable[[int, Digest], OfferedPayload | None],
    ) -> None:
        self._own = own
        self._run_id = run_id
        self._network = network
        self._spawn = spawn
        self._failed = failed
        self._announced = announced
        self._waiting: dict[PeerId, list[events.Offer]] = {}

    @property
    def waiting(self) -> list[PeerId]:
        """Peers to which a message is on its way, sorted."""
        return sorted(self._waiting)

    def add(self, offer: events.Offer, to: PeerAddress) -> None:
        """Send an offer, after those to the same peer that are on their way."""
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
                message = self._message(together)
                if not (message.offers or message.idle):
                    continue
                try:
                    await self._network.offer(to, message)
                except (UnavailableError, RemoteProtocolError) as error:
                    log.debug(
                        "an offer failed",
                        extra={"peer": short(to.peer_id), "reason": str(error)},
                    )
                    for offer in together:
                        self._failed(offer.peer, offer.round)
        finally:
            del self._waiting[to.peer_id]

    def _message(self, offers: list[events.Offer]) -> Offers:
        listed = [
            announced
            for offer in offers
            for digest, _ in offer.payloads
            if (announced := self._announced(offer.round, digest))
        ]
        idle = offers[-1].idle  # an idle offer before the last one is out of date
        return Offers(run_id=self._run_id, sender=self._own, offers=listed, idle=idle)


def _batch(waiting: list[events.Offer]) -> list[events.Offer]:
    """The first offers: as many as one message holds, at least one."""
    count, listed = 1, len(waiting[0].payloads)
    for offer in waiting[1:]:
        listed += len(offer.payloads)
        if listed > OFFERS_MAX:
            break
        count += 1
    return waiting[:count]

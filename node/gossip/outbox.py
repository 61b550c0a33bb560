"""Sends offers: one message at a time to each peer, with all offers that came up meanwhile."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from itertools import accumulate
from typing import Any, Final

from node.gossip.machine import events
from node.links.network import PeerAddress, PeerNetwork
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import PeerId, RunId, short
from protocol.limits import OFFERS_MAX
from protocol.wire_pb2 import OfferedPayload, Offers

OFFER_BYTES_MAX: Final = 96 * 1024
"""Bytes of the offers in one message: what a link carries, with room for the rest of a message."""

log = logging.getLogger(__name__)


class Outbox:
    """The outbox of one swarm. `failed(peer, round)` is called for each offer that did not
    arrive; `told(offer)` is what to send for an offer, with the signatures of authors as far as
    these are known.
    """

    def __init__(
        self,
        own: PeerId,
        run_id: RunId,
        network: PeerNetwork,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        failed: Callable[[PeerId, int], object],
        *,
        told: Callable[[events.Offer], list[OfferedPayload]],
    ) -> None:
        self._own = own
        self._run_id = run_id
        self._network = network
        self._spawn = spawn
        self._failed = failed
        self._told = told
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
                try:
                    for message in self._messages(together):
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

    def _messages(self, offers: list[events.Offer]) -> Iterator[Offers]:
        """The messages of these offers: one, or several where the lists of parts need the room."""
        listed = [told for offer in offers for told in self._told(offer)]
        idle = offers[-1].idle  # an idle offer before the last one is out of date
        while listed or idle:
            ends = accumulate(each.ByteSize() for each in listed)
            count = sum(end <= OFFER_BYTES_MAX for end in ends)
            count = max(1, count)  # none is longer
            together, listed = listed[:count], listed[count:]
            last = idle and not listed
            yield Offers(run_id=self._run_id, sender=self._own, offers=together, idle=last)
            idle = idle and not last


def _batch(waiting: list[events.Offer]) -> list[events.Offer]:
    """The first offers: as many as one message holds, at least one."""
    count, listed = 1, len(waiting[0].payloads)
    for offer in waiting[1:]:
        listed += len(offer.payloads)
        if listed > OFFERS_MAX:
            break
        count += 1
    return waiting[:count]

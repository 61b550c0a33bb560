"""Decides when to try for a direct connection in place of a relayed one. Pure.

    relayed, and four others see us --> hang up, dial through the relay --> a hole is punched or not
                                            ^                                             |
                                            +------ pause, doubling up to six hours <-----+

libp2p punches a hole only when a relayed connection opens, and only where both ends know their
public address by then: from four peers at four public addresses (`OBSERVERS_MIN`, a constant of
libp2p). A connection that opened earlier stays relayed for ever. So one of the two ends, the one
with the lower peer id, closes it once for a new one: the link breaks, is back within a second, and
the transfers under way are resumed.

Seen with the daemon of hivemind 1.1.12, over TCP, through two port-restricted routers that keep
ports, both ends dialling at once from the port that they listen on: it worked each time with four
observers, never with three. It worked once in nine times while the daemons told peers their public
addresses, which are then dialled first; hence `announce` in `transport`. Behind a router that gives
each connection another port no four observers agree, and the relay stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from node.system.backoff import Backoff
from node.transports.libp2p.contact import Contact
from node.transports.libp2p.multiaddr import ip_of

OBSERVERS_MIN = 4
"""Peers at public addresses of their own that must see a node before libp2p believes them."""

PAUSE_MS = (60_000, 6 * 3_600_000)
"""First and longest pause between attempts with one peer; each breaks its link for a moment."""

PEERS_MAX = 1024
"""Peers whose attempts are remembered; the least recently used is forgotten first."""


@dataclass(slots=True)
class _Pause:
    backoff: Backoff
    until_ms: int


class Attempts:
    """Attempts of the node with the libp2p peer id `own`."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._pauses: LRUCache[str, _Pause] = LRUCache(PEERS_MAX)

    def begin(self, peer: str, contacts: Sequence[Contact], now_ms: int) -> bool:
        """Begin an attempt with a peer that only a relay connects, if one is due; returns whether
        it is. The caller then hangs up and dials again.
        """
        pause = self._pauses.get(peer)
        if self._own > peer or (pause and now_ms < pause.until_ms):
            return False
        if len(_observers(contacts)) < OBSERVERS_MIN:
            return False
        backoff = pause.backoff if pause else Backoff(*PAUSE_MS)
        self._pauses[peer] = _Pause(backoff, now_ms + backoff.next())
        return True


def _observers(contacts: Sequence[Contact]) -> set[str]:
    direct = (ip_of(contact.address) for contact in contacts if not contact.relayed)
    return {str(ip) for ip in direct if ip is not None and ip.is_global}

"""When to try for a direct way in place of a relayed one. Pure.

    relayed, and four others see us --> hang up, dial through the relay again --> the daemons punch a hole, or do not
                                            ^                                                           |
                                            +--------------- pause, doubling up to six hours <----------+

libp2p punches when a relayed connection opens and at no other time, and only where both ends know
their own public address by then: from four peers at four public addresses (`OBSERVERS_MIN`, in
libp2p a constant). A connection that opened earlier stays relayed for ever. So it is closed once
for a new one: the link breaks, is back in a second, and what was under way is resumed. One of the
two ends does it, the one with the lower peer id.

Seen with the daemon of hivemind 1.1.12, over TCP, through two port-restricted routers that keep
ports, both ends dialling at once from the port that they listen on: it worked each time with four
observers, never with three, and once in nine times while the daemons told peers their public
addresses, which are then dialled first. Hence `announce` in `libp2p_pipes`. Behind a router that
gives each connection another port no four observers agree, and the relay stays."""

from collections import OrderedDict
from collections.abc import Sequence

from node.transports.libp2p.daemon_control import Contact
from node.transports.libp2p.multiaddr import ip_of

OBSERVERS_MIN = 4
"""Peers at public addresses of their own that must see a node before libp2p believes what they
see."""

PAUSE_S = (60.0, 6 * 3600.0)
"""First and longest pause between attempts with one peer; each breaks its link for a moment."""

PEERS_MAX = 1024
"""Peers whose attempts are remembered; the oldest is forgotten first."""


class Attempts:
    """Attempts of the node with the libp2p peer id `own`."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._made: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # when the next may be, and the pause then

    def due(self, peer: str, contacts: Sequence[Contact], now_s: float) -> bool:
        """Whether to hang up on a peer that only a relay connects, and dial it again. Counts as an
        attempt."""
        next_s, pause_s = self._made.get(peer, (0.0, PAUSE_S[0]))
        if self._own > peer or now_s < next_s or len(_observers(contacts)) < OBSERVERS_MIN:
            return False
        self._made[peer] = now_s + pause_s, min(2 * pause_s, PAUSE_S[1])
        self._made.move_to_end(peer)
        while len(self._made) > PEERS_MAX:
            self._made.popitem(last=False)
        return True


def _observers(contacts: Sequence[Contact]) -> set[str]:
    direct = (ip_of(contact.address) for contact in contacts if not contact.relayed)
    return {str(ip) for ip in direct if ip is not None and ip.is_global}

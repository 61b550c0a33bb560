"""The relays of a run: nodes that forward payloads and do not train. Pure, and not journalled.

A relay has a session as a member has, hears what every member hears, and stands in the member list.
It is no member: the machine of rounds knows only those that offer to add
(`coordinator.machine.rules.sums.offering`), and it is gone when its session ends or when it has
sent no heartbeat for a lease.
"""

from collections.abc import Callable, Collection, Iterator

from coordinator.machine.events.effects import Admit, Refuse
from coordinator.machine.events.inputs import Joined
from coordinator.machine.state.sums.relays import AddingRelays
from protocol.ids import PeerId

RELAYS_MAX = 16
"""Relays of a run beside its auditors and those that its operator vouches for: every node keeps a
link to each."""


class Relays:
    """Decides which relays take part; the server carries the decisions out."""

    def __init__(self, lease_ms: int, named: Callable[[], Collection[PeerId]] = lambda: ()) -> None:
        """`named()` are the keys that the operator has named: they have a place whatever others
        take, and take none of theirs.
        """
        self._lease_ms, self._named = lease_ms, named
        self._relays: dict[PeerId, Joined] = {}
        self._lease_until_ms: dict[PeerId, int] = {}

    def __iter__(self) -> Iterator[Joined]:
        """The relays as they introduced themselves, sorted by id."""
        return iter([self._relays[peer] for peer in sorted(self._relays)])

    def join(self, joined: Joined, now_ms: int) -> Admit | Refuse:
        """Admit a relay, again if it is known, unless the run has all that it may have."""
        named = self._named()
        others = sum(peer not in named for peer in self._relays)
        known = joined.peer in self._relays or joined.peer in named
        if not known and others >= RELAYS_MAX:
            reason = f"the run has {RELAYS_MAX} relays already"
            return Refuse(joined.peer, reason, retry=True)
        self._relays[joined.peer] = joined
        self._lease_until_ms[joined.peer] = now_ms + self._lease_ms
        return Admit(joined.peer)

    def beat(self, peer: PeerId, now_ms: int) -> None:
        """A relay sends a heartbeat."""
        if peer in self._relays:
            self._lease_until_ms[peer] = now_ms + self._lease_ms

    def lapsed(self, now_ms: int) -> list[PeerId]:
        """The relays whose lease has run out, sorted; to be dropped with `leave`."""
        return sorted(peer for peer, until_ms in self._lease_until_ms.items() if until_ms <= now_ms)

    def leave(self, peer: PeerId) -> None:
        """Drop a relay whose session has ended."""
        self._relays.pop(peer, None)
        self._lease_until_ms.pop(peer, None)

    def document(self, adding: AddingRelays) -> list[dict[str, object]]:
        """The relays for a status page, with what those that offer to add have done."""
        return [
            {
                "peer_id": relay.peer,
                "name": relay.name,
                "addresses": list(relay.addresses),
                "adds": (offering := adding.get(relay.peer)) is not None,
                "ranges_added": offering.work.ranges_added if offering else 0,
                "halved": offering.work.halved if offering else 0,
            }
            for relay in self
        ]

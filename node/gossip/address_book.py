"""The peers of the run with their addresses, as the coordinator last listed them."""

from collections.abc import Mapping

from node.links.network import PeerAddress
from protocol.ids import PeerId


class AddressBook:
    """Members and relays. `own` is this node, which may be listed as well."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._members: frozenset[PeerId] = frozenset()
        self._addresses: Mapping[PeerId, tuple[str, ...]] = {}

    def update(
        self,
        members: Mapping[PeerId, tuple[str, ...]],
        relays: Mapping[PeerId, tuple[str, ...]],
    ) -> None:
        """Replace all entries."""
        self._members = frozenset(members)
        self._addresses = {**relays, **members}

    @property
    def others(self) -> list[PeerId]:
        """The other members, sorted."""
        return sorted(self._members - {self._own})

    @property
    def by_importance(self) -> list[PeerAddress]:
        """All other peers, relays first: a link to one of them leads to all others."""
        return [self.find(peer) for peer in self._addresses if peer != self._own]

    def is_relay(self, peer: PeerId) -> bool:
        """Whether a peer is listed as a relay."""
        return peer in self._addresses and peer not in self._members

    def find(self, peer: PeerId) -> PeerAddress:
        """A peer with its addresses; with none, if it is not listed."""
        return PeerAddress(peer, self._addresses.get(peer, ()))

"""Who takes part, as the coordinator tells it: whole lists at first, changes after that."""

from collections.abc import Mapping

from protocol import wire_pb2 as wire
from protocol.ids import PeerId, parse_peer_id

Addresses = tuple[str, ...]


class MemberList:
    """Members and relays with their addresses."""

    def __init__(self) -> None:
        self._told: dict[PeerId, tuple[Addresses, bool]] = {}

    def take(self, told: wire.Members) -> None:
        """Take the whole list, or what has changed in it. `RemoteProtocolError` for names that are
        none.
        """
        if not told.changes:
            self._told.clear()
        for member in told.members:
            self._told[parse_peer_id(member.peer_id)] = (tuple(member.addresses), member.relay)
        for peer in told.gone:
            self._told.pop(parse_peer_id(peer), None)

    @property
    def members(self) -> Mapping[PeerId, Addresses]:
        """Who trains, with the addresses that they announced."""
        return {peer: addresses for peer, (addresses, relay) in self._told.items() if not relay}

    @property
    def relays(self) -> Mapping[PeerId, Addresses]:
        """Who holds and forwards payloads and does not train."""
        return {peer: addresses for peer, (addresses, relay) in self._told.items() if relay}

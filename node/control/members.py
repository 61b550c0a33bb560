"""The members of a run and its relays, as the coordinator names them: the whole list at first, then
changes.
"""

from collections.abc import Mapping

from protocol import wire_pb2 as wire
from protocol.ids import PeerId, parse_peer_id

Addresses = tuple[str, ...]


class MemberList:
    """Members and relays with their addresses. The coordinator client keeps the node's only one."""

    def __init__(self) -> None:
        self._known: dict[PeerId, tuple[Addresses, bool]] = {}

    def update(self, told: wire.Members) -> None:
        """Replace the list, or change it if the message holds only changes.

        Raises `RemoteProtocolError` for a malformed peer id.
        """
        if not told.changes:
            self._known.clear()
        for member in told.members:
            self._known[parse_peer_id(member.peer_id)] = (tuple(member.addresses), member.relay)
        for peer in told.gone:
            self._known.pop(parse_peer_id(peer), None)

    @property
    def members(self) -> Mapping[PeerId, Addresses]:
        """The nodes that train, with the addresses that they announced."""
        return {peer: addresses for peer, (addresses, relay) in self._known.items() if not relay}

    @property
    def member_count(self) -> int:
        """The number of members."""
        return sum(not relay for _, relay in self._known.values())

    @property
    def relays(self) -> Mapping[PeerId, Addresses]:
        """The nodes that hold and forward payloads and do not train."""
        return {peer: addresses for peer, (addresses, relay) in self._known.items() if relay}

"""The relays of a run: who forwards payloads and does not train. Nothing of them is journalled.

A relay has a session like a node, hears what everybody hears, and is told to all in the member
list. It is no member: the machine knows nothing of it, and when its session ends it is gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from coordinator.machine.events import Joined
from protocol import wire_pb2 as wire
from protocol.ids import PeerId

RELAYS_MAX = 16
"""Relays of a run: every node keeps a link to each."""


class Session(Protocol):
    """Where a relay hears."""

    def send(self, message: wire.CoordinatorMessage) -> None:
        """Queue a message."""

    def close(self, message: wire.CoordinatorMessage | None = None) -> None:
        """Queue the last one."""


SessionT = TypeVar("SessionT", bound=Session)


@dataclass(frozen=True, slots=True)
class _Relay(Generic[SessionT]):
    joined: Joined
    session: SessionT


class Relays(Generic[SessionT]):
    """The relays with an open session."""

    def __init__(self) -> None:
        self._relays: dict[PeerId, _Relay[SessionT]] = {}

    def __iter__(self) -> Iterator[SessionT]:
        """Their sessions."""
        return iter([relay.session for relay in self._relays.values()])

    def admit(self, joined: Joined, session: SessionT) -> str:
        """Take a relay in, in place of an older session of it; why not, in words, or nothing."""
        if joined.peer not in self._relays and len(self._relays) >= RELAYS_MAX:
            return f"the run has {RELAYS_MAX} relays already"
        if earlier := self._relays.get(joined.peer):
            reason = "another session with this relay's key has opened; one key is one relay"
            earlier.session.close(wire.CoordinatorMessage(refused=wire.Refused(reason=reason)))
        self._relays[joined.peer] = _Relay(joined, session)
        return ""

    def part(self, peer: PeerId, session: SessionT) -> bool:
        """A session ended; whether it was its relay's last."""
        if peer not in self._relays or self._relays[peer].session is not session:
            return False
        del self._relays[peer]
        return True

    def told(self) -> list[wire.Member]:
        """Lines of the member list."""
        return [
            wire.Member(peer_id=peer, addresses=relay.joined.addresses, relay=True)
            for peer, relay in sorted(self._relays.items())
        ]

    def document(self) -> list[dict[str, object]]:
        """For a status page."""
        return [
            {"peer_id": peer, "name": relay.joined.name, "addresses": list(relay.joined.addresses)}
            for peer, relay in sorted(self._relays.items())
        ]

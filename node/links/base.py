"""What the swarm needs of a transport, and what a transport needs of the swarm.

A link carries the messages of protocol/wire.proto between this node and its peers; it decides nothing and checks
nothing but its own limits. The swarm above it knows no transport: gRPC is one implementation, raw libp2p streams can
be another, and members of one run may use either. A link that keeps one bidirectional stream per pair of peers finds
it by `Remote.peer_id`; one that dials uses `Remote.addresses`. Either may ignore the other field.

Foreign exceptions end here: a link raises only `UnavailableError`, its kind `NotHeldError`, `RemoteProtocolError`,
and from `start` also `AddressInUseError` and `SettingsError`.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from protocol.errors import UnavailableError
from protocol.ids import Digest, PeerId
from protocol.wire_pb2 import Offers, Part


class NotHeldError(UnavailableError):
    """The peer answers, but it does not hold the blob that was asked for."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A peer as a link sees it: who it is and where it says it listens, its favourite address first."""

    peer_id: PeerId
    addresses: tuple[str, ...]


@dataclass(slots=True)
class Traffic:
    """Bytes that a link carried. Payload bytes are the data of parts; everything else in the messages and their
    frames is other. What the operating system adds (TCP, TLS, HTTP/2 headers) is not counted."""

    payload_up: int = 0
    payload_down: int = 0
    other_up: int = 0
    other_down: int = 0


class LinkServer(Protocol):
    """What a link asks of the node when a peer calls."""

    def on_offer(self, offers: Offers) -> None:
        """Take a peer's offers. `RemoteProtocolError`: refused, and the peer is told so."""

    async def read(self, digest: bytes, offset: int) -> tuple[int, bytes] | None:
        """(size of the blob, its next part from `offset` on), or None when it is not held.

        Raises `RemoteProtocolError` for a digest or an offset that makes no sense."""


class Link(Protocol):
    """One way to reach peers and to be reached."""

    async def start(self, server: LinkServer) -> tuple[str, ...]:
        """Listen; returns the addresses to announce. Raises `AddressInUseError` or `SettingsError`."""

    async def stop(self) -> None:
        """End every transfer and stop listening; nothing is left behind. May be called twice, or without a start."""

    async def offer(self, to: Remote, offers: Offers) -> None:
        """Hand over offers; returns when the peer took them.

        Raises `UnavailableError` when it cannot be reached, `RemoteProtocolError` when it refused them."""

    def fetch(self, source: Remote, digest: Digest, offset: int) -> AsyncGenerator[Part, None]:
        """The parts of a blob from `offset` on, as the peer sends them: unchecked.

        Raises `NotHeldError`, `UnavailableError` (unreachable, busy or silent for too long) or
        `RemoteProtocolError`. Closing the generator ends the transfer."""

    @property
    def traffic(self) -> Traffic:
        """Bytes carried so far; a copy."""

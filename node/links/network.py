"""What the swarm needs of its links, and what they need of the swarm.

A link moves offers and the parts of blobs between this node and a peer; it decides nothing about
rounds. Nodes use `node.links.mesh`; tests have others.

Foreign exceptions end below: a link raises only `UnavailableError`, its kind `NotHeldError`,
`RemoteProtocolError`, and from `start` also `AddressInUseError` and `SettingsError`."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from node.links.frames import PART_BYTES_MAX, Part
from node.links.upload_queue import Urgency
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId
from protocol.wire_pb2 import Offers


class Purpose(IntEnum):
    """Why a blob is fetched."""

    PAYLOAD = 1
    """A payload of an undecided round."""
    CATCH_UP = 2
    """A payload of a decided round, or a snapshot: for who catches up."""


class NotHeldError(UnavailableError):
    """The peer answers, but it does not hold the blob that was asked for."""


class WithdrawnError(UnavailableError):
    """The rest of a fetch was withdrawn before the peer had begun to send it."""


@dataclass(frozen=True, slots=True)
class BlobRange:
    """What a fetch asks for: a blob, or some of it."""

    digest: Digest
    offset: int = 0
    count: int = 0
    """Bytes at most; 0: to the end."""

    def end(self, total: int) -> int:
        """Where it ends in a blob of `total` bytes."""
        return min(self.offset + self.count, total) if self.count else total


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A peer as a link sees it: who it is and where it says it listens, its favourite address
    first."""

    peer_id: PeerId
    addresses: tuple[str, ...]


@dataclass(slots=True)
class Traffic:
    """Bytes of frames or messages, each with its owner. Payloads of undecided rounds; what late
    joiners catch up with; and everything else: control. What transports and the operating system
    add is not seen here."""

    payload_up: int = 0
    payload_down: int = 0
    catch_up_up: int = 0
    catch_up_down: int = 0
    control_up: int = 0
    control_down: int = 0
    late_down: int = 0
    """Of payload and catch-up: parts of fetches that were cancelled with them on the way."""

    def count_up(self, purpose: Purpose, count: int) -> None:
        """Data of a part left."""
        if purpose is Purpose.CATCH_UP:
            self.catch_up_up += count
        else:
            self.payload_up += count

    def count_down(self, purpose: Purpose, count: int) -> None:
        """Data of a part came."""
        if purpose is Purpose.CATCH_UP:
            self.catch_up_down += count
        else:
            self.payload_down += count

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class LinkServer(Protocol):
    """What a link asks of the node when a peer calls."""

    def on_offer(self, offers: Offers) -> None:
        """Take a peer's offers. `RemoteProtocolError`: refused, and the peer is told so."""

    async def read(
        self, digest: Digest, offset: int, count: int = PART_BYTES_MAX
    ) -> tuple[int, bytes] | None:
        """(size of the blob, at most `count` of its bytes from `offset` on), or None when it is not
        held.

        Raises `RemoteProtocolError` for an offset that makes no sense, `StorageError`."""

    def purpose(self, digest: Digest) -> Purpose:
        """Why somebody would want this blob."""

    def urgency(self, peer: PeerId, digest: Digest) -> Urgency:
        """How urgent it is to serve a blob to a peer, less is more urgent."""

    def on_linked(self, peers: frozenset[PeerId]) -> None:
        """Links are open to these peers now."""

    def on_served(self, peer: PeerId, digest: Digest) -> None:
        """A peer has taken the last byte of a blob from this node."""


class ReadOnlyPeer:
    """The `LinkServer` of who only reads: it holds nothing and wants no offers."""

    def on_offer(self, offers: Offers) -> None:
        """No."""
        raise RemoteProtocolError("expected no offer to who only reads, got one")

    async def read(self, digest: Digest, offset: int, count: int = 0) -> None:
        """Nothing."""
        return

    def purpose(self, digest: Digest) -> Purpose:
        """Never asked, for nothing is read."""
        return Purpose.CATCH_UP

    def urgency(self, peer: PeerId, digest: Digest) -> tuple[int, ...]:
        """Never asked either."""
        return ()

    def on_linked(self, peers: frozenset[PeerId]) -> None:
        """Of no interest: who is asked is linked to."""

    def on_served(self, peer: PeerId, digest: Digest) -> None:
        """Never told."""


class PeerNetwork(Protocol):
    """The way to reach peers and to be reached."""

    async def start(self, server: LinkServer) -> tuple[str, ...]:
        """Listen; returns the addresses to announce. Raises `AddressInUseError` or
        `SettingsError`."""

    async def stop(self) -> None:
        """End every transfer and stop listening; nothing is left behind. May be called twice, or
        without a start."""

    def keep(self, remotes: Sequence[PeerAddress]) -> None:
        """Peers to be linked to from now on, the most important first."""

    async def offer(self, to: PeerAddress, offers: Offers) -> None:
        """Hand over offers; returns when the peer took them.

        Raises `UnavailableError` when it cannot be reached, `RemoteProtocolError` when it refused
        them."""

    def fetch(
        self, source: PeerAddress, blob: BlobRange, purpose: Purpose
    ) -> AsyncGenerator[Part, None]:
        """The parts of a blob as the peer sends them: unchecked.

        Raises `NotHeldError`, `WithdrawnError`, `UnavailableError` (unreachable, busy or silent for
        too long) or `RemoteProtocolError`. Closing the generator ends the transfer."""

    def withdraw(self, source: PeerId, digest: Digest, unless_soon: bool = False) -> None:
        """Ask the source for no more of a blob than it has begun to send, or can begin soon."""

    @property
    def idle(self) -> bool:
        """Whether nobody wants any blob of this node."""

    @property
    def traffic(self) -> Traffic:
        """Bytes carried so far; a copy."""

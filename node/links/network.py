"""The interfaces between links and the swarm.

A link moves offers and the parts of blobs between this node and a peer; it decides nothing about
rounds. Nodes use `node.links.mesh`; tests have other implementations.

Foreign exceptions are translated below: a link raises only `UnavailableError`, its kinds
`NotHeldError`, `WithdrawnError` and `LinkBrokenError`, `RemoteProtocolError`, and from `start` also
`AddressInUseError` and `SettingsError`.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from node.links.frames import PART_BYTES_MAX, Part
from node.links.upload_queue import Urgency
from node.traffic import Traffic
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId
from protocol.wire_pb2 import Offers


class Purpose(IntEnum):
    """Purposes of a fetch."""

    PAYLOAD = 1
    """A payload of an undecided round."""
    CATCH_UP = 2
    """A payload of a decided round, or a snapshot, for a node that catches up."""


class NotHeldError(UnavailableError):
    """The peer answers, but does not hold the requested blob."""


class WithdrawnError(UnavailableError):
    """The rest of a fetch was withdrawn before the peer had begun to send it."""


class LinkBrokenError(UnavailableError):
    """The link to a peer that was heard until then broke during a fetch, not by this end's wish. A
    line that fails is silent first.
    """


@dataclass(frozen=True, slots=True)
class BlobRange:
    """A blob, or a range of it, that a fetch asks for."""

    digest: Digest
    offset: int = 0
    count: int = 0
    """Most bytes wanted; 0: to the end."""

    def end(self, total: int) -> int:
        """The end of the range in a blob of `total` bytes."""
        return min(self.offset + self.count, total) if self.count else total


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A peer's id, and the addresses that it announced, its favourite first."""

    peer_id: PeerId
    addresses: tuple[str, ...]


class LinkServer(Protocol):
    """The node, as its links see it."""

    def on_offer(self, offers: Offers) -> None:
        """Take a peer's offers. `RemoteProtocolError`: refused; the peer is told the reason."""

    async def read(
        self, digest: Digest, offset: int, count: int = PART_BYTES_MAX
    ) -> tuple[int, bytes] | None:
        """(size of the blob, at most `count` of its bytes from `offset` on), or None when the blob
        is not held.

        Raises `RemoteProtocolError` for an offset outside the blob, `StorageError`.
        """

    def purpose(self, digest: Digest) -> Purpose:
        """The purpose for which peers fetch a blob."""

    def urgency(self, peer: PeerId, digest: Digest) -> Urgency:
        """Urgency of serving a blob to a peer; less is more urgent."""

    def on_linked(self, peers: frozenset[PeerId]) -> None:
        """Links to these peers are open now."""

    def on_part(self, peer: PeerId, digest: Digest, count: int, size: int) -> None:
        """`count` bytes of a blob of `size` left for a peer, whatever it will do with them."""

    def on_served(self, peer: PeerId, digest: Digest) -> None:
        """A peer has taken the last byte of a blob from this node."""


class ReadOnlyPeer:
    """The `LinkServer` of a peer that only reads: it holds nothing and takes no offers."""

    def on_offer(self, offers: Offers) -> None:
        raise RemoteProtocolError("this peer only reads; it takes no offers")

    async def read(self, digest: Digest, offset: int, count: int = 0) -> None:
        return

    def purpose(self, digest: Digest) -> Purpose:
        return Purpose.CATCH_UP

    def urgency(self, peer: PeerId, digest: Digest) -> tuple[int, ...]:
        return ()

    def on_linked(self, peers: frozenset[PeerId]) -> None:
        return

    def on_part(self, peer: PeerId, digest: Digest, count: int, size: int) -> None:
        return

    def on_served(self, peer: PeerId, digest: Digest) -> None:
        return


class PeerNetwork(Protocol):
    """Reaches peers, and is reached by them."""

    async def start(self, server: LinkServer) -> tuple[str, ...]:
        """Listen; returns the addresses to announce. Raises `AddressInUseError` or
        `SettingsError`.
        """

    async def stop(self) -> None:
        """End every transfer and stop listening; nothing is left behind. May be called twice, or
        without a start.
        """

    def keep(self, remotes: Sequence[PeerAddress]) -> None:
        """Keep links to these peers from now on, the most important first."""

    async def offer(self, to: PeerAddress, offers: Offers) -> None:
        """Hand over offers; returns when the peer accepted them.

        Raises `UnavailableError` when it cannot be reached, `RemoteProtocolError` when it refused
        them.
        """

    def fetch(
        self, source: PeerAddress, blob: BlobRange, purpose: Purpose
    ) -> AsyncGenerator[Part, None]:
        """The parts of a blob as the peer sends them, unchecked.

        Raises `NotHeldError`, `WithdrawnError`, `LinkBrokenError`, `UnavailableError` (unreachable,
        busy or silent for too long) or `RemoteProtocolError`. Closing the generator ends the
        transfer.
        """

    def withdraw(self, source: PeerId, digest: Digest, unless_soon: bool = False) -> None:
        """Ask a source for no more of a blob than it has begun to send, or can begin soon."""

    @property
    def idle(self) -> bool:
        """Whether no peer wants any blob of this node."""

    @property
    def traffic(self) -> Traffic:
        """Bytes carried so far; a copy."""

"""What a session tells its link."""

from dataclasses import dataclass

from node.links.frames import Part
from node.links.network import NotHeldError, WithdrawnError
from protocol.errors import LockstepError, RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, short
from protocol.wire_pb2 import Offers, Refusal


@dataclass(frozen=True, slots=True)
class Proven:
    """The other end proved its key."""

    peer: PeerId
    public_key: bytes
    instance: int


@dataclass(frozen=True, slots=True)
class Offered:
    """The peer holds these; answer with `accept` or `refuse`."""

    request: int
    offers: Offers


@dataclass(frozen=True, slots=True)
class Accepted:
    """The peer took an offer."""

    request: int


@dataclass(frozen=True, slots=True)
class FetchRequested:
    """The peer wants a blob from an offset on; answer with `part` or `refuse`."""

    request: int
    digest: Digest
    offset: int
    bytes: int
    """At most so many; 0: to the end."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The peer wants no more parts of a fetch. `gently`: refuse it when what was begun has left;
    `unless_soon`: or serve it if its turn comes soon."""

    request: int
    gently: bool
    unless_soon: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The peer does not do what was asked."""

    request: int
    code: int
    reason: str

    def error(self, peer: PeerId) -> LockstepError:
        """What who asked raises."""
        text = f"{short(peer)}: {self.reason}"
        if self.code == Refusal.NOT_HELD:
            return NotHeldError(text)
        if self.code == Refusal.WITHDRAWN:
            return WithdrawnError(text)
        return (
            RemoteProtocolError(text)
            if self.code == Refusal.BAD_REQUEST
            else UnavailableError(text)
        )


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """The peer says goodbye; nothing follows."""

    reason: str


Event = Proven | Offered | Accepted | FetchRequested | Cancelled | Refused | Part | PeerLeft

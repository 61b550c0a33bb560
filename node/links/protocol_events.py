"""Events of the link protocol, which `node.links.link` handles."""

from dataclasses import dataclass

from node.links.frames import Part
from node.links.network import NotHeldError, WithdrawnError
from protocol.errors import LockstepError, RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, short
from protocol.wire_pb2 import Head, Offers, Refusal


@dataclass(frozen=True, slots=True)
class Proven:
    """The other end proved its key."""

    peer: PeerId
    public_key: bytes
    instance: int


@dataclass(frozen=True, slots=True)
class HeadShown:
    """The peer shows a head of the run, which nobody has looked at."""

    head: Head


@dataclass(frozen=True, slots=True)
class Offered:
    """The peer offers blobs; answer with `accept` or `refuse`."""

    request: int
    offers: Offers


@dataclass(frozen=True, slots=True)
class Accepted:
    """The peer accepted an offer."""

    request: int


@dataclass(frozen=True, slots=True)
class FetchRequested:
    """The peer wants a blob, from an offset on; answer with `part` or `refuse`."""

    request: int
    digest: Digest
    offset: int
    bytes: int
    """Most bytes wanted; 0: to the end."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The peer wants no more parts of a fetch. `gently`: refuse it once the parts that were begun
    have left; `unless_soon`: or serve it if its turn comes soon.
    """

    request: int
    gently: bool
    unless_soon: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The peer refused a request."""

    request: int
    code: int
    reason: str

    def error(self, peer: PeerId) -> LockstepError:
        """The error that the request ends with."""
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
    """The peer said goodbye; nothing follows."""

    reason: str


Event = (
    Proven | HeadShown | Offered | Accepted | FetchRequested | Cancelled | Refused | Part | PeerLeft
)

"""What a session tells its link."""

from dataclasses import dataclass

from node.links.frames import Part
from protocol.ids import Digest, PeerId
from protocol.wire_pb2 import Offers


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
class Asked:
    """The peer wants a blob from an offset on; answer with `part` or `refuse`."""

    request: int
    digest: Digest
    offset: int
    bytes: int
    """At most so many; 0: to the end."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The peer wants no more parts of a fetch. `gently`: refuse it when what was begun has left."""

    request: int
    gently: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The peer does not do what was asked."""

    request: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """The peer says goodbye; nothing follows."""

    reason: str


Event = Proven | Offered | Accepted | Asked | Cancelled | Refused | Part | Left

"""A node of a simulated gossip, and its pulls."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field

from node.gossip.machine.exchange import Exchange
from node.links.upload_queue import Upload, Uploads
from protocol.ids import Digest, PeerId
from tests.simulation.fluid import Flow


def peer(number: int) -> PeerId:
    """The node of this number."""
    return PeerId(hashlib.sha256(f"node {number}".encode()).hexdigest()[:32])


@dataclass(slots=True, eq=False)
class Fetch:
    """One pull, from the request to its end."""

    source: int
    target: int
    digest: Digest
    size: int
    """Bytes of the whole payload."""
    wanted: int
    """Bytes that were asked for."""
    lacking: int
    """Bytes that were asked for and are not acknowledged."""
    started_ms: float
    first: tuple[float, int]
    """(time, number) of its first bytes: the rate is measured from there, without the time in the
    queue."""
    breaks: bool = False
    """It breaks off after its first part; bytes that are on their way then are lost."""
    cut: int = 0
    """Bytes that its taker asked not to be sent any more."""
    flow: Flow | None = None
    over: bool = False
    """Its taker dropped it, or it broke."""

    @property
    def upload(self) -> Upload:
        """Its entry in the queue of its source."""
        return Upload(peer(self.target), self.digest)


@dataclass(slots=True)
class Node:
    """One node: its machines, its payloads, and its counters in bytes."""

    exchange: Exchange
    uploads: Uploads
    held: set[Digest] = field(default_factory=set)
    arrived: dict[Digest, int] = field(default_factory=lambda: defaultdict(int))
    fetches: dict[Digest, Fetch] = field(default_factory=dict)
    asked: dict[Upload, Fetch] = field(default_factory=dict)
    payload_up: int = 0
    other_up: int = 0
    duplicates: int = 0
    done_ms: float = 0.0

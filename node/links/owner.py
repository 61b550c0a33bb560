"""The node, as the parts of one of its links see it."""

from collections.abc import Callable
from typing import Protocol

from node.links.network import LinkServer
from node.links.uplink import Uplink
from node.system.downlink import Downlink


class LinkOwner(Protocol):
    """What all links of a node share."""

    server: LinkServer
    uplink: Uplink
    downlink: Downlink
    clock_ms: Callable[[], int]
    """A monotonic clock."""
    peer_limit: int | None
    """Bytes per second that one peer may take; None: no limit."""

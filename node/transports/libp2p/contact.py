"""An open connection of libp2p's daemon. Pure."""

from dataclasses import dataclass

from node.transports.libp2p.multiaddr import is_circuit


@dataclass(frozen=True, slots=True)
class Contact:
    """A libp2p peer and one connection to it."""

    peer: str
    """The peer's libp2p id, which the connection has proven."""

    address: str
    """Address of the connection's other end, as this node's daemon sees it."""

    @property
    def relayed(self) -> bool:
        """Whether a relay carries the connection."""
        return is_circuit(self.address)

"""The gate as a service behind gRPC sees it: it tells addresses, and hears who has shown a key."""

from collections.abc import Mapping
from typing import Protocol


class Visitors(Protocol):
    """The connections of a port, by the peer that gRPC names."""

    @property
    def cuts(self) -> Mapping[str, int]:
        """Connections that were cut or not let in, by reason: see `border.crowd`."""

    def remote(self, peer: str) -> str:
        """The other end, as gRPC names those that reach it directly: `ipv4:192.0.2.7:50701`."""

    def hear(self, peer: str) -> None:
        """A whole call of this peer has come."""

    def prove(self, peer: str) -> None:
        """This peer has shown a key that may come in: it is counted no more."""


class Direct:
    """The `Visitors` of a server without a gate: a simulation's, for one."""

    cuts: Mapping[str, int] = {}

    def remote(self, peer: str) -> str:
        return peer

    def hear(self, peer: str) -> None:
        pass

    def prove(self, peer: str) -> None:
        pass

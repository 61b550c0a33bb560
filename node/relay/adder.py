"""The role of a summer as a relay uses it: no numpy. `node.relay.adding` makes it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from node.gossip.parts import Parts, ReportParts
from protocol import wire_pb2 as wire
from protocol.codec.payload_header import Blob, Header


class Adder(Protocol):
    """The summer of a relay; see `node.sums.summer.Summer`."""

    def asked(self, message: wire.SumsAsked) -> None:
        """Add these ranges."""

    def repeat(self) -> None:
        """Say the results of undecided rounds again."""

    def decided(self, round: int) -> None:
        """A round is decided."""


@dataclass(frozen=True, slots=True)
class AddingRole:
    """The role of a summer in a process without a replica."""

    part_header_of: Callable[[Blob, int, int], Header]
    """The check of parts; see `node.sums.part_check`."""
    report_parts: ReportParts
    """Tells the coordinator which parts are held."""
    adder_of: Callable[[Parts], Adder]
    """The summer of a swarm, by its parts."""

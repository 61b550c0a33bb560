"""A node's report on one of its links, and its bounds."""

from dataclasses import dataclass
from typing import Final

from protocol.ids import PeerId

LINKS_MAX: Final = 64
"""Links that one member reports at most: a node keeps no more."""

ROUND_TRIP_MS_MAX: Final = 60_000
"""Longest round trip that is believed; a link is silent and ends long before."""

BIT_S_MAX: Final = 10**12
"""Largest rate that is believed, in bits a second."""


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """A link as the node at one end measures it."""

    peer: PeerId
    """The other end."""

    round_trip_ms: int
    """Median of the newest heartbeats; 0: below a millisecond."""

    bit_s: int = 0
    """Bits a second at which content came from the other end; 0 while unknown."""

    greedy: bool = False
    """Whether the other end took the same payloads from this one again and again."""

    breaks: bool = False
    """Whether links to the other end broke again and again while payloads came from it."""

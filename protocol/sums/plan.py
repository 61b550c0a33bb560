"""The summers of a round, as its opening tells them to everybody.

author  --part of range i--> the summers of range i --result--> everybody
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, parse_peer_id
from protocol.limits import MEMBERS_MAX
from protocol.sums.ranges import RANGES_MAX


@dataclass(frozen=True, slots=True)
class SumPlan:
    """The summers of one round."""

    summers: tuple[frozenset[PeerId], ...]
    """Those of each range, ascending."""

    @classmethod
    def of(cls, opened: wire.RoundOpened) -> Self | None:
        """The plan that an opening tells; None where every payload goes to everybody.
        `RemoteProtocolError` for one with a summer that it does not list.
        """
        if not opened.summers:
            return None
        if len(opened.summers) > MEMBERS_MAX or not 1 <= len(opened.ranges) <= RANGES_MAX:
            raise RemoteProtocolError(
                f"expected at most {MEMBERS_MAX} summers of 1..{RANGES_MAX} ranges, got "
                f"{len(opened.summers)} of {len(opened.ranges)}"
            )
        peers = [parse_peer_id(peer) for peer in opened.summers]
        found = list[frozenset[PeerId]]()
        for row in opened.ranges:
            if any(place >= len(peers) for place in row.places):
                raise RemoteProtocolError(
                    f"expected summers below {len(peers)}, got {max(row.places)}"
                )
            found.append(frozenset(peers[place] for place in row.places))
        return cls(tuple(found))

    @classmethod
    def told(cls, pairs: Iterable[Iterable[PeerId]]) -> tuple[list[PeerId], list[list[int]]]:
        """The same as an opening tells it: summers, sorted, and their places for each range."""
        rows = [sorted(set(pair)) for pair in pairs]
        peers = sorted({peer for row in rows for peer in row})
        at = {peer: place for place, peer in enumerate(peers)}
        return peers, [[at[peer] for peer in row] for row in rows]

    @property
    def ranges(self) -> int:
        """The number of ranges."""
        return len(self.summers)

    def ranges_of(self, peer: PeerId) -> tuple[int, ...]:
        """The ranges that a node adds, ascending."""
        return tuple(number for number, peers in enumerate(self.summers) if peer in peers)

    def added(self, number: int, peer: PeerId) -> "SumPlan":
        """The plan with one more summer of a range; the same for a range that there is not."""
        if not 0 <= number < len(self.summers):
            return self
        peers = list(self.summers)
        peers[number] = peers[number] | {peer}
        return replace(self, summers=tuple(peers))

    def with_all(self, other: "SumPlan | None") -> "SumPlan":
        """The plan with all summers of another of as many ranges too: as it is told again."""
        if other is None or other.ranges != self.ranges:
            return self
        pairs = zip(self.summers, other.summers, strict=True)
        return replace(self, summers=tuple(one | two for one, two in pairs))

"""Links as the nodes at their ends measure them, and the fast groups of nodes that follow.

Each member says of its links the median round trip of the newest heartbeats, and the rate at which
content came over them. What follows is a pure function of what all have said, so the coordinator, a
replay of its journal and `lockstep plan --measure` come to the same.

    round trip      the longer one of what both ends say: no member makes a link look nearer than
                    the other end finds it; of one end's word alone that
    rate            from one node to another: what the receiver says
    not measured    round trip: the shortest way through others, or else the longest of any;
                    rate: the largest out of the one or into the other, whichever is less
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.ids import PeerId
from protocol.mixing.link_report import BIT_S_MAX, MeasuredLink
from protocol.planner.groups import fast_groups
from protocol.planner.links import MEASURED, HomeLine, Network, pair_s

Matrix = npt.NDArray[np.float64]

Groups = tuple[tuple[PeerId, ...], ...]
"""Members with fast links among them, each in one group; empty where no links stand out."""

COST_DIGITS: Final = 6
"""Decimal places of the seconds that groups are found by, so that rounding decides nothing."""


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """Links between nodes; NaN where nothing was measured, and on the diagonals."""

    round_trip_s: Matrix
    """[n, n], symmetric."""

    bit_s: Matrix
    """[n, n]: from the node of the row to that of the column."""

    @property
    def measured_pairs(self) -> int:
        """Pairs of nodes with a measured round trip."""
        return int(np.isfinite(self.round_trip_s).sum()) // 2

    @property
    def covers_all(self) -> bool:
        """Whether something was measured of every node, and there are two at least."""
        found = np.isfinite(self.round_trip_s)
        return len(found) > 1 and bool(found.any(axis=1).all())

    def completed(self) -> "LinkMatrix":
        """The same without gaps; rates are infinite where none is known of either node."""
        return LinkMatrix(_shortest(self.round_trip_s), _filled(self.bit_s))


def matrix_of(said: Mapping[PeerId, Sequence[MeasuredLink]], peers: Sequence[PeerId]) -> LinkMatrix:
    """The links between these peers, in their order, by the word of any of them."""
    place = {peer: index for index, peer in enumerate(peers)}
    found = [
        (own, other, link.round_trip_ms / 1000, link.bit_s or np.nan)
        for peer, own in place.items()
        for link in said.get(peer, ())
        if (other := place.get(link.peer, own)) != own  # else a relay, or a member that is gone
    ]
    trip_s = np.full((len(peers), len(peers)), np.nan)
    bit_s = trip_s.copy()
    if found:
        rows, columns, trips_s, rates = zip(*found, strict=True)
        trip_s[rows, columns] = trips_s
        bit_s[columns, rows] = rates
    return LinkMatrix(np.fmax(trip_s, trip_s.T), bit_s)


def network_of(names: Sequence[str], up_bit_s: Sequence[float], matrix: LinkMatrix) -> Network:
    """The network that the planner counts with. `up_bit_s`: measured rate of each node's line,
    which is at least that of its fastest link; 0 while unknown.
    """
    links = matrix.completed()
    fastest = np.where(np.isfinite(matrix.bit_s), matrix.bit_s, 0.0).max(axis=1, initial=0.0)
    up = np.maximum(np.asarray(up_bit_s, float), fastest)
    up[up == 0] = up.max(initial=0.0) or float(BIT_S_MAX)
    down = float(up.max())
    return Network(
        [HomeLine(name, float(rate), down) for name, rate in zip(names, up, strict=True)],
        between_bit_s=links.bit_s,
        between_s=links.round_trip_s / 2,
    )


def groups_of(
    said: Mapping[PeerId, Sequence[MeasuredLink]],
    up_bit_s: Mapping[PeerId, float],
    content_bytes: float,
) -> Groups | None:
    """The fast groups of the members in `up_bit_s`, for exchanges of contents of this size; None
    while some member has no measured link.
    """
    peers = sorted(up_bit_s)
    links = matrix_of(said, peers)
    if not links.covers_all:
        return None
    network = network_of(peers, [up_bit_s[peer] for peer in peers], links)
    cost_s = pair_s(network, content_bytes, MEASURED).round(COST_DIGITS)
    groups = tuple(tuple(peers[node] for node in group) for group in fast_groups(cost_s))
    return groups if len(groups) > 1 else ()


def _shortest(round_trip_s: Matrix) -> Matrix:
    """Gaps filled by the shortest ways; the diagonal 0."""
    measured = np.isfinite(round_trip_s)
    ways = np.where(measured, round_trip_s, np.inf)
    np.fill_diagonal(ways, 0.0)
    for through in range(len(ways)):
        ways = np.minimum(ways, ways[:, through, None] + ways[None, through, :])
    longest = round_trip_s[measured].max(initial=0.0)
    filled: Matrix = np.where(measured, round_trip_s, np.where(np.isfinite(ways), ways, longest))
    np.fill_diagonal(filled, 0.0)
    return filled


def _filled(bit_s: Matrix) -> Matrix:
    """Gaps filled by the largest rates of the two nodes; the diagonal infinite."""
    known = np.where(np.isfinite(bit_s), bit_s, 0.0)
    out, into = known.max(axis=1, initial=0.0), known.max(axis=0, initial=0.0)
    out[out == 0], into[into == 0] = np.inf, np.inf
    filled: Matrix = np.where(np.isfinite(bit_s), bit_s, np.minimum(out[:, None], into[None, :]))
    np.fill_diagonal(filled, np.inf)
    return filled

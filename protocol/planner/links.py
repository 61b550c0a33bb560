"""The cost of lines: seconds of an all-reduce, of DeMo's exchange, and of an exchange of two nodes.

Every node has a line with a rate up and down. Between two nodes there is a delay, and a rate if it
was measured. A transfer from i to j goes at the least of i's rate up, j's rate down and the rate
between them. The formulas, in which the slowest counts:

    all-reduce   2(n-1) a + 2(n-1)/n * S / w        a ring in the order of the nodes
    exchange     of n payloads P among all by gossip, at least the longest of
                   (n-1) P through a downlink, P through an uplink to one other,
                   n(n-1) P through all uplinks together
                 and round trips of announcing, offering, asking and committing
    sums         parts of 2 P from each node, to those that add; then results Q to everybody:
                   2 P through an uplink, 2n P through all downlinks together; then
                   Q through a downlink, n Q through all uplinks together
                 and the round trips of two exchanges
    pair         a + S / w, each direction on its own line; a node with d partners shares it d ways

Gossip carries the last three; sums were not measured. `Calibration` says how much of a rate arrives
as content, and how far gossip stays behind its bound: `MEASURED` was fitted on two cells of
`lockstep wan`, `IDEAL` are the formulas as they stand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.errors import SettingsError

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The performance of lines, beside their nominal rates and delays."""

    line_share: float
    """Share of a line's rate that carries content: the rest is headers, acknowledgements, and what
    the transport leaves idle."""

    exchange_stretch: float
    """Seconds of an exchange by gossip over its bound, delays left out: uplinks are not busy all
    the time, and acknowledgements wait behind the bytes of the other direction."""

    round_trips: float
    """Round trips between two homes in any exchange: announcing, offering, asking, committing."""


IDEAL: Final = Calibration(1.0, 1.0, 0.5)
"""Lines without losses, exchanges at their bound, one delay for each."""

MEASURED: Final = Calibration(0.863, 1.48, 4.0)
"""The round trips are those of the protocol. The others were fitted by tests/benchmarks/planner.py,
on the cells `cable-ddp` and `cable-lockstep-0-grpc-slowed4` (docs/results/planner.md)."""


@dataclass(frozen=True, slots=True)
class HomeLine:
    """One node's line to the internet."""

    name: str
    up_bit_s: float
    down_bit_s: float
    round_trip_s: float = 0.0
    """To the near end of the internet and back; half of it is one way."""


class Network:
    """Nodes and what is between them. `SettingsError` for rates and delays out of bounds."""

    def __init__(
        self,
        lines: Sequence[HomeLine],
        *,
        between_bit_s: Matrix | None = None,
        between_s: Matrix | None = None,
    ) -> None:
        """`between_bit_s` [n, n]: measured rates from row to column; `between_s` [n, n]: one-way
        delays besides those of the lines. The diagonals count for nothing.
        """
        if not lines:
            raise SettingsError("network: expected at least one node, got none")
        self.lines = tuple(lines)
        count = len(self.lines)
        self.up_bit_s = np.array([line.up_bit_s for line in lines], float)
        self.down_bit_s = np.array([line.down_bit_s for line in lines], float)
        half_s = np.array([line.round_trip_s / 2 for line in lines], float)
        self.delay_s = half_s[:, None] + half_s[None, :]
        if between_s is not None:
            self.delay_s = self.delay_s + _square(between_s, count, "delays")
        self.rate_bit_s = np.minimum(self.up_bit_s[:, None], self.down_bit_s[None, :])
        if between_bit_s is not None:
            self.rate_bit_s = np.minimum(self.rate_bit_s, _square(between_bit_s, count, "rates"))
        others = ~np.eye(count, dtype=bool)
        if not (self.rate_bit_s[others] > 0).all() or not (self.delay_s[others] >= 0).all():
            raise SettingsError("network: expected rates above 0 and delays of at least 0")
        np.fill_diagonal(self.delay_s, 0.0)

    def __len__(self) -> int:
        return len(self.lines)


def all_reduce_s(network: Network, content_bytes: float, calibration: Calibration) -> float:
    """Seconds of a ring all-reduce of a vector of this size."""
    count = len(network)
    if count < 2:
        return 0.0
    sender = np.arange(count)
    receiver = (sender + 1) % count
    rate = network.rate_bit_s[sender, receiver].min() * calibration.line_share
    delay_s = network.delay_s[sender, receiver].max()
    return float(2 * (count - 1) * (delay_s + 8 * content_bytes / count / rate))


def exchange_s(network: Network, payload_bytes: float, calibration: Calibration) -> float:
    """Seconds until every node has every payload and the commit, from the moment that all have
    announced theirs.
    """
    count = len(network)
    if count < 2:
        return 0.0
    rates = network.rate_bit_s.copy()
    np.fill_diagonal(rates, 0.0)
    up = np.minimum(network.up_bit_s, rates.sum(axis=1))
    down = np.minimum(network.down_bit_s, rates.sum(axis=0))
    bits = 8 * payload_bytes / calibration.line_share
    bound_s = (
        calibration.exchange_stretch
        * bits
        * max(
            ((count - 1) / down).max(),
            (1 / rates.max(axis=1)).max(),
            count * (count - 1) / up.sum(),
        )
    )
    far_s = (network.delay_s.sum(axis=1) / (count - 1)).max()
    return float(bound_s + 2 * calibration.round_trips * far_s)


def summed_s(
    network: Network, parts_bytes: float, results_bytes: float, calibration: Calibration
) -> float:
    """The seconds until every node has the results of a round that all nodes add together, from the
    moment that all have announced their payloads. Each sends `parts_bytes` of parts.
    """
    count = len(network)
    if count < 2:
        return 0.0
    up, down = network.up_bit_s, network.down_bit_s
    parts_s = parts_bytes * max((1 / up).max(), count / down.sum())
    results_s = results_bytes * max((1 / down).max(), count / up.sum())
    bound_s = calibration.exchange_stretch * 8 * (parts_s + results_s) / calibration.line_share
    far_s = (network.delay_s.sum(axis=1) / (count - 1)).max()
    return float(bound_s + 4 * calibration.round_trips * far_s)


def pair_s(network: Network, content_bytes: float, calibration: Calibration) -> Matrix:
    """[n, n]: seconds in which two nodes exchange content both ways, each with no other partner;
    symmetric, the diagonal 0.
    """
    return shared_pair_s(network, content_bytes, calibration, np.ones(len(network)))


def shared_pair_s(
    network: Network, content_bytes: float, calibration: Calibration, partners: Matrix
) -> Matrix:
    """The same where node i exchanges with `partners[i]` others at once."""
    shared = np.maximum(partners, 1)
    rate = np.minimum(
        network.rate_bit_s,
        np.minimum((network.up_bit_s / shared)[:, None], (network.down_bit_s / shared)[None, :]),
    )
    bits = calibration.exchange_stretch * 8 * content_bytes / calibration.line_share
    one_way_s = bits / rate
    delay_s = 2 * calibration.round_trips * network.delay_s
    cost_s: Matrix = np.maximum(one_way_s, one_way_s.T) + np.maximum(delay_s, delay_s.T)
    np.fill_diagonal(cost_s, 0.0)
    return cost_s


def _square(matrix: Matrix, count: int, what: str) -> Matrix:
    if matrix.shape != (count, count):
        raise SettingsError(
            f"network: expected {what} of {count} by {count} nodes, got {matrix.shape}"
        )
    return matrix

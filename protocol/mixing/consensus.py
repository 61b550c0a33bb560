"""How far nodes are apart, from short reports, and when a round should only mix.

Each node reports a fixed random projection of its parameters, `PROJECTION_SIZE` numbers. The
projection is linear and keeps squared lengths on average, so what the reports are apart estimates
what the nodes are apart, without anybody seeing all parameters. With 64 numbers the standard error
of one node's squared distance is sqrt(2 / 64), 18 %; the mean over several nodes errs less.

Training tolerates a distance up to a *critical* multiple of one update (Kong et al., "Consensus
control for decentralized deep learning", 2102.04828). Past it a round without updates is inserted.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from protocol.errors import LocalProtocolError

PROJECTION_SIZE: Final = 64
"""Numbers in a report."""


def distance(reports: Sequence[Sequence[float]]) -> float:
    """Estimated root mean square, over the nodes, of the Euclidean distance to their mean."""
    for report in reports:
        if len(report) != PROJECTION_SIZE:
            raise LocalProtocolError(
                f"expected {PROJECTION_SIZE} numbers in a report, got {len(report)}"
            )
    values = np.asarray(reports, dtype=np.float64).reshape(-1, PROJECTION_SIZE)
    if len(values) < 2:
        return 0.0
    return float(np.sqrt(np.square(values - values.mean(axis=0)).sum(axis=1).mean()))


def should_only_mix(distance: float, update: float, critical: float) -> bool:
    """Whether the next round should mix and change nothing else: the nodes are further apart than
    `critical` updates. update: Euclidean size of a node's last change, root mean square over the
    nodes. Never for a critical multiple of 0, which turns the rule off.
    """
    return critical > 0 and distance > critical * update

"""How machines whose compute times vary wait for each other: max-plus recurrences, drawn or exact.

Round r of node i takes c_i(r) of compute. The recurrences:

    barrier      all wait for the slowest
                   start(r+1) = max_i (start(r) + c_i(r)) + C
    delayed      one exchange at a time, used one round later
                   all_in(r) = max(max_i end_i(r), all_in(r-1)) + C
                   start_i(r+1) = max(end_i(r), all_in(r-1))
    neighbours   each waits for its partners j of the round
                   start_i(r+1) = max(end_i(r), max(start_i(r), start_j(r)) + C_ij)
    seldom       a barrier after every H rounds, C once

What is returned is the mean length of a round in the long run. Draws are lognormal with mean 1,
scaled so that each node's own mean is exact: what is left is what waiting does, without the noise
of the draws. Equal seeds give equal draws, so that two networks are compared under the same luck.
Without jitter one chain of rounds is followed and the result is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.mixing.topologies import Edge

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

CHAINS: Final = 16
"""Independent runs that are drawn together."""

ROUNDS: Final = 320
"""Rounds of each run."""

SETTLING: Final = 120
"""Rounds before counting begins: by then the distances between nodes are what they stay."""


@dataclass(frozen=True, slots=True)
class ComputeDraws:
    """Compute times of a run, in seconds."""

    seconds: Array
    """[rounds, chains, nodes]"""

    @property
    def nodes(self) -> int:
        return int(self.seconds.shape[2])


@dataclass(frozen=True, slots=True)
class Partners:
    """The exchanges of one round, as arrays that are padded with the node itself at no cost."""

    partner: Indices
    """[nodes, most partners]"""

    cost_s: Array
    """[nodes, most partners]"""

    @property
    def exchanges(self) -> int:
        """How often a node sends in this round, over all nodes."""
        return int((self.partner != np.arange(len(self.partner))[:, None]).sum())


def drawn(mean_s: float, factors: Sequence[float], jitter: float, seed: int) -> ComputeDraws:
    """Compute times of nodes that take `mean_s` times their factor on average, with this
    coefficient of variation.
    """
    mean = mean_s * np.asarray(factors, float)
    if not jitter:
        return ComputeDraws(np.broadcast_to(mean, (ROUNDS, 1, len(mean))))
    sigma = sqrt(log(1 + jitter**2))
    random = np.random.default_rng(seed)
    draws = np.exp(sigma * random.standard_normal((ROUNDS, CHAINS, len(mean))))
    return ComputeDraws(mean * draws / draws.mean(axis=(0, 1)))


def barrier_s(draws: ComputeDraws, exchange_s: float) -> float:
    """Mean round in which all wait for all, then exchange."""
    return float(draws.seconds.max(axis=2).mean()) + exchange_s


def delayed_s(draws: ComputeDraws, exchange_s: float) -> float:
    """Mean round in which the exchange of one round is hidden behind the compute of the next."""
    if draws.nodes == 1:
        return float(draws.seconds.mean())
    start = np.zeros(draws.seconds.shape[1:])
    here = np.zeros(draws.seconds.shape[1])
    settled = start
    for round, seconds in enumerate(draws.seconds):
        if round == SETTLING:
            settled = start
        end = start + seconds
        start = np.maximum(end, here[:, None])  # what was sent a round ago is in
        here = np.maximum(end.max(axis=1), here) + exchange_s
    return _mean_round(settled, start)


def neighbours_s(draws: ComputeDraws, exchanges: Sequence[Partners]) -> float:
    """Mean round in which each node waits for its partners of the round; `exchanges` by turns."""
    start = np.zeros(draws.seconds.shape[1:])
    settled = start
    for round, seconds in enumerate(draws.seconds):
        if round == SETTLING:
            settled = start
        now = exchanges[round % len(exchanges)]
        ready = np.maximum(start[:, :, None], start[:, now.partner]) + now.cost_s
        start = np.maximum(start + seconds, ready.max(axis=2))
    return _mean_round(settled, start)


def seldom_s(draws: ComputeDraws, exchange_s: float, local_steps: int) -> float:
    """Mean local step where all wait for all and exchange after every `local_steps` of them."""
    times = np.moveaxis(draws.seconds, 0, 1).reshape(-1, draws.nodes)  # chain after chain
    repeats = -(-local_steps // len(times))
    whole = np.tile(times, (repeats, 1))
    spans = len(whole) // local_steps
    sums = whole[: spans * local_steps].reshape(spans, local_steps, draws.nodes).sum(axis=1)
    sums *= (times.mean(axis=0) * local_steps) / sums.mean(axis=0)  # again the exact means
    return float(sums.max(axis=1).mean() + exchange_s) / local_steps


def partners(edges: Sequence[Edge], names: Sequence[str], cost_s: Array) -> Partners:
    """The exchanges of one round's edges among nodes of these names; `cost_s` [nodes, nodes]."""
    place = {name: index for index, name in enumerate(names)}
    found: list[list[int]] = [[] for _ in names]
    for first, second in edges:
        found[place[first]].append(place[second])
        found[place[second]].append(place[first])
    most = max(1, *map(len, found))
    partner = np.array([own + [node] * (most - len(own)) for node, own in enumerate(found)])
    return Partners(partner, np.take_along_axis(cost_s, partner, axis=1))


def _mean_round(settled: Array, end: Array) -> float:
    return float((end - settled).mean()) / (ROUNDS - SETTLING)

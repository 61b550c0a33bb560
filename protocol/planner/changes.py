"""What would change a round: other coefficients, longer passes, fewer nodes."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from protocol.codec.payload import PayloadShape
from protocol.errors import SettingsError
from protocol.limits import CHUNK_ENTRIES
from protocol.mixing.topologies import Topology
from protocol.planner.links import exchange_s
from protocol.planner.methods import Prediction, Setting, predicted
from protocol.planner.payload_bytes import votes_bytes

EQUAL: Final = 1.1
"""Two rounds whose lengths differ by less than this factor are called equal."""

LEVELS: Final = 4
"""Levels of slowness that are tried for dropping nodes, by each measure."""


@dataclass(frozen=True, slots=True)
class Without:
    """The run without some of its nodes."""

    nodes: tuple[int, ...]
    seconds: float
    """A round without them."""
    work: float
    """Rounds a second times nodes, without them over with them: above 1, the rest does more."""


def largest_hidden_k(setting: Setting, shape: PayloadShape) -> int | None:
    """The largest k whose exchange is hidden behind a round of compute; None if not even k = 1."""
    room_s = setting.compute.demo_s

    def hidden(top_k: int) -> bool:
        size = votes_bytes(PayloadShape(shape.chunks, top_k, shape.value_bits, shape.scaled))
        return exchange_s(setting.network, size, setting.calibration) <= room_s

    if not hidden(1):
        return None
    low, high = 1, _k_max(shape)
    if hidden(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if hidden(middle) else (low, middle)
    return low


def pass_to_hide(setting: Setting) -> float:
    """Factor by which a pass must be longer for DeMo's exchange to hide behind it: 1 or less if it
    does already, infinite for a pass of no length.
    """
    exchange = exchange_s(setting.network, setting.traffic.payload, setting.calibration)
    rest_s = exchange - setting.compute.extract_s - setting.compute.apply_s
    if setting.compute.pass_s == 0:
        return float("inf") if rest_s > 0 else 1.0
    return rest_s / setting.compute.pass_s


def without_the_slowest(
    setting: Setting, before: Prediction, topology: Topology | None = None
) -> Without | None:
    """The best run without its slowest nodes: those of the slowest lines up, or down, the slowest
    machines, or the farthest. `before` is the round with all; at least half of the nodes stay. None
    where all are alike.
    """
    nodes, network = setting.nodes, setting.network
    found = []
    for dropped in sorted(_slow_sets(setting)):
        kept = [node for node in range(nodes) if node not in dropped]
        factors = setting.compute.factors(nodes)
        other = replace(
            setting,
            network=network.picked(kept),
            compute=replace(setting.compute, slower=tuple(factors[node] for node in kept)),
        )
        seconds = predicted(other, before.method, topology).seconds
        work = before.seconds / seconds * len(kept) / nodes if seconds else 1.0
        found.append(Without(dropped, seconds, work))
    return max(found, key=lambda one: one.work, default=None)


def _slow_sets(setting: Setting) -> set[tuple[int, ...]]:
    """The nodes at or beyond each of the first `LEVELS` levels of slowness, by each measure."""
    network, nodes = setting.network, setting.nodes
    measures = (
        -network.up_bit_s,
        -network.down_bit_s,
        np.asarray(setting.compute.factors(nodes)),
        np.median(network.delay_s, axis=1),
    )
    sets = set()
    for slowness in measures:
        for level in np.unique(slowness)[::-1][:LEVELS]:
            dropped = tuple(int(node) for node in np.flatnonzero(slowness >= level))
            if 2 * len(dropped) <= nodes and nodes - len(dropped) >= 2:
                sets.add(dropped)
    return sets


def _k_max(shape: PayloadShape) -> int:
    """The largest k that any payload may have."""
    low, high = 1, CHUNK_ENTRIES + 1
    while high - low > 1:
        middle = (low + high) // 2
        try:
            PayloadShape(shape.chunks, middle, shape.value_bits, shape.scaled)
        except SettingsError:
            high = middle
        else:
            low = middle
    return low

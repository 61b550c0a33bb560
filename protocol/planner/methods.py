"""The cost of each method per round on given machines and lines, in its parts.

compute   the mean compute of a node in a round
exposed   what the exchange adds when all nodes are alike and never vary
waiting   what is left: waiting for slower nodes, and for nodes that are slow in a round
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from protocol.ids import PeerId
from protocol.mixing.topologies import Topology, TopologyName
from protocol.planner.compute import Compute
from protocol.planner.links import (
    Calibration,
    Network,
    all_reduce_s,
    exchange_s,
    shared_pair_s,
    summed_s,
)
from protocol.planner.sums import SUMMERS
from protocol.planner.timing import (
    Array,
    ComputeDraws,
    Partners,
    barrier_s,
    delayed_s,
    drawn,
    neighbours_s,
    partners,
    seldom_s,
)
from protocol.runfile import RunSpec

MethodName = Literal["all-reduce", "demo", "demo-overlap", "gossip-adam", "diloco"]

METHOD_NAMES: Final = ("all-reduce", "demo", "demo-overlap", "gossip-adam", "diloco")

BUCKET_BYTES: Final = 25 * 1024**2
"""Bytes of gradients that are sent together while backward goes on: PyTorch's default."""

GRAPHS_MAX: Final = 64
"""Rounds whose graphs are followed before they begin again."""


@dataclass(frozen=True, slots=True)
class MethodTraffic:
    """Sizes of what the methods send, in bytes."""

    gradient: float
    """The whole gradient or the whole change, dense: all-reduce and DiLoCo."""

    payload: float
    """One payload of DeMo."""

    parameters: float
    """One node's parameters as gossip Adam sends them."""

    results: float = 0.0
    """The results of all ranges, in a round of DeMo or local steps that summers add; 0: every
    payload goes to everybody."""

    local_steps: int = 50
    """H: steps of DiLoCo between two exchanges."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that a prediction depends on."""

    compute: Compute
    network: Network
    traffic: MethodTraffic
    calibration: Calibration
    seed: int = 0

    @property
    def nodes(self) -> int:
        return len(self.network)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One method; seconds and bytes are those of one round (of DiLoCo: of one local step)."""

    method: MethodName
    topology: TopologyName | None
    seconds: float
    compute_s: float
    exposed_s: float
    waiting_s: float
    up_bytes: float
    """Bytes from a node, the mean over nodes; as many reach it."""


def own_method(spec: RunSpec) -> MethodName:
    """The method of a run file."""
    if spec.algorithm.facts.sends_parameters:
        return "gossip-adam"
    return "demo-overlap" if spec.rounds.overlap else "demo"


def predicted(setting: Setting, method: MethodName, topology: Topology | None = None) -> Prediction:
    """The prediction for a method; gossip Adam takes a topology over `names`."""
    match method:
        case "all-reduce":
            return _all_reduce(setting)
        case "demo":
            return _demo(setting)
        case "demo-overlap":
            return _demo_overlap(setting)
        case "gossip-adam":
            return _gossip_adam(setting, topology or Topology("one-peer-exponential"))
        case "diloco":
            return _diloco(setting)


def names(network: Network) -> list[PeerId]:
    """Ids that stand for the nodes of a network, in its order."""
    return [PeerId(f"{node:032x}") for node in range(len(network))]


def _all_reduce(setting: Setting) -> Prediction:
    compute, gradient = setting.compute, setting.traffic.gradient
    buckets = max(1.0, gradient / BUCKET_BYTES)
    exchange = all_reduce_s(setting.network, gradient, setting.calibration)
    behind_s = compute.backward_s * (1 - 1 / buckets)  # from the first bucket to the last gradient
    exposed_s = max(0.0, exchange - behind_s)
    draws = _draws(setting, compute.adam_s)
    sent = 2 * (setting.nodes - 1) / setting.nodes * gradient
    return _split(
        setting, "all-reduce", barrier_s(draws, exposed_s), draws, exposed_s=exposed_s, sent=sent
    )


def _demo(setting: Setting) -> Prediction:
    exposed_s, sent = _payloads(setting)
    draws = _draws(setting, setting.compute.demo_s)
    return _split(
        setting, "demo", barrier_s(draws, exposed_s), draws, exposed_s=exposed_s, sent=sent
    )


def _demo_overlap(setting: Setting) -> Prediction:
    exchange, sent = _payloads(setting)
    draws = _draws(setting, setting.compute.demo_s)
    mean_s = _mean_s(draws)
    exposed_s = max(0.0, exchange - mean_s) if setting.nodes > 1 else 0.0
    return _split(
        setting, "demo-overlap", delayed_s(draws, exchange), draws, exposed_s=exposed_s, sent=sent
    )


def _payloads(setting: Setting) -> tuple[float, float]:
    """Seconds of an exchange of payloads, and bytes that a node sends in it."""
    network, traffic, calibration = setting.network, setting.traffic, setting.calibration
    if not traffic.results:
        seconds = exchange_s(network, traffic.payload, calibration)
        return seconds, (setting.nodes - 1) * traffic.payload
    parts = SUMMERS * traffic.payload
    return summed_s(network, parts, traffic.results, calibration), parts + traffic.results


def _diloco(setting: Setting) -> Prediction:
    local_steps = setting.traffic.local_steps
    exchange = all_reduce_s(setting.network, setting.traffic.gradient, setting.calibration)
    draws = _draws(setting, setting.compute.adam_s)
    sent = 2 * (setting.nodes - 1) / setting.nodes * setting.traffic.gradient / local_steps
    seconds = seldom_s(draws, exchange, local_steps)
    return _split(setting, "diloco", seconds, draws, exposed_s=exchange / local_steps, sent=sent)


def _gossip_adam(setting: Setting, topology: Topology) -> Prediction:
    exchanges = graphs(setting, topology)
    draws = _draws(setting, setting.compute.adam_s)
    alike = ComputeDraws(np.full((len(draws.seconds), 1, setting.nodes), _mean_s(draws)))
    exposed_s = max(0.0, neighbours_s(alike, exchanges) - _mean_s(draws))
    seconds = neighbours_s(draws, exchanges)
    ends = np.mean([graph.exchanges / setting.nodes for graph in exchanges])
    return _split(
        setting,
        "gossip-adam",
        seconds,
        draws,
        exposed_s=exposed_s,
        sent=float(ends) * setting.traffic.parameters,
        topology=topology.name,
    )


def graphs(setting: Setting, topology: Topology) -> list[Partners]:
    """The exchanges of a topology's rounds, with the seconds that each takes."""
    peers = names(setting.network)
    period = topology.period(peers)
    found = []
    for round in range(max(1, GRAPHS_MAX // period) * period):
        edges = topology.edges(round, peers)
        place = {peer: node for node, peer in enumerate(peers)}
        degree: Array = np.zeros(setting.nodes)
        for edge in edges:
            for end in edge:
                degree[place[end]] += 1
        cost_s = shared_pair_s(
            setting.network, setting.traffic.parameters, setting.calibration, degree
        )
        found.append(partners(edges, peers, cost_s))
    return found


def _draws(setting: Setting, mean_s: float) -> ComputeDraws:
    factors = setting.compute.factors(setting.nodes)
    return drawn(mean_s, factors, setting.compute.jitter, setting.seed)


def _mean_s(draws: ComputeDraws) -> float:
    """Mean compute over rounds and nodes."""
    return float(draws.seconds.mean())


def _split(
    setting: Setting,
    method: MethodName,
    seconds: float,
    draws: ComputeDraws,
    *,
    exposed_s: float,
    sent: float,
    topology: TopologyName | None = None,
) -> Prediction:
    """The prediction with what is neither compute nor exchange as waiting."""
    compute_s = _mean_s(draws)
    waiting_s = max(0.0, seconds - compute_s - exposed_s)
    return Prediction(
        method,
        topology,
        compute_s + exposed_s + waiting_s,
        compute_s,
        exposed_s,
        waiting_s,
        sent,
    )

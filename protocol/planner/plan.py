"""All methods side by side on one setting: what `lockstep plan` shows and writes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from protocol.ids import PeerId
from protocol.mixing.topologies import TOPOLOGY_NAMES, Topology, TopologyName
from protocol.planner.links import Network, pair_s
from protocol.planner.methods import MethodName, Prediction, Setting, names, predicted
from protocol.planner.placement import ORDERED, best_order, fast_groups, order_s
from protocol.planner.steps import rounds_to_loss
from protocol.runfile import AlgorithmSpec

GROWTH_NODES: Final = (2, 4, 8, 16, 32, 64)
"""Numbers of nodes for which growth is shown."""

DENSE: Final[tuple[MethodName, ...]] = ("all-reduce", "demo", "demo-overlap", "diloco")
"""Methods without a topology."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Neighbours for unequal links."""

    topology: TopologyName
    names: tuple[str, ...]
    """Nodes in the order of their ranks."""

    order: tuple[int, ...]
    """The same as places in the network."""

    seconds: float
    """A round of gossip in this order, without jitter."""

    as_listed_s: float
    """The same in the order in which the nodes were listed."""

    exact: bool
    """Whether every order was tried."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A method at another number of nodes."""

    nodes: int
    seconds: float
    up_bytes: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was predicted for a setting."""

    setting: Setting
    predictions: tuple[Prediction, ...]
    growth: dict[str, tuple[Growth, ...]]
    """By method, gossip Adam with its quickest topology; empty where lines were measured."""

    proposals: tuple[Proposal, ...]
    """Where links are unlike, the quickest first."""

    groups: tuple[tuple[str, ...], ...]
    """Nodes with fast links among them; one group where none stand out."""

    def method(self, name: MethodName) -> Prediction:
        """The prediction of a method; of gossip Adam, that of its quickest topology."""
        return min(
            (found for found in self.predictions if found.method == name),
            key=lambda found: found.seconds,
        )

    @property
    def baseline(self) -> Prediction:
        """The method with a global exchange that the others are compared with."""
        return self.method("all-reduce")

    @property
    def best(self) -> Prediction:
        """The decentralised method with the shortest round. DiLoCo is none: it exchanges
        globally, only seldom, and its steps are worth less.
        """
        others = (one for one in self.predictions if one.method not in ("all-reduce", "diloco"))
        return min(others, key=lambda found: found.seconds)

    def document(self, algorithm: AlgorithmSpec) -> dict[str, Any]:
        """For a program: the figures of every method, and what follows."""
        methods = []
        for found in self.predictions:
            rounds = rounds_to_loss(found.method, algorithm)
            methods.append(
                found.document()
                | {
                    "times_less": self.baseline.seconds / found.seconds if found.seconds else 1.0,
                    "rounds_to_loss": rounds,
                    "loss_s": None if rounds is None else rounds * found.seconds,
                }
            )
        return {
            "nodes": self.setting.nodes,
            "compute": asdict(self.setting.compute),
            "traffic": asdict(self.setting.traffic),
            "calibration": asdict(self.setting.calibration),
            "seed": self.setting.seed,
            "lines": [asdict(line) for line in self.setting.network.lines],
            "methods": methods,
            "growth": {
                name: [asdict(point) for point in points] for name, points in self.growth.items()
            },
            "proposals": [asdict(proposal) for proposal in self.proposals],
            "groups": [list(group) for group in self.groups],
            "best": {"method": self.best.method, "topology": self.best.topology},
        }


def plan(setting: Setting, *, grows: bool = True) -> Plan:
    """Predict every method and topology. `grows`: whether the lines of more nodes are known, being
    those of the given ones again and again.
    """
    network = setting.network
    groups = fast_groups(pair_s(network, setting.traffic.parameters, setting.calibration))
    proposals = _proposals(setting) if network.unlike else ()
    orders = {proposal.topology: proposal.order for proposal in proposals}
    predictions = [predicted(setting, method) for method in DENSE]
    predictions[3:3] = [
        predicted(setting, "gossip-adam", topology_of(name, network, orders.get(name), groups))
        for name in TOPOLOGY_NAMES
    ]
    found = Plan(
        setting,
        tuple(predictions),
        {},
        proposals,
        tuple(tuple(network.lines[node].name for node in group) for group in groups),
    )
    return replace(found, growth=_growth(found)) if grows else found


def topology_of(
    name: TopologyName,
    network: Network,
    order: Sequence[int] | None,
    groups: Sequence[Sequence[int]],
) -> Topology:
    """A topology over the nodes of a network, with their best order and groups where there are
    any.
    """
    peers: list[PeerId] = names(network)
    grouped = tuple(tuple(peers[node] for node in group) for group in groups)
    return Topology(
        name,
        tuple(peers[node] for node in order or ()),
        grouped if len(grouped) > 1 else (),
    )


def _proposals(setting: Setting) -> tuple[Proposal, ...]:
    network = setting.network
    cost_s = pair_s(network, setting.traffic.parameters, setting.calibration)
    compute_s = [
        setting.compute.adam_s * factor for factor in setting.compute.factors(setting.nodes)
    ]
    found = []
    for name in ORDERED:
        best = best_order(name, cost_s, compute_s, setting.seed)
        listed_s = order_s(name, range(setting.nodes), cost_s, compute_s)
        order = best.order if best.seconds < listed_s else tuple(range(setting.nodes))
        found.append(
            Proposal(
                name,
                tuple(network.lines[node].name for node in order),
                order,
                min(best.seconds, listed_s),
                listed_s,
                best.exact,
            )
        )
    return tuple(sorted(found, key=lambda proposal: proposal.seconds))


def _growth(found: Plan) -> dict[str, tuple[Growth, ...]]:
    """Each method at growing numbers of nodes, whose lines are the given ones by turns."""
    setting, lines = found.setting, found.setting.network.lines
    gossip = found.method("gossip-adam")
    growth: dict[str, list[Growth]] = {}
    for nodes in sorted({*GROWTH_NODES, setting.nodes}):
        network = Network([lines[node % len(lines)] for node in range(nodes)])
        other = replace(setting, network=network)
        for method in (*DENSE[:3], "gossip-adam", DENSE[3]):
            topology = None
            if method == "gossip-adam" and gossip.topology:
                costs_s = pair_s(network, setting.traffic.parameters, setting.calibration)
                name = topology_name(gossip.topology)
                topology = topology_of(name, network, None, fast_groups(costs_s))
            one = predicted(other, method, topology)
            growth.setdefault(method, []).append(Growth(nodes, one.seconds, one.up_bytes))
    return {method: tuple(points) for method, points in growth.items()}


def topology_name(name: str) -> TopologyName:
    """The name as one of those that there are."""
    return next(known for known in TOPOLOGY_NAMES if known == name)

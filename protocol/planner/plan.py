"""All methods side by side on one setting: what `lockstep plan` shows and writes.

Rounds of local steps are predicted as those of DeMo: in a run of local steps they are called so, in
the JSON they stand under its name.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from protocol.mixing.topologies import TOPOLOGY_NAMES, Topology, TopologyName
from protocol.planner.groups import fast_groups
from protocol.planner.links import pair_s
from protocol.planner.methods import MethodName, Prediction, Setting, names, own_method, predicted
from protocol.runfile import RunSpec

DAY_S: Final = 86_400

GLOBAL: Final[tuple[MethodName, ...]] = ("all-reduce", "diloco")
"""Methods in which all nodes exchange with all, so that the slowest line counts."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that was predicted for a run on a setting."""

    spec: RunSpec
    setting: Setting
    predictions: tuple[Prediction, ...]

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
    def decentralised(self) -> tuple[Prediction, ...]:
        """Those without a global exchange: not DiLoCo, which makes one, only seldom, and whose
        steps are worth less.
        """
        return tuple(found for found in self.predictions if found.method not in GLOBAL)

    @property
    def best(self) -> Prediction:
        """The decentralised method with the shortest round."""
        return min(self.decentralised, key=lambda found: found.seconds)

    @property
    def own(self) -> Prediction:
        """The method of the run file."""
        own, topologies = own_method(self.spec), (None, self.spec.algorithm.mixing.topology)
        return next(
            found
            for found in self.predictions
            if found.method == own and found.topology in topologies
        )

    def title(self, found: Prediction) -> str:
        """A method's name, in the words of the run."""
        if found.topology:
            return f"gossip {found.topology}"
        named = {"diloco": f"diloco, 1 of {self.setting.traffic.local_steps}"}
        if self.spec.algorithm.facts.steps_within_round:
            named |= {"demo": "local steps", "demo-overlap": "local steps with overlap"}
        return named.get(found.method, found.method)

    def day_bytes(self, found: Prediction) -> float:
        """Bytes that a node sends in a day of rounds."""
        return found.up_bytes * DAY_S / found.seconds if found.seconds else 0.0

    def times_less(self, found: Prediction) -> float:
        """How many times less than a round with all-reduce a method's takes."""
        return self.baseline.seconds / found.seconds if found.seconds else 1.0

    @property
    def length_s(self) -> float:
        """Seconds of the whole run as its run file has it."""
        return self.spec.schedule.steps * self.own.seconds

    def document(self) -> dict[str, Any]:
        """For a program: the figures of every method, and what follows."""
        return {
            "nodes": self.setting.nodes,
            "compute": asdict(self.setting.compute),
            "traffic": asdict(self.setting.traffic),
            "lines": [asdict(line) for line in self.setting.network.lines],
            "methods": [
                asdict(found)
                | {"times_less": self.times_less(found), "day_bytes": self.day_bytes(found)}
                for found in self.predictions
            ],
            "best": {"method": self.best.method, "topology": self.best.topology},
            "run_s": self.length_s,
        }


def plan(spec: RunSpec, setting: Setting) -> RunPlan:
    """Predict every method and topology."""
    groups = fast_groups(pair_s(setting.network, setting.traffic.parameters, setting.calibration))
    gossip = [
        predicted(setting, "gossip-adam", topology_of(name, setting, groups))
        for name in TOPOLOGY_NAMES
    ]
    dense: tuple[MethodName, ...] = ("all-reduce", "demo", "demo-overlap")
    first = [predicted(setting, method) for method in dense]
    return RunPlan(spec, setting, (*first, *gossip, predicted(setting, "diloco")))


def topology_of(name: TopologyName, setting: Setting, groups: Sequence[Sequence[int]]) -> Topology:
    """A topology over the nodes of a setting, with their groups where there are any."""
    peers = names(setting.network)
    grouped = tuple(tuple(peers[node] for node in group) for group in groups)
    return Topology(name, grouped if len(grouped) > 1 else ())

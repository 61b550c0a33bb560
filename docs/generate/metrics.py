"""The page of the metrics: those that a coordinator, a node, a relay and an auditor register."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry

import coordinator.metrics
import node.status
from coordinator.machine.events.effects import Point
from coordinator.machine.machine import RunMachine
from coordinator.traffic import CoordinatorTraffic
from docs.generate.tables import made_from, table
from lockstep.audit.metrics import COUNTERS, GAUGES, AuditCollector
from lockstep.service.admin import build_registry
from node.relay.process import RelayProcess
from node.relay.settings import RelaySettings
from protocol.ids import PeerId, RunId
from protocol.runfile import RunSpec

METRICS_HEAD = """\
# Metrics

A coordinator, a node, a relay and an auditor serve these at `/metrics` of their admin port, for
Prometheus. A counter never falls while its process lives. Sizes are in bytes, losses in nats per
token. The bytes of transport overhead are there only where the kernel tells of them (Linux); the
loss appears with the first one. `docker compose --profile monitoring up` has dashboards and alerts
made of them. Which process a series is of stands in the labels of the `_info` metrics of its
instance; `kind` is the same notion everywhere: whose bytes they are.
"""


def metrics() -> str:
    """The page of the metrics."""
    text = made_from("the metrics that the processes register") + METRICS_HEAD
    for title, registry in (
        ("Coordinator", _coordinator_registry()),
        ("Node", _node_registry()),
        ("Relay", _relay_registry()),
        ("Auditor, beside those of a relay", _auditor_registry()),
        ("Every process", build_registry()),
    ):
        rows = [row for family in registry.collect() for row in _family(family)]
        text += f"\n## {title}\n\n" + table(("name", "type", "labels", "meaning"), rows)
    return text


def _family(family: Any) -> Iterator[tuple[str, ...]]:
    values: dict[str, list[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            if label != "le":  # the classes of a histogram
                values.setdefault(label, []).append(value)
    labels = "; ".join(
        f"{label}: {', '.join(dict.fromkeys(found))}" for label, found in values.items()
    )
    if family.name.endswith("_info"):  # of one process each
        labels = ", ".join(values)
    name = family.name + ("_total" if family.type == "counter" else "")
    yield f"`{name}`", family.type, labels, family.documentation


def _coordinator_registry() -> CollectorRegistry:
    rounds = RunMachine(RunSpec(), RunId("0" * 32))
    rounds.state.loss = 1.0
    rounds.state.evaluation.points.append(Point(0, 0, 1.0, 1, b"", PeerId("0" * 32), ""))
    return coordinator.metrics.registry(rounds, CoordinatorTraffic(lambda up, down: (0, 0)))


def _node_registry() -> CollectorRegistry:
    known = node.status.NodeStatus("0" * 32, "node", node.status.OwnWork(loss=1.0))
    known.heard_validation(1.0, 0)
    known.carried({"overhead_up_bytes": 0, "overhead_down_bytes": 0})
    return node.status.registry(known)


def _relay_registry() -> CollectorRegistry:
    settings = RelaySettings(coordinator="127.0.0.1", directory=Path("relay"))
    relay = RelayProcess(settings, Ed25519PrivateKey.generate(), "lockstep")
    owners = ("payload", "catch_up", "control", "overhead")
    traffic = {f"{owner}_{way}_bytes": 0 for owner in owners for way in ("up", "down")}
    running = relay.status() | {"traffic": traffic}
    setattr(relay, "status", lambda: running)  # noqa: B010  # one that has started
    return relay.registry


def _auditor_registry() -> CollectorRegistry:
    document = dict.fromkeys((*GAUGES, *COUNTERS), 0)
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(AuditCollector(lambda: document))
    return collectors

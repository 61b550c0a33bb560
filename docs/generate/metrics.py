"""The page of the metrics: those that a coordinator, a node and a relay register."""

from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from docs.generate.tables import made_from, table
from protocol.runfile import RunSpec

METRICS_HEAD = """\
# Metrics

A coordinator, a node and a relay serve these at `/metrics` of their admin port, for Prometheus. A
counter never falls while its process lives. Sizes are in bytes, losses in nats per token. The
bytes of transport overhead are there only where the kernel tells of them (Linux); the loss
appears with the first one. `docker compose --profile monitoring up` has dashboards and alerts
made of them.
"""


def metrics() -> str:
    """The page of the metrics."""
    text = made_from("the metrics that the processes register") + METRICS_HEAD
    for title, registry in (
        ("Coordinator", _coordinator_registry()),
        ("Node", _node_registry()),
        ("Relay", _relay_registry()),
    ):
        rows = [row for family in registry.collect() for row in _family(family)]
        text += f"\n## {title}\n\n" + table(("name", "type", "labels", "meaning"), rows)
    return text


def _family(family: Any) -> Iterator[tuple[str, ...]]:
    values: dict[str, list[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            values.setdefault(label, []).append(value)
    labels = "; ".join(
        f"{label}: {', '.join(dict.fromkeys(found))}" for label, found in values.items()
    )
    name = family.name + ("_total" if family.type == "counter" else "")
    yield f"`{name}`", family.type, labels, family.documentation


def _coordinator_registry() -> CollectorRegistry:
    from coordinator.metrics import registry
    from coordinator.traffic import Traffic

    rounds = _module("coordinator.machine.rounds", "coordinator.rounds").Rounds(RunSpec(), "0" * 32)
    rounds.loss = 1.0
    return registry(rounds, Traffic(lambda up, down: (0, 0)))


def _node_registry() -> CollectorRegistry:
    module = _module("node.status", "node.progress")
    known = module.Progress("0" * 32, "node")
    known.loss = 1.0
    known.traffic = {"overhead_up_bytes": 0, "overhead_down_bytes": 0}
    made: CollectorRegistry = module.registry(known)
    return made


def _relay_registry() -> CollectorRegistry:
    module = _module("node.relay.metrics", "node.relay")
    collector = getattr(module, "RelayCollector", None) or module._Collector
    owners = ("payload", "catch_up", "control", "overhead")
    traffic = {f"{owner}_{way}_bytes": 0 for owner in owners for way in ("up", "down")}
    document = {"links": {}, "round": -1, "payloads": {"bytes": 0}, "traffic": traffic}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector(SimpleNamespace(status=lambda: document)))
    return registry


def _module(*names: str) -> Any:
    """The first of these modules that there is."""
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
    raise LookupError(f"expected one of the modules {', '.join(names)}, found none")

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

    rounds = found("coordinator.rounds:Rounds", "coordinator.machine.rounds:Rounds")
    run = rounds(RunSpec(), "0" * 32)
    run.loss = 1.0
    return registry(run, Traffic(lambda up, down: (0, 0)))


def _node_registry() -> CollectorRegistry:
    node = found("node.progress:Progress", "node.status:NodeStatus")("0" * 32, "node")
    node.loss = 1.0
    node.traffic = {"overhead_up_bytes": 0, "overhead_down_bytes": 0}
    made: CollectorRegistry = found("node.progress:registry", "node.status:registry")(node)
    return made


def _relay_registry() -> CollectorRegistry:
    collector = found(
        "node.relay:_Collector",
        "node.relay.process:_Collector",
        "node.relay.metrics:RelayCollector",
    )
    owners = ("payload", "catch_up", "control", "overhead")
    traffic = {f"{owner}_{way}_bytes": 0 for owner in owners for way in ("up", "down")}
    document = {"links": {}, "round": -1, "payloads": {"bytes": 0}, "traffic": traffic}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector(SimpleNamespace(status=lambda: document)))
    return registry


def found(*places: str) -> Any:
    """What stands at the first of these places, MODULE:NAME, that there is."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise LookupError(f"expected one of {', '.join(places)}, found none")

"""Prometheus scrapes the services that exist; dashboards and alerts use metrics that we export."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry

from coordinator import metrics
from coordinator.machine.events.effects import Point
from coordinator.machine.machine import RunMachine
from coordinator.traffic import CoordinatorTraffic
from lockstep.audit.metrics import COUNTERS, GAUGES, AuditCollector
from lockstep.service.admin import build_registry
from node import status
from node.relay.process import RelayProcess
from node.relay.settings import RelaySettings
from protocol.ids import PeerId, RunId
from protocol.runfile import RunSpec

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
GRAFANA = ROOT / "deploy/grafana"
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
RULES = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]

_NAME = re.compile(r"lockstep_[a-z_]+")
_SELECTOR = re.compile(r"(lockstep_[a-z_]+)\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|on) \(([a-z_, ]+)\)")

every_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


def samples(registry: CollectorRegistry) -> dict[str, set[str]]:
    """Label names by sample name, as a scrape has them."""
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        found.setdefault(name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture
async def exported(tmp_path: Path) -> dict[str, set[str]]:
    """Everything that coordinator, node, relay and auditor export, and what Prometheus adds
    itself.
    """
    rounds = RunMachine(RunSpec(), RunId("ab" * 16))
    rounds.state.loss = 1.0
    point = Point(0, 0, 1.0, 8, b"", PeerId("ab" * 16), "")
    rounds.state.evaluation.points.append(point)
    relay = RelayProcess(
        RelaySettings("127.0.0.1:1", tmp_path), Ed25519PrivateKey.generate(), "test"
    )
    auditor = CollectorRegistry()
    auditor.register(AuditCollector(lambda: dict.fromkeys((*GAUGES, *COUNTERS), 0)))
    found = {"up": {"job"}}
    for registry in (
        metrics.registry(rounds, CoordinatorTraffic()),
        status.registry(
            status.NodeStatus("a peer", "a name", status.OwnWork(loss=1.0), validation_loss=1.0)
        ),
        relay.registry,
        auditor,
        build_registry(),
    ):
        found |= samples(registry)
    await relay.stop()
    # Only a relay that has started has counters with labels.
    found["lockstep_relay_traffic_bytes_total"] |= {"kind", "direction"}
    return found


def panels(path: Path) -> list[dict[str, Any]]:
    """Panels that show something, also those that a row folds away."""
    shown: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    folded = [panel for row in shown for panel in row.get("panels", ())]
    return [panel for panel in (*shown, *folded) if panel["type"] != "row"]


def expressions(path: Path) -> list[str]:
    return [target["expr"] for panel in panels(path) for target in panel["targets"]]


def unknown(expression: str, exported: dict[str, set[str]]) -> set[str]:
    """Metrics and labels of an expression that nobody exports."""
    names = set(_NAME.findall(expression))
    found = names - set(exported)
    labels = {label for name in names for label in exported.get(name, ())} | {"instance", "job"}
    asked = {
        part.split("=")[0].strip("!~ ")
        for _, inner in _SELECTOR.findall(expression)
        for part in inner.split(",")
    }
    asked |= {
        label.strip() for inner in _GROUPING.findall(expression) for label in inner.split(",")
    }
    return found | (asked - labels)


@every_dashboard
def test_every_panel_shows_what_is_exported(path: Path, exported: dict[str, set[str]]) -> None:
    assert {
        name: missing for name in expressions(path) if (missing := unknown(name, exported))
    } == {}
    assert all(_NAME.search(expression) for expression in expressions(path))


def test_every_alert_watches_what_is_exported(exported: dict[str, set[str]]) -> None:
    assert {
        rule["alert"]: missing for rule in RULES if (missing := unknown(rule["expr"], exported))
    } == {}


def test_a_metric_that_nobody_exports_would_be_found(exported: dict[str, set[str]]) -> None:
    assert unknown('rate(lockstep_node_nonsense_total{kind="up"}[5m])', exported) == {
        "lockstep_node_nonsense_total",
        "kind",
    }
    assert unknown("sum by (colour) (lockstep_coordinator_members)", exported) == {"colour"}


@every_dashboard
def test_a_dashboard_is_whole(path: Path) -> None:
    document, shown = json.loads(path.read_text()), panels(path)
    numbers = [panel["id"] for panel in shown]
    assert len(numbers) == len(set(numbers))
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ][0]
    variables = document["templating"]["list"]
    assert {each["datasource"]["uid"] for each in (*shown, *variables)} == {source["uid"]}
    assert all(panel["title"] and panel["description"].endswith(".") for panel in shown)
    assert len({panel["title"] for panel in shown}) == len(numbers)


@every_dashboard
def test_every_variable_is_of_an_exported_metric_and_chooses_something(
    path: Path, exported: dict[str, set[str]]
) -> None:
    for variable in json.loads(path.read_text())["templating"]["list"]:
        assert not unknown(variable["definition"], exported)
        chosen = [each for each in expressions(path) if f"${variable['name']}" in each]
        assert len(chosen) >= len(expressions(path)) // 2


def test_one_notion_has_one_label_in_all_processes(exported: dict[str, set[str]]) -> None:
    traffic = {name: labels for name, labels in exported.items() if "traffic_bytes" in name}
    assert len(traffic) >= 3
    assert {frozenset(labels - {"le"}) for labels in traffic.values()} == {
        frozenset({"kind", "direction"})
    }


def test_every_process_says_what_it_is(exported: dict[str, set[str]]) -> None:
    infos = {name for name in exported if name.endswith("_info")}
    assert infos == {
        "lockstep_build_info",
        "lockstep_coordinator_run_info",
        "lockstep_node_info",
        "lockstep_relay_info",
    }


@every_dashboard
def test_no_panel_lies_on_another(path: Path) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels(path):
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_dashboards_have_names_of_their_own() -> None:
    documents = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert (
        len({document["uid"] for document in documents})
        == len({document["title"] for document in documents})
        == 2
    )


def test_grafana_finds_data_and_dashboards_where_compose_puts_them() -> None:
    grafana = SERVICES["grafana"]
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/lockstep.yml").read_text())[
        "providers"
    ][0]
    place = provider["options"]["path"]
    assert f"./deploy/grafana/dashboards:{place}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (GRAFANA / "dashboards" / Path(home).relative_to(place)).exists()
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ][0]
    assert source["url"] == "http://prometheus:9090"


def test_prometheus_scrapes_every_service_on_the_admin_port() -> None:
    jobs = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    asked = {
        target
        for job in jobs
        for config in job.get("static_configs", ())
        for target in config["targets"]
    }
    asked |= {
        f"{name}:{config['port']}"
        for job in jobs
        for config in job.get("dns_sd_configs", ())
        for name in config["names"]
    }
    ours = {
        name
        for name in SERVICES
        if name in ("coordinator", "relay", "auditor") or name.startswith("node")
    }
    assert asked == {f"{name}:50701" for name in ours}


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool here (Debian: package prometheus)"
)
@pytest.mark.parametrize(
    "command",
    [["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"]],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def quiet(phase: str, committed: str) -> dict[str, Any]:
    """A test of Prometheus: in this phase, with these commits, nothing fires, although its node has
    gone and nothing is committed any more.
    """
    labels = 'instance="coordinator",phase'
    return {
        "interval": "1m",
        "input_series": [
            {
                "series": 'lockstep_coordinator_rounds_committed_total{instance="coordinator"}',
                "values": committed,
            },
            *(
                {
                    "series": f'lockstep_coordinator_phase{{{labels}="{each}"}}',
                    "values": f"{int(each == phase)}x60",
                }
                for each in metrics.PHASES
            ),
            *(
                [{"series": 'up{job="node",instance="node-dsl"}', "values": "1x10 0x50"}]
                if phase == "finished"
                else []
            ),
        ],
        "alert_rule_test": [
            {"eval_time": "40m", "alertname": alert, "exp_alerts": []}
            for alert in ("NothingCommitted", "ProcessGone")
        ],
    }


def test_alerts_fire_on_the_conditions_that_they_name(tmp_path: Path) -> None:
    if not shutil.which("promtool"):
        pytest.skip("no promtool here (Debian: package prometheus)")
    coordinator = "lockstep_coordinator"
    document = {
        "rule_files": [str(PROMETHEUS / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {
                        "series": f'{coordinator}_rounds_committed_total{{instance="coordinator"}}',
                        "values": "0+3x10 30+0x30",
                    },
                    {
                        "series": f'{coordinator}_phase{{instance="coordinator",phase="finished"}}',
                        "values": "0x40",
                    },
                    {
                        "series": f'{coordinator}_rounds_disputed_total{{instance="coordinator"}}',
                        "values": "0x20 1x20",
                    },
                    {"series": 'up{job="node",instance="node-dsl"}', "values": "1x10 0x30"},
                ],
                "alert_rule_test": [
                    {"eval_time": "9m", "alertname": alert, "exp_alerts": []}
                    for alert in ("NothingCommitted", "ReplicasDiffer", "ProcessGone")
                ]
                + [
                    {"eval_time": "30m", "alertname": alert, "exp_alerts": [{"exp_labels": labels}]}
                    for alert, labels in {
                        "NothingCommitted": {"severity": "critical", "instance": "coordinator"},
                        "ReplicasDiffer": {"severity": "critical", "instance": "coordinator"},
                        "ProcessGone": {
                            "severity": "warning",
                            "instance": "node-dsl",
                            "job": "node",
                        },
                    }.items()
                ],
            }
        ],
    }
    document["tests"] += [  # type: ignore[operator]
        quiet("finished", "0+3x10 30+0x50"),
        quiet("waiting", "0x60"),
        quiet("waiting", "0+3x10 30+0x50"),
        quiet("paused", "0+3x10 30+0x50"),
        quiet("computing", "0x60"),
    ]
    for test in document["tests"][0]["alert_rule_test"]:  # type: ignore[index]
        for expected in test["exp_alerts"]:
            expected["exp_annotations"] = {"summary": summary(test["alertname"])}
    path = tmp_path / "alerts_test.yml"
    path.write_text(yaml.safe_dump(document))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def summary(alert: str) -> str:
    """Summary of an alert about the processes above."""
    return {
        "NothingCommitted": (
            "coordinator committed no round for 10 minutes: its status page says why"
        ),
        "ReplicasDiffer": "replicas differ: unequal digests in 1 rounds in 15 minutes",
        "ProcessGone": "node node-dsl has not answered for two minutes",
    }[alert]

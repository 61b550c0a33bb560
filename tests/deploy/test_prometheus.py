"""A real Prometheus beside a real run: each panel of the dashboards has its numbers, no alert fires
on a run that waits, trains or has finished, and one does for a coordinator that was killed.

Prometheus reads the configuration and the rules of deploy/ with the addresses of this machine, and
every span of time in the rules is `FASTER` times shorter.
"""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
import yaml

from lockstep.run_file import write_run_file
from tests.deploy.test_monitoring import DASHBOARDS, PROMETHEUS, ROOT, RULES, panels
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not shutil.which("prometheus"), reason="no prometheus here (Debian: package prometheus)"
    ),
]

FASTER = 10
"""The rules' `[10m]` are a minute here: a test can wait for what an operator meets in an hour."""

SCRAPE_S = 2
RATE_WINDOW = "20s"
"""What Grafana puts for `$__rate_interval`: at least four scrapes."""

LONGEST_WINDOW_S = 90
"""Longer than window and `for` of `NothingCommitted` and `ProcessGone` together are here."""

PATIENCE_S = 300.0

NODES = ("node-cable", "node-dsl")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def shorter(span: str) -> str:
    """A span of Prometheus, `FASTER` times shorter."""
    return f"{max(1, int(span[:-1]) * _UNITS[span[-1]] // FASTER)}s"


def quicker_rules() -> dict[str, Any]:
    """The rules of deploy/, in a shorter time."""
    document: dict[str, Any] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(
                r"\[(\d+[smhd])\]", lambda found: f"[{shorter(found[1])}]", rule["expr"]
            )
            if "for" in rule:
                rule["for"] = shorter(rule["for"])
    return document


def configuration(addresses: dict[str, str]) -> dict[str, Any]:
    """The configuration of deploy/, whose targets are reached at these addresses: the names stay,
    so that its own relabelling makes the instances. Targets without an address are left out.
    """
    document: dict[str, Any] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    spans = ("scrape_interval", "scrape_timeout", "evaluation_interval")
    document["global"] = dict.fromkeys(spans, f"{SCRAPE_S}s")
    for job in document["scrape_configs"]:
        found = {f"{name}:50701" for name in addresses}
        for each in job.pop("dns_sd_configs", ()):  # there is no such name server here
            static = {"targets": [f"{name}:{each['port']}" for name in each["names"]]}
            job["static_configs"] = [*job.get("static_configs", ()), static]
        for each in job["static_configs"]:
            each["targets"] = [target for target in each["targets"] if target in found]
        job["relabel_configs"] = [
            *job.get("relabel_configs", ()),
            *(
                {
                    "source_labels": ["__address__"],
                    "regex": f"{name}:50701",
                    "target_label": "__address__",
                    "replacement": address,
                }
                for name, address in addresses.items()
            ),
        ]
    return document


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"expected {what} within {PATIENCE_S:.0f} s"
        time.sleep(0.5)


@dataclass
class Prometheus:
    """Debian's Prometheus on loopback, with a directory of its own."""

    directory: Path
    port: int = field(default_factory=free_port)

    def start(self, addresses: dict[str, str]) -> "subprocess.Popen[bytes]":
        self.directory.mkdir()
        (self.directory / "alerts.yml").write_text(yaml.safe_dump(quicker_rules()))
        self._configure(addresses)
        command = [
            "prometheus",
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-lifecycle",
            "--log.level=warn",
        ]
        with (self.directory / "log.txt").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until(lambda: self._answers(process), "a Prometheus that is ready")
        return process

    def _configure(self, addresses: dict[str, str]) -> None:
        text = yaml.safe_dump(configuration(addresses))
        (self.directory / "prometheus.yml").write_text(text)

    def _answers(self, process: "subprocess.Popen[bytes]") -> bool:
        assert process.poll() is None, (self.directory / "log.txt").read_text()
        try:
            return bool(self._fetch("/-/ready"))
        except (HTTPError, URLError):
            return False

    def _fetch(self, path: str, *, post: bool = False) -> bytes:
        address = f"http://127.0.0.1:{self.port}{path}"
        with urlopen(Request(address, method="POST" if post else "GET"), timeout=30) as answer:
            return bytes(answer.read()) or b"done"

    def reload(self, addresses: dict[str, str]) -> None:
        self._configure(addresses)
        self._fetch("/-/reload", post=True)

    def asked(self, path: str, **parameters: str) -> Any:
        """The data of one answer; an expression that is wrong is an HTTPError."""
        answer = json.loads(self._fetch(f"/api/v1/{path}?{urlencode(parameters)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def series(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that the expression has now."""
        data = self.asked("query", query=expression)
        assert data["resultType"] == "vector", expression
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def label_values(self, definition: str) -> list[str]:
        """The values that a variable of a dashboard offers."""
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", definition)
        assert found, definition
        values = self.asked(f"label/{found[2]}/values", **{"match[]": found[1]})
        return list(map(str, values))

    def fired(self, seconds: float) -> set[tuple[str, str]]:
        """Name and instance of each alert that fired in the last seconds."""
        window = max(1, math.ceil(seconds))
        found = self.series(f'count_over_time(ALERTS{{alertstate="firing"}}[{window}s])')
        return {(labels["alertname"], labels.get("instance", "")) for labels, _ in found}

    def firing(self) -> set[tuple[str, str]]:
        """Name and instance of each alert that fires now."""
        found = self.asked("alerts")["alerts"]
        return {
            (each["labels"]["alertname"], each["labels"].get("instance", ""))
            for each in found
            if each["state"] == "firing"
        }


class Party:
    """A run with a relay and an auditor, each process with an admin port that stays its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.listen = f"127.0.0.1:{free_port()}"
        names = ("coordinator", "relay", "auditor", *NODES)
        self.admin = {name: f"127.0.0.1:{free_port()}" for name in names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.data = tiny_corpus(directory / "data")
        self.run_file = directory / "run.toml"
        spec = tiny_spec(steps=100_000, members=2, quorum=2)
        write_run_file(self.run_file, spec, force=True)

    def start(self, name: str) -> None:
        place = ["--directory", str(self.directory / name), "--admin", self.admin[name]]
        passive = [self.listen, "--listen", "127.0.0.1:0"]
        if name == "coordinator":
            words = [name, str(self.run_file), "--no-try-model", "--listen", self.listen]
        elif name in NODES:
            own = ["--data", str(self.data), "--name", name, "--threads", "1", "--yes"]
            words = ["join", *passive, *own, "--device", "cpu", "--nice", "0", "--on-battery"]
        else:
            words = [name, *passive]
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "lockstep", *words, *place],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(self.directory),
            )

    def words(self, *order: str) -> None:
        """An order of the operator."""
        place = ["--directory", str(self.directory / "coordinator")]
        command = [sys.executable, "-m", "lockstep", "run", *order, *place]
        subprocess.run(command, check=True, env=_environment(self.directory), timeout=PATIENCE_S)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    own = {"LOCKSTEP_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return kept | own


@dataclass
class Watched:
    """A run and the Prometheus that watches it."""

    party: Party
    prometheus: Prometheus
    scraped: list[str] = field(default_factory=list)

    def start(self, *names: str) -> None:
        """Start processes, and scrape them once they answer."""
        for name in names:
            self.party.start(name)
        until(lambda: all(map(self._serves, names)), f"{names} at work")
        self.scraped += [name for name in names if name not in self.scraped]
        self.prometheus.reload({name: self.party.admin[name] for name in self.scraped})
        until(self._all_up, "every process scraped")

    def _serves(self, name: str) -> bool:
        log = (self.party.directory / f"{name}.log").read_text()
        assert self.party.processes[name].poll() is None, log
        try:
            with urlopen(f"http://{self.party.admin[name]}/metrics", timeout=10) as answer:
                return bool(answer.read())
        except OSError:
            return False

    def _all_up(self) -> bool:
        found = [value for _, value in self.prometheus.series("up")]
        return len(found) == len(self.scraped) and all(found)

    def phase(self) -> str:
        found = self.prometheus.series("lockstep_coordinator_phase == 1")
        return found[0][0]["phase"] if found else ""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A coordinator that waits for members, with a relay and an auditor; it has been watched for a
    while.
    """
    directory = tmp_path_factory.mktemp("prometheus")
    party, prometheus = Party(directory), Prometheus(directory / "prometheus")
    server = prometheus.start({})
    try:
        watched = Watched(party, prometheus)
        watched.start("coordinator")
        watched.start("relay", "auditor")
        yield watched
    finally:
        server.terminate()
        party.stop()
        server.wait(PATIENCE_S)


def test_every_rule_is_understood_and_none_fires_while_the_run_waits(watched: Watched) -> None:
    time.sleep(LONGEST_WINDOW_S / 3)  # ten minutes of an operator's
    groups = watched.prometheus.asked("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [rule["name"] for rule in rules] == [rule["alert"] for rule in RULES]
    assert {
        rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"
    } == {}
    assert watched.phase() == "waiting"
    assert watched.prometheus.fired(LONGEST_WINDOW_S) == set()


def test_no_alert_fires_on_a_healthy_run_and_each_has_what_it_watches(watched: Watched) -> None:
    watched.start(*NODES)
    validated = "lockstep_coordinator_validation_loss"
    until(lambda: watched.prometheus.series(validated), "a validation loss")
    names = {name for rule in RULES for name in re.findall(r"lockstep_\w+", rule["expr"])}
    assert {name for name in names if not watched.prometheus.series(name)} == set()
    assert watched.phase() in ("computing", "exchanging")
    assert watched.prometheus.fired(LONGEST_WINDOW_S) == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_has_numbers_with_the_labels_that_its_legend_names(
    path: Path, watched: Watched
) -> None:
    """No panel is empty in a run with a relay, not even after minutes."""
    document, places = json.loads(path.read_text()), {"$__rate_interval": RATE_WINDOW}
    for variable in document["templating"]["list"]:
        values = watched.prometheus.label_values(variable["definition"])
        expected = ["coordinator"] if variable["name"] == "coordinator" else sorted(NODES)
        assert sorted(values) == expected
        places[f"${variable['name']}"] = f"({'|'.join(values)})"
    for panel in panels(path):
        for target in panel["targets"]:
            expression = target["expr"]
            for place, value in places.items():
                expression = expression.replace(place, value)
            until(lambda: numbers(watched, expression), f"numbers for {expression}")  # noqa: B023
            legend = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
            found = watched.prometheus.series(expression)
            assert all(legend <= set(labels) for labels, _ in found), (panel["title"], found)
            shown = {tuple(labels[name] for name in sorted(legend)) for labels, _ in found}
            assert len(shown) == len(found), f"{panel['title']}: two lines have one name"


def numbers(watched: Watched, expression: str) -> bool:
    """The expression has series, and all are numbers."""
    found = watched.prometheus.series(expression)
    return bool(found) and all(math.isfinite(value) for _, value in found)


def test_a_coordinator_that_was_killed_is_reported_until_it_is_back(watched: Watched) -> None:
    watched.party.processes["coordinator"].send_signal(signal.SIGKILL)
    watched.party.processes["coordinator"].wait()
    gone = ("ProcessGone", "coordinator")
    until(lambda: gone in watched.prometheus.firing(), "an alert for the coordinator")
    (alert,) = [
        each
        for each in watched.prometheus.asked("alerts")["alerts"]
        if each["labels"].get("instance") == "coordinator" and each["state"] == "firing"
    ]
    words = "coordinator coordinator has not answered for two minutes"
    assert alert["annotations"]["summary"] == words
    watched.start("coordinator")
    until(lambda: not watched.prometheus.firing(), "no alert after the coordinator's return")


def test_no_alert_fires_when_the_run_has_finished_and_its_nodes_have_gone(
    watched: Watched,
) -> None:
    began_s = time.monotonic()
    watched.party.words("finish", "--reason", "it is good enough")
    for name in NODES:
        assert watched.party.processes[name].wait(PATIENCE_S) == 0
    until(lambda: watched.phase() == "finished", "the finished phase")
    down = [labels["instance"] for labels, value in watched.prometheus.series("up") if not value]
    until(lambda: len(watched.prometheus.series("up == 0")) >= len(NODES), f"nodes gone: {down}")
    time.sleep(LONGEST_WINDOW_S)
    assert watched.prometheus.fired(time.monotonic() - began_s) == set()
    watched.party.processes["coordinator"].terminate()
    assert watched.party.processes["coordinator"].wait(PATIENCE_S) == 0
    time.sleep(LONGEST_WINDOW_S / 3)
    assert watched.prometheus.fired(time.monotonic() - began_s) == set()

"""A cluster on lines that break: each fault reaches the right computer, once, and the lines are
counted.
"""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lockstep.cluster.local import ClusterSettings
from lockstep.wan import cluster as cluster_module
from lockstep.wan.cluster import LineUse, WanCluster
from lockstep.wan.faults import parse_faults
from lockstep.wan.lab.laboratory import Counters


class PaperLaboratory:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.bytes = 0

    def check(self) -> None:
        self.asked.append(("check",))

    def counters(self, _: str) -> Counters:
        return Counters(self.bytes, 2 * self.bytes)

    def cut(self, *what: Any) -> None:
        self.asked.append(("cut", *what))

    def slow(self, *what: Any) -> None:
        self.asked.append(("slow", *what))

    def restore(self, *what: Any) -> None:
        self.asked.append(("restore", *what))

    def address(self, name: str) -> str:
        return {"coordinator": "11.0.0.2", "relay": "11.0.0.10"}[name]

    @contextlib.contextmanager
    def inside(self, _: str) -> Iterator[None]:
        yield


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cluster_module, "time", clock)
    return clock


def built(tmp_path: Path, *faults: str) -> tuple[WanCluster, PaperLaboratory]:
    paper = PaperLaboratory()
    settings = ClusterSettings(tmp_path, tmp_path / "run.toml", tmp_path / "data", nodes=2)
    laboratory: Any = paper
    return WanCluster(
        settings, laboratory, parse_faults(faults, nodes=2, rounds=10, draws=Random(0))
    ), paper


def test_the_clock_of_faults_begins_with_the_first_round(tmp_path: Path, clock: Clock) -> None:
    cluster, paper = built(tmp_path, "cut:node-1@1s+2s")
    cluster.coordinator.status = {"round": -1}
    clock.now_s += 100
    assert cluster.watch() == []
    cluster.coordinator.status = {"round": 0}
    assert cluster.watch() == []
    clock.now_s += 1
    assert cluster.watch() == ["fault cut:node-1@1s+2s"]
    clock.now_s += 2
    assert cluster.watch() == ["mended cut:node-1@1s+2s"]
    assert [what for what in paper.asked if what != ("check",)] == [
        ("cut", "node-1"),
        ("restore", "node-1"),
    ]
    assert cluster.happened == ["1.0 s: fault cut:node-1@1s+2s", "3.0 s: mended cut:node-1@1s+2s"]


@pytest.mark.parametrize(
    ("fault", "asked"),
    [
        ("cut:coordinator@r2+1s", ("cut", "coordinator")),
        ("cut-up:node-0@r2+1s", ("cut", "node-0", "up")),
        ("cut-down:node-0@r2+1s", ("cut", "node-0", "down")),
        ("slow:node-0/4@r2+1s", ("slow", "node-0", 0.25)),
    ],
)
def test_each_kind_of_fault_breaks_what_it_names(
    tmp_path: Path, clock: Clock, fault: str, asked: tuple[Any, ...]
) -> None:
    cluster, paper = built(tmp_path, fault)
    cluster.coordinator.status = {"round": 2}
    cluster.watch()
    assert paper.asked == [asked, ("check",)]


def test_a_kill_reaches_the_process_of_that_name(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(cluster_module.os, "kill", lambda pid, number: killed.append((pid, number)))
    cluster, _ = built(tmp_path, "kill:node-1@r0")
    monkeypatch.setattr(
        type(cluster.nodes[1]), "pid", property(lambda child: {"node-1": 4711}.get(child.name))
    )
    cluster.coordinator.status = {"round": 0}
    cluster.watch()
    assert killed == [(4711, signal.SIGKILL)]


def test_the_use_of_a_line_is_its_traffic_since_the_last_look(clock: Clock) -> None:
    use = LineUse(Counters(1000, 5000))
    clock.now_s += 2
    use.count(Counters(3000, 5000))
    assert (use.up_bit_s, use.down_bit_s) == (8000, 0)
    clock.now_s += 1
    use.count(Counters(3000, 6000))
    assert (use.up_bit_s, use.down_bit_s) == (0, 8000)
    assert use.total == Counters(2000, 1000)


def test_coordinator_and_relay_listen_on_their_own_computers(tmp_path: Path) -> None:
    cluster, _ = built(tmp_path)
    assert [cluster.listens(name) for name in ("coordinator", "relay")] == [
        "11.0.0.2:50700",
        "11.0.0.10:50710",
    ]


def test_the_kind_of_each_link_is_noted_by_peer_name_and_outlives_the_link(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _ = built(tmp_path)
    one, two = cluster.nodes
    monkeypatch.setattr(type(one), "refresh", lambda child: None)
    link = {
        "peer": "22",
        "transport": "libp2p",
        "remote": "x",
        "relayed": True,
        "dialled": False,
        "rtt_ms": 3,
    }
    one.status = {"peer_id": "11", "links": {"open": [link, {**link, "peer": "99"}]}}
    two.status = {"peer_id": "22"}
    cluster.watch()
    one.status = {"peer_id": "11", "links": {"open": []}}
    cluster.watch()
    way = {"transport": "libp2p", "relayed": True, "dialled": False}
    assert cluster.link_kinds == {"node-0": {"node-1": way, "99": way}, "node-1": {}}
    one.status = {"peer_id": "11", "links": {"open": [{**link, "relayed": False}]}}
    cluster.watch()
    assert cluster.link_kinds["node-0"]["node-1"]["relayed"] is False

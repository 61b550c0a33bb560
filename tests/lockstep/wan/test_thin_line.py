"""One member's line is far too thin for its payloads: it keeps its lease, and no round is skipped
for the others.
"""

import time
from pathlib import Path

import pytest

from lockstep.cluster.demo import CORPUS_BYTES, demo_spec
from lockstep.cluster.local import ClusterSettings
from lockstep.cluster.settings import DemoOptions
from lockstep.run_file import write_run_file
from lockstep.wan.cluster import WanCluster
from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.laboratory import Laboratory
from lockstep.wan.lab.topology import LabHome, Plan
from node.data.prepare import prepare_builtin
from tests.lockstep.wan.lab.fixture import needs_ground

ROUNDS, NODES = 10, 3

THIN_BIT_S, UP_BIT_S, DOWN_BIT_S = 60_000, 2_000_000, 16_000_000

LEASE_MS = 6_000

PATIENCE_S = 540.0
"""Longer than ten rounds take, of 18 s each on a quiet machine."""


def home(name: str, up_bit_s: int) -> LabHome:
    return LabHome(name, HomeLink(LinkDirection(up_bit_s, 0.02), LinkDirection(DOWN_BIT_S, 0.02)))


@needs_ground
@pytest.mark.slow
@pytest.mark.timeout(800)
def test_heartbeats_go_before_payloads_on_a_very_thin_line(tmp_path: Path) -> None:
    """Payloads of 45 kB take 6 s of the thin line. When its links began with 32 KiB each it was
    silent for its lease once or twice in 15 rounds.
    """
    spec = demo_spec(DemoOptions(tmp_path, NODES, ROUNDS, 0, "", "local_steps"))
    assert spec.membership.lease_ms == LEASE_MS
    write_run_file(tmp_path / "run.toml", spec)
    prepare_builtin(tmp_path / "data", byte_limit=CORPUS_BYTES // 4)
    rates = (UP_BIT_S, UP_BIT_S, THIN_BIT_S)
    homes = [home(f"node-{number}", rate) for number, rate in enumerate(rates)]
    settings = ClusterSettings(tmp_path, tmp_path / "run.toml", tmp_path / "data", NODES)
    plan = Plan((*homes, LabHome("coordinator")), ())
    with Laboratory(plan) as laboratory, WanCluster(settings, laboratory) as cluster:
        cluster.start()
        deadline_s = time.monotonic() + PATIENCE_S
        while not cluster.finished:
            assert time.monotonic() < deadline_s, cluster.coordinator.last_words()
            cluster.watch()
            time.sleep(0.3)
        cluster.wait()
    said = cluster.coordinator.log.read_text()
    assert "silent for" not in said, said
    assert cluster.coordinator.status["steps"] == {
        "committed": ROUNDS,
        "skipped": 0,
        "total": ROUNDS,
    }
    for node in cluster.nodes[:2]:
        assert node.status["rounds"]["counted"] >= ROUNDS - 1, said

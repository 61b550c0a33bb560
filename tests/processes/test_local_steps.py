"""A run with local steps in real processes: nodes stay equal, one is killed and comes back, and
`lockstep verify` finds the published checkpoint in the log.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from protocol.runfile import AlgorithmSpec
from tests.processes.test_cluster import PATIENCE_S, came_back, kill
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

STEPS = 20

NODES = 2


@pytest.mark.slow
def test_nodes_that_make_local_steps_end_equal_although_one_was_killed(tmp_path: Path) -> None:
    data, run_file = tiny_corpus(tmp_path / "data"), tmp_path / "run.toml"
    spec = tiny_spec(
        steps=STEPS,
        members=NODES,
        quorum=NODES,
        overlap=0,
        lease_ms=3_000,
        batch_samples_max=24,
        share_samples_first=6,
    )
    algorithm = AlgorithmSpec(name="local_steps", top_k=24, local_samples=2)
    write_run_file(run_file, spec.model_copy(update={"algorithm": algorithm}), force=True)
    with Cluster(ClusterSettings(tmp_path, run_file, data, nodes=NODES)) as cluster:
        cluster.start()
        watch_until(cluster, lambda: committed(cluster) >= 3, "three commits", PATIENCE_S)
        kill(cluster.nodes[1])
        watch_until(
            cluster, lambda: came_back(cluster.nodes[1]), "the killed node in a round", PATIENCE_S
        )
        watch_until(cluster, lambda: cluster.finished, "the end of the run", PATIENCE_S)
        cluster.wait()
    status = cluster.coordinator.status
    assert status["steps"]["committed"] == STEPS
    assert status["digests"]["agreed"]
    assert status["digests"]["rounds_disputed"] == 0
    assert {node.status["state_digest"] for node in cluster.nodes} == {status["digests"]["last"]}
    assert all(node.status["rounds"]["counted"] > 0 for node in cluster.nodes)
    assert status["loss"] < 4.0, "a byte drawn evenly costs 5.5 nats"
    checkpoint = tmp_path / "node-1" / "checkpoint"
    verified = subprocess.run(
        [
            sys.executable,
            "-m",
            "lockstep",
            "verify",
            f"{tmp_path}",
            "--checkpoint",
            f"{checkpoint}",
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert verified.returncode == 0, verified.stderr
    assert f"{STEPS} commits" in verified.stdout
    assert f"lead to state {status['digests']['last']}" in verified.stdout

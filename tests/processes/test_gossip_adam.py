"""A run of gossip Adam in real processes: one node is killed and comes back with its state, another
loses its disk and begins with a neighbour's parameters, and all end with the exact mean.
"""

import shutil
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from node.model.build import named_parameters_once
from node.model.checkpoint import load_checkpoint
from node.replica.digest import state_digest
from protocol.runfile import AlgorithmSpec
from tests.processes.operating import operate
from tests.processes.test_cluster import PATIENCE_S, came_back, kill
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

STEPS = 24

NODES = 4


@pytest.mark.slow
@pytest.mark.parametrize(("exchange", "mean_every"), [("float16", 1000), ("int8", 6)])
def test_nodes_that_mix_end_with_the_exact_mean_although_two_were_killed(
    tmp_path: Path, exchange: str, mean_every: int
) -> None:
    data, run_file = tiny_corpus(tmp_path / "data"), tmp_path / "run.toml"
    spec = tiny_spec(steps=STEPS, members=NODES, quorum=NODES, lease_ms=3_000)
    algorithm = AlgorithmSpec.model_validate(
        {"name": "gossip-adam", "mixing": {"exchange": exchange, "mean_every": mean_every}}
    )
    write_run_file(run_file, spec.model_copy(update={"algorithm": algorithm}), force=True)
    with Cluster(ClusterSettings(tmp_path, run_file, data, nodes=NODES)) as cluster:
        cluster.start()
        watch_until(cluster, lambda: committed(cluster) >= 4, "four commits", PATIENCE_S)
        kill(cluster.nodes[1])
        watch_until(
            cluster, lambda: came_back(cluster.nodes[1]), "the killed node in a round", PATIENCE_S
        )
        kill(cluster.nodes[2])
        for lost in ("state.safetensors", "payloads", "snapshots"):
            remove(cluster.nodes[2].directory / lost)
        watch_until(
            cluster, lambda: came_back(cluster.nodes[2]), "the node without a disk", PATIENCE_S
        )
        watch_until(cluster, lambda: cluster.finished, "the end of the run", PATIENCE_S)
        cluster.wait()
    status = cluster.coordinator.status
    assert status["steps"]["committed"] == STEPS
    assert status["consensus"]["distance"] == 0.0
    assert status["consensus"]["members"] == NODES
    assert status["digests"]["rounds_checked"] == 0, "nobody is blamed for a state of its own"
    digests = {node.status["state_digest"] for node in cluster.nodes}
    assert len(digests) == 1, "the mean of all, to the bit"
    assert status["loss"] < 4.5, "a byte drawn evenly costs 5.5 nats"
    published = load_checkpoint(tmp_path / "node-2" / "checkpoint")
    parameters = {
        name: each.detach() for name, each in named_parameters_once(published.model).items()
    }
    assert {f"{state_digest(parameters):016x}"} == digests
    log = (tmp_path / "node-2" / "log.txt").read_text()
    assert "goes on from" in log, "from a member's parameters or from the newest mean"


@pytest.mark.slow
def test_a_run_that_its_operator_ends_publishes_the_mean_and_far_nodes_only_mix(
    tmp_path: Path,
) -> None:
    data, run_file = tiny_corpus(tmp_path / "data"), tmp_path / "run.toml"
    spec = tiny_spec(steps=1000, members=NODES, quorum=NODES, lease_ms=3_000)
    algorithm = AlgorithmSpec.model_validate(
        {"name": "gossip-adam", "mixing": {"exchange": "int8", "critical": 0.01}}
    )
    write_run_file(run_file, spec.model_copy(update={"algorithm": algorithm}), force=True)
    with Cluster(ClusterSettings(tmp_path, run_file, data, nodes=NODES)) as cluster:
        cluster.start()
        watch_until(cluster, lambda: only_mixed(cluster) >= 2, "rounds that only mix", PATIENCE_S)
        operate(tmp_path, "finish", "--reason", "good enough")
        watch_until(cluster, lambda: cluster.finished, "the end of the run", PATIENCE_S)
        cluster.wait()
    status = cluster.coordinator.status
    assert status["steps"]["committed"] < 1000
    assert status["consensus"]["distance"] == 0.0
    assert len({node.status["state_digest"] for node in cluster.nodes}) == 1
    (made,) = status["checkpoint"]["made"]
    assert made["round"] == status["round"], "the model is the mean, in the coordinator's directory"


def only_mixed(cluster: Cluster) -> int:
    return int((cluster.coordinator.status.get("consensus") or {}).get("only_mixed", 0))


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.mark.slow
def test_members_measure_their_links_and_the_planner_has_every_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run_file = tiny_corpus(tmp_path / "data"), tmp_path / "run.toml"
    spec = tiny_spec(steps=100_000, members=3, quorum=3, lease_ms=20_000)
    mixing = {"topology": "hierarchical", "mean_every": 100_000}
    algorithm = AlgorithmSpec.model_validate({"name": "gossip-adam", "mixing": mixing})
    write_run_file(run_file, spec.model_copy(update={"algorithm": algorithm}), force=True)
    with Cluster(ClusterSettings(tmp_path, run_file, data, nodes=3)) as cluster:
        cluster.start()
        watch_until(cluster, lambda: measured_pairs(cluster) == 3, "three links", PATIENCE_S)
        watch_until(cluster, lambda: committed(cluster) >= 2, "two commits", PATIENCE_S)
        note = cluster.coordinator.note()
        assert note is not None
        assert main(["plan", str(run_file), "--measure", note["coordinator"]]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "3 of 3 pairs measured" in shown
    assert "gossip ring" in shown, "the table has what the links allow"


def measured_pairs(cluster: Cluster) -> int:
    links = cluster.coordinator.status.get("links") or {"round_trip_ms": []}
    return sum(value is not None for row in links["round_trip_ms"] for value in row) // 2

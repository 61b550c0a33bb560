"""Real processes on loopback from genesis to the end of a run: a node and the coordinator, killed
in the middle, come back, and the run's log replays to the same bits.

The quorum is all nodes, so that the run cannot end before the killed one takes part again, however
long its start takes: a machine that is slow at importing torch may be quick at the rounds of a tiny
model.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

PATIENCE_S = 150

STEPS = 60

NODES = 3

REPLAY = Path(__file__).with_name("replay.py")


def came_back(node: Child) -> bool:
    """Has its second process trained a round?"""
    return node.restarts == 1 and node.status.get("rounds", {}).get("trained", 0) > 0


def kill(child: Child) -> None:
    """Returns when the process is gone: what it said last is its last status, not its successor's
    first.
    """
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.wait(time.monotonic() + PATIENCE_S)


def replayed(directory: Path, *, threads: int, backwards: bool) -> dict[str, object]:
    """What another process makes of the coordinator's journal and one node's payload log."""
    arguments = [str(directory), str(threads), "backwards" if backwards else "forwards"]
    done = subprocess.run(
        [sys.executable, str(REPLAY), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A cluster of three nodes that has run to its end; node 1 and later the coordinator were
    killed on the way.
    """
    directory = tmp_path_factory.mktemp("cluster")
    data = tiny_corpus(directory / "data")
    run_file = directory / "run.toml"
    write_run_file(
        run_file, tiny_spec(steps=STEPS, members=NODES, quorum=NODES, lease_ms=3_000), force=True
    )
    with Cluster(ClusterSettings(directory, run_file, data, nodes=NODES)) as cluster:
        cluster.start()
        watch_until(cluster, lambda: committed(cluster) >= 4, "four commits", PATIENCE_S)
        kill(cluster.nodes[1])
        watch_until(
            cluster,
            lambda: came_back(cluster.nodes[1]),
            "the killed node in a round",
            PATIENCE_S,
        )
        kill(cluster.coordinator)
        watch_until(cluster, lambda: cluster.finished, "the end of the run", PATIENCE_S)
        cluster.wait()
    return cluster


def test_a_node_killed_in_the_middle_joins_again_and_ends_with_the_others_digest(
    finished: Cluster,
) -> None:
    assert finished.nodes[1].restarts == 1
    status = finished.coordinator.status
    assert status["steps"] == {
        "committed": STEPS,
        "skipped": status["steps"]["skipped"],
        "total": STEPS,
    }
    assert status["digests"]["agreed"]
    assert {node.status["state_digest"] for node in finished.nodes} == {status["digests"]["last"]}
    assert finished.nodes[1].status["rounds"]["trained"] > 0


def test_the_others_kept_their_processes_and_what_they_had_trained(finished: Cluster) -> None:
    # a node that is back before its lease is over has held up a round, and nobody was missing
    was_missing = finished.coordinator.status["steps"]["skipped"] > 0
    for node in (finished.nodes[0], finished.nodes[2]):
        assert node.restarts == 0
        assert node.status["rounds"]["counted"] == STEPS, "every commit holds all"
        assert (node.status["rounds"]["left_out"] > 0) == was_missing, (
            "what was sent meanwhile came back"
        )


def test_a_coordinator_killed_in_the_middle_goes_on_from_its_journal(finished: Cluster) -> None:
    assert finished.coordinator.restarts == 1
    assert finished.coordinator.status["finished"]
    assert finished.coordinator.status["digests"]["rounds_disputed"] == 0


def test_members_have_measured_the_validation_loss_and_the_card_says_that_of_the_last_state(
    finished: Cluster,
) -> None:
    status = finished.coordinator.status
    measured, head = status["validation"], status["last_commits"][0]["round"]
    assert measured["measured"] >= 2, "snapshots, and the end"
    assert measured["round"] == head
    assert 0 < measured["loss"] < 4, "a byte drawn evenly costs 5.5 nats"
    assert abs(measured["loss"] - status["loss"]) < 1, "the text is like that of the training"
    knows = [node.status["validation"]["loss"] for node in finished.nodes]
    assert measured["loss"] in knows, "the one that has measured it"
    newest = status["checkpoint"]["made"][0]["name"]
    card = finished.coordinator.directory / "checkpoints" / newest / "README.md"
    assert f"| validation loss | {measured['loss']:.4f} nats per token |" in card.read_text()


def test_journal_and_payloads_replay_to_the_same_digest_with_other_threads_and_order(
    finished: Cluster,
) -> None:
    directory = finished.coordinator.directory.parent
    expected = finished.coordinator.status["digests"]["last"]
    found = replayed(directory, threads=2, backwards=True)
    assert found == {"commits": STEPS, "digest": expected, "threads": 2}

"""A history has one head: a coordinator from an old copy of its directory stops, and a node that is
led from one history to another leaves with a proof.
"""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import kill
from pathlib import Path

import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from lockstep.service.keys import KEY_NAME
from lockstep.service.serve import NOTE_NAME, read_note
from protocol.codec.heads import PROOF_NAME
from tests.processes.watching import PATIENCE_S, committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = pytest.mark.slow

NO_SOCKET = shutil.ignore_patterns("control")

STEPS = 100_000
"""The run does not come to its end by itself."""


@contextmanager
def cluster_in(directory: Path, nodes: int) -> Iterator[Cluster]:
    """A cluster under way. A second one in the same directory goes on where the first ended."""
    data, run_file = directory.parent / "data", directory.parent / "run.toml"
    if not run_file.exists():
        tiny_corpus(data)
        spec = tiny_spec(steps=STEPS, members=nodes, lease_ms=5_000, copies_min=0, stretch=2)
        write_run_file(run_file, spec, force=True)
    with Cluster(ClusterSettings(directory, run_file, data, nodes=nodes)) as cluster:
        cluster.start()
        yield cluster


def train(cluster: Cluster, commits: int) -> int:
    """Wait for more commits; the number of all."""
    cluster.coordinator.refresh()
    wanted = committed(cluster) + commits
    watch_until(cluster, lambda: committed(cluster) >= wanted, f"{wanted} commits")
    return committed(cluster)


def exit_status(child: Child) -> int | None:
    return child.wait(time.monotonic() + PATIENCE_S)


def stop_at_once(child: Child) -> None:
    assert child.pid is not None
    kill(child.pid, signal.SIGKILL)
    assert exit_status(child) == -signal.SIGKILL


def last_words(child: Child) -> str:
    """What its last process has said, without its log records."""
    lines = child.log.read_text().splitlines()
    return next(line for line in reversed(lines) if line.startswith("error: "))


def test_a_coordinator_from_an_old_copy_stops_and_harms_no_node(tmp_path: Path) -> None:
    with cluster_in(tmp_path / "run", 2) as cluster:
        coordinator = cluster.coordinator
        train(cluster, 3)
        stop_at_once(coordinator)
        shutil.copytree(coordinator.directory, tmp_path / "old", ignore=NO_SOCKET)
        coordinator.start(*cluster._arguments(coordinator))
        cluster.wait_for_coordinator()
        before = train(cluster, 3)
        stop_at_once(coordinator)
        coordinator.directory.rename(tmp_path / "newest")
        shutil.copytree(tmp_path / "old", coordinator.directory)
        for node in cluster.nodes:
            node.refresh()
        rounds = [node.status["round"] for node in cluster.nodes]

        coordinator.start(*cluster._arguments(coordinator))
        assert exit_status(coordinator) == ExitCode.STORAGE
        assert f"{coordinator.directory} is an old copy of this" in last_words(coordinator)

        shutil.rmtree(coordinator.directory / "checkpoints", ignore_errors=True)
        for path in coordinator.directory.glob("journal*"):
            path.unlink()
        coordinator.start(*cluster._arguments(coordinator))
        assert exit_status(coordinator) == ExitCode.STORAGE
        assert "or a new one with its key" in last_words(coordinator)
        assert "none is here" in last_words(coordinator)

        for node, round in zip(cluster.nodes, rounds, strict=True):
            node.refresh()
            assert node.exit_status is None
            assert node.status["round"] >= round
            assert "reconnecting" in node.status["session"]
        shutil.rmtree(coordinator.directory)
        (tmp_path / "newest").rename(coordinator.directory)
        coordinator.start(*cluster._arguments(coordinator))
        cluster.wait_for_coordinator()
        assert train(cluster, 3) >= before
        assert all(node.restarts == 0 for node in cluster.nodes)
        assert all(node.status["resyncs"] == 0 for node in cluster.nodes)


@pytest.fixture
def histories(tmp_path: Path) -> Path:
    """A directory with two histories of one run, `one` and `other`, of which the other is the
    longer.
    """
    with cluster_in(tmp_path / "one", 1) as cluster:
        train(cluster, 3)
        stop_at_once(cluster.coordinator)
        shutil.copytree(tmp_path / "one", tmp_path / "other", ignore=NO_SOCKET)
        (tmp_path / "other" / "node-0" / KEY_NAME).unlink()  # else it makes the same commits
        cluster.coordinator.start(*cluster._arguments(cluster.coordinator))
        length = train(cluster, 2)
    with cluster_in(tmp_path / "other", 1) as cluster:
        while train(cluster, 2) < length + 5:
            pass
    return tmp_path


def address_of(directory: Path, pid: int) -> str:
    """Where a coordinator serves, once it does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (note := read_note(directory / NOTE_NAME) or {}).get("pid") != pid or not note.get(
        "coordinator"
    ):
        assert time.monotonic() < deadline_s, "the coordinator does not serve"
        time.sleep(0.05)
    return str(note["coordinator"])


def test_a_node_that_is_led_to_another_history_leaves_with_a_proof(histories: Path) -> None:
    node = Cluster(
        ClusterSettings(histories / "one", histories / "run.toml", histories / "data", nodes=1)
    ).nodes[0]
    place = histories / "other" / "coordinator"
    command = (sys.executable, "-m", "tests.processes.forgetful_coordinator")
    options = ("--directory", str(place), "--listen", "127.0.0.1:0", "--no-try-model")
    with subprocess.Popen([*command, str(histories / "run.toml"), *options]) as coordinator:
        try:
            address = address_of(place, coordinator.pid)
            node.start(address)
            assert exit_status(node) == ExitCode.REFUSED
            words = last_words(node)
            assert "has signed two different commits of" in words
            proof = node.directory / PROOF_NAME
            assert str(proof) in words
            node.start(address)
            assert exit_status(node) == ExitCode.REFUSED, "it does not come back"
        finally:
            coordinator.terminate()
    verifying = [sys.executable, "-m", "lockstep", "verify", "--proof", str(proof)]
    done = subprocess.run(verifying, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Proven: the coordinator's key ")

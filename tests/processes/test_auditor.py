"""An auditor beside a run of real processes: it is killed and comes back, has the state of the
nodes when they leave, and its archive serves an audit from the first round when they are gone.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from protocol.sections.retention import RetentionSpec
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = pytest.mark.slow

STEPS = 10_000
"""More than the run makes: its nodes leave before."""

NODES = 2
SAMPLES = 200
"""Of a round: half a second's work, which an auditor beside it replays in less."""

PATIENCE_S = 300.0
KEPT_ROUNDS = 50
"""Rounds that members keep: fewer than the run makes, more than it makes without the auditor."""


def run_verify(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "lockstep", "verify", *arguments, "--threads", "1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def pause(cluster: Cluster, number: signal.Signals) -> None:
    """Stop one node, without which there is no quorum, or let it go on."""
    pid = cluster.nodes[1].pid
    assert pid is not None
    os.kill(pid, number)


class Audited(Cluster):
    """A cluster with an auditor beside it."""

    def __init__(self, directory: Path, settings: ClusterSettings) -> None:
        super().__init__(settings)
        place = directory / "auditor"
        arguments = ["auditor", "--directory", str(place), "--listen", "127.0.0.1:0"]
        options = ["--threads", "1", "--save-every", "4", "--admin", "127.0.0.1:0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.auditor = Child("auditor", place, [*arguments, *options], environment)

    @property
    def audit(self) -> dict[str, Any]:
        """The newest word of the auditor."""
        self.auditor.refresh()
        return dict(self.auditor.status.get("audit") or {})

    @property
    def digests(self) -> dict[str, Any]:
        return dict(self.coordinator.status["digests"])

    def stop(self, patience_s: float = 60.0) -> None:
        try:
            self.auditor.ask_to_leave()
            super().stop(patience_s)
        finally:
            self.auditor.wait(0)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    """The run after its nodes have left. Its auditor was killed in the middle, and is at work."""
    directory = tmp_path_factory.mktemp("audited")
    data, run_file = tiny_corpus(directory / "data"), directory / "run.toml"
    work = {"batch_samples_max": SAMPLES, "share_samples_first": SAMPLES // NODES}
    spec = tiny_spec(steps=STEPS, members=NODES, quorum=NODES, lease_ms=240_000, **work)
    retention = RetentionSpec(snapshot_every=KEPT_ROUNDS, log_rounds=KEPT_ROUNDS)
    write_run_file(run_file, spec.model_copy(update={"retention": retention}), force=True)
    with Audited(directory, ClusterSettings(directory, run_file, data, nodes=NODES)) as cluster:
        cluster.start()
        watch_until(cluster, lambda: committed(cluster) >= 2, "some commits", PATIENCE_S)
        pause(cluster, signal.SIGSTOP)  # members would forget their payloads before it has started
        cluster.auditor.start(cluster.address)
        watch_until(cluster, lambda: cluster.audit.get("round", -1) >= 0, "a round", PATIENCE_S)
        pause(cluster, signal.SIGCONT)
        watch_until(cluster, lambda: cluster.audit.get("round", -1) >= 8, "8 rounds", PATIENCE_S)
        assert cluster.auditor.pid is not None
        os.kill(cluster.auditor.pid, signal.SIGKILL)
        watch_until(cluster, lambda: cluster.auditor.died, "its death", PATIENCE_S)
        steps = committed(cluster)
        watch_until(cluster, lambda: committed(cluster) > steps, "one more commit", PATIENCE_S)
        pause(cluster, signal.SIGSTOP)  # a start takes longer than these rounds
        cluster.auditor.restart(cluster.address)
        watch_until(
            cluster, lambda: cluster.audit.get("round", -1) >= steps, "its return", PATIENCE_S
        )
        pause(cluster, signal.SIGCONT)
        watch_until(
            cluster,
            lambda: cluster.audit.get("round", -1) > KEPT_ROUNDS + 10,
            "more rounds than are kept",
            PATIENCE_S,
        )
        for node in cluster.nodes:
            node.ask_to_leave()
        watch_until(
            cluster,
            lambda: all(node.exit_status == 0 for node in cluster.nodes),
            "the nodes' goodbye",
            PATIENCE_S,
        )
        yield cluster


def test_the_auditor_that_was_killed_has_the_state_of_the_nodes(audited: Audited) -> None:
    watch_until(
        audited,
        lambda: audited.audit.get("rounds_replayed") == committed(audited),
        "the last commit",
        PATIENCE_S,
    )
    audit = audited.audit
    assert (audit["rounds_different"], audit["first_difference"]) == (0, None)
    assert audit["rounds_equal"] >= committed(audited) - 2, "those that left reported the rest"
    assert audit["state_digest"] in {node.status["state_digest"] for node in audited.nodes}
    assert "goes on" in audited.auditor.log.read_text()


def test_its_archive_serves_an_audit_from_the_first_round_when_the_nodes_are_gone(
    audited: Audited,
) -> None:
    payloads = audited.nodes[0].directory / "payloads"
    assert min(int(each.name) for each in payloads.iterdir()) > 0, "nodes dropped the first rounds"
    found = run_verify(audited.address)
    assert found.returncode == 0, found.stderr
    steps = committed(audited)
    assert f"all {steps} were replayed from genesis" in " ".join(found.stdout.split())


def test_an_auditor_that_found_no_difference_ends_with_0(audited: Audited) -> None:
    audited.auditor.ask_to_leave()
    watch_until(audited, lambda: audited.auditor.exit_status is not None, "its end", PATIENCE_S)
    assert audited.auditor.exit_status == 0, audited.auditor.last_words()
    assert "audited up to round" in audited.auditor.last_words()

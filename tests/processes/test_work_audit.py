"""A run of real processes in which one node sends noise, or what others have sent: the auditor that
the operator has named finds it, it loses its standing, and the honest nodes are not touched.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from node.data.corpus import read_manifest
from protocol.sections.algorithm import AlgorithmSpec
from tests.processes.operating import operate
from tests.processes.test_auditor_word import GOODBYE_S
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

HONEST = 3
STEPS = 100_000
"""The run does not come to its end by itself."""

PATIENCE_S = 240.0


DEMO = AlgorithmSpec(name="demo", top_k=64)
LOCAL_STEPS = AlgorithmSpec(name="local_steps", top_k=192, local_samples=4)


def run_file(directory: Path, data: Path, algorithm: AlgorithmSpec) -> Path:
    """A run without overlap whose file names its data."""
    work = {"batch_samples_max": 64, "share_samples_first": 16}
    spec = tiny_spec(steps=STEPS, overlap=0, members=HONEST + 1, quorum=2, **work)
    manifest = read_manifest(data).digest.hex()
    path = directory / "run.toml"
    write_run_file(
        path,
        spec.model_copy(
            update={
                "algorithm": algorithm,
                "data": spec.data.model_copy(update={"manifest_sha256": manifest}),
            }
        ),
        force=True,
    )
    return path


def dishonest(kind: str, directory: Path, data: Path, address: str) -> subprocess.Popen[bytes]:
    place = directory / "dishonest"
    place.mkdir()
    options = ["--directory", str(place), "--data", str(data), "--admin", "127.0.0.1:0"]
    command = [sys.executable, "-m", "tests.processes.dishonest_node", kind, address, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (place / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [*command, "--device", "cpu", "--threads", "1", "--name", "dishonest"],
            stdout=log,
            stderr=log,
            env=environment,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "kind", "finding", "words"),
    [
        (DEMO, "noise", "other work", "audits of work came out as published"),
        (DEMO, "copies", "copied work", "copies came out as published"),
        (LOCAL_STEPS, "noise", "other work", "audits of work came out as published"),
    ],
    ids=["noise", "copies", "noise beside local steps"],
)
def test_a_dishonest_node_is_found_and_demoted_and_honest_nodes_are_not(
    algorithm: AlgorithmSpec, kind: str, finding: str, words: str, tmp_path: Path
) -> None:
    data = tiny_corpus(tmp_path / "data")
    place = tmp_path / "auditor"
    options = ["--listen", "127.0.0.1:0", "--threads", "1", "--admin", "127.0.0.1:0"]
    # Rounds of a tiny network are too short for 2 % of them to hold an audit in time for a test.
    options += ["--data", str(data), "--work-share", "40"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    auditor = Child("auditor", place, ["auditor", "--directory", str(place), *options], environment)
    with (
        Cluster(
            ClusterSettings(tmp_path, run_file(tmp_path, data, algorithm), data, nodes=HONEST)
        ) as cluster,
        contextlib.ExitStack() as stack,
    ):
        cluster.start()
        other = dishonest(kind, tmp_path, data, cluster.address)
        stack.callback(other.wait)
        stack.callback(other.kill)
        auditor.start(cluster.address)
        stack.callback(lambda: auditor.wait(time.monotonic() + GOODBYE_S))
        stack.callback(auditor.ask_to_leave)

        def key() -> str:
            auditor.refresh()
            return str(auditor.status.get("peer_id") or "")

        watch_until(
            cluster,
            lambda: key() and "lockstep run auditor add" in auditor.log.read_text(),
            "an auditor that says how it is named",
        )
        operate(tmp_path, "auditor", "add", key())

        def demoted() -> list[dict[str, Any]]:
            cluster.coordinator.refresh()
            return list((cluster.coordinator.status.get("audit") or {}).get("demoted", ()))

        watch_until(cluster, demoted, f"evidence against {kind}", PATIENCE_S)
        after = committed(cluster)
        watch_until(cluster, lambda: committed(cluster) > after + 10, "further commits")
        (found,) = demoted()
        members = {each["peer_id"]: each for each in cluster.coordinator.status["members"]}
        assert members[found["peer_id"]]["name"] == "dishonest"
        assert members[found["peer_id"]]["state"] == "muted"
        assert found["finding"] == finding
        if kind == "noise":
            assert all(audit["agreement"] < 0.57 < audit["expected"] for audit in found["audits"])
        assert len(found["audits"]) >= 3
        assert found["reason"] in members[found["peer_id"]]["reason"]
        honest = [each for each in members.values() if each["name"] != "dishonest"]
        assert [each["standing"] for each in honest] == [""] * HONEST
        assert f"demote {found['peer_id']} by auditor {key()}: work audit" in operate(
            tmp_path, "audit"
        )
        operate(tmp_path, "pause")  # a replay beside a run that goes on is slower
        command = [sys.executable, "-m", "lockstep", "verify", cluster.address, "--work", str(data)]
        checked = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment
        )
        assert checked.returncode == 0, checked.stderr
        assert f"{len(found['audits'])} {words}" in checked.stdout

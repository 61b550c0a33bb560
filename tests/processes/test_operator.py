"""The operator's orders on real processes: a run is paused and goes on, a node is banned and told
why, the run is ended by hand with its model, and the chain of acts tells it all afterwards.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from tests.processes.operating import operate
from tests.processes.watching import PATIENCE_S, committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = pytest.mark.slow

STEPS = 100_000
"""The run does not come to its end by itself."""


def until(condition: Callable[[], object], what: str) -> None:
    """Waits without starting dead processes again."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"expected {what} within {PATIENCE_S:.0f} s"
        time.sleep(0.05)


def test_an_operator_pauses_resumes_bans_and_ends_a_run(tmp_path: Path) -> None:
    data, run_file = tiny_corpus(tmp_path / "data"), tmp_path / "run.toml"
    write_run_file(run_file, tiny_spec(steps=STEPS, members=2, quorum=1), force=True)
    with Cluster(ClusterSettings(tmp_path, run_file, data, nodes=2)) as cluster:
        cluster.start()
        coordinator, (kept, banned) = cluster.coordinator, cluster.nodes
        watch_until(cluster, lambda: committed(cluster) >= 2, "two commits")

        operate(tmp_path, "pause", "--reason", "new disk")
        watch_until(cluster, lambda: coordinator.status.get("phase") == "paused", "a pause")
        reason = "paused by the operator: new disk"
        assert coordinator.status["reason"] == reason
        paused_at = committed(cluster)
        watch_until(
            cluster,
            lambda: all(
                node.status.get("standing", {}).get("reason") == reason for node in cluster.nodes
            ),
            "nodes that know of the pause",
        )
        assert committed(cluster) == paused_at
        assert len(json.loads(operate(tmp_path, "members", "--json", "-"))["members"]) == 2

        operate(tmp_path, "resume")
        watch_until(cluster, lambda: committed(cluster) >= paused_at + 2, "further commits")

        operate(tmp_path, "ban", banned.name, "--reason", "it sends noise")
        until(lambda: banned.exit_status is not None, "the end of the banned node")
        assert banned.exit_status == ExitCode.REFUSED
        assert "banned this node: it sends noise" in banned.log.read_text()
        after = committed(cluster)

        def goes_on() -> bool:
            coordinator.refresh()
            return committed(cluster) > after

        until(goes_on, "commits without the banned node")

        operate(tmp_path, "finish", "--reason", "good enough")
        until(lambda: kept.exit_status is not None, "the end of the other node")
        assert kept.exit_status == ExitCode.OK
        assert (kept.directory / "checkpoint" / "model.safetensors").is_file()
        until(lambda: coordinator.exit_status is not None, "the end of the coordinator")
        assert coordinator.exit_status == ExitCode.OK
        last = json.loads((coordinator.directory / "status.json").read_text())
        assert "the operator ended the run" in last["reason"]
        assert last["reason"].endswith("good enough")
    log = json.loads(operate(tmp_path, "audit", "--json", "-"))
    assert [row["act"]["type"] for row in log["acts"]] == ["pause", "resume", "ban", "finish"]
    assert log["head"] == last["operator"]["audit_head"]

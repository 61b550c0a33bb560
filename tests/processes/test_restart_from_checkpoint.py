"""Every node of a run and its disk is lost; a checkpoint brings the run back.

One node trains and leaves. Its directory is deleted except for a copy of its checkpoint. A
coordinator that is started with the checkpoint, and two fresh nodes, one of which has it, go on; an
audit understands the log.
"""

import json
import shutil
from pathlib import Path

import pytest

from coordinator.journal import JOURNAL_NAME, Journal
from lockstep.audit.settings import VerifySettings
from lockstep.audit.verify import verify
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = pytest.mark.slow

STEPS = 30
BEFORE = 4
"""Steps until the disk is lost, at least."""


def cluster_in(directory: Path, nodes: int) -> Cluster:
    data, run_file = directory / "data", directory / "run.toml"
    return Cluster(ClusterSettings(directory, run_file, data, nodes=nodes))


@pytest.fixture(scope="module")
def revived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The directory of the finished run, and the number of its commits before the loss."""
    directory = tmp_path_factory.mktemp("revived")
    tiny_corpus(directory / "data")
    spec = tiny_spec(steps=STEPS, members=1, lease_ms=3_000, copies_min=0, stretch=2)
    write_run_file(directory / "run.toml", spec, force=True)
    with cluster_in(directory, 1) as cluster:
        cluster.start()
        watch_until(cluster, lambda: committed(cluster) >= BEFORE, "some commits")
        cluster.stop()
        cluster.coordinator.refresh()
        before = committed(cluster)
    shutil.copytree(directory / "node-0" / "checkpoint", directory / "kept")
    shutil.rmtree(directory / "node-0")
    with cluster_in(directory, 2) as cluster:
        cluster.coordinator.arguments += ("--restart-from", str(directory / "kept"))
        cluster.nodes[0].arguments += ("--restart-from", str(directory / "kept"))
        cluster.start()
        watch_until(cluster, lambda: committed(cluster) > before, "commits after the restart", 240)
        watch_until(cluster, lambda: cluster.finished, "the end of the run", 240)
        cluster.wait()
        assert cluster.coordinator.status["steps"]["committed"] == STEPS
        digests = {node.status["state_digest"] for node in cluster.nodes}
        assert digests == {cluster.coordinator.status["digests"]["last"]}
    return directory, before


def test_the_run_goes_on_from_the_checkpoint_with_the_steps_that_were_left(
    revived: tuple[Path, int],
) -> None:
    directory, before = revived
    journal = Journal(directory / "coordinator" / JOURNAL_NAME)
    rounds = [row.round for row in journal.commits(-1, 1000)]
    (entry,) = journal.entries(0, 10_000)
    journal.close()
    assert len(rounds) == STEPS
    assert entry.after_round == rounds[before - 1]


def test_an_audit_begins_at_the_checkpoint_and_agrees_with_what_came_of_it(
    revived: tuple[Path, int],
) -> None:
    directory, before = revived
    path = directory / "found.json"
    verify(
        VerifySettings(
            str(directory / "coordinator"),
            checkpoint=directory / "node-0" / "checkpoint",
            snapshot=directory / "kept",
            json_path=str(path),
            threads=1,
        )
    )
    found = json.loads(path.read_text())
    assert found["verified"]
    assert (found["commits"], found["restarts"]) == (STEPS, 1)
    assert found["replayed"] == STEPS - before
    assert found["checkpoint"].endswith(f"equals the state of the log at round {found['round']}")

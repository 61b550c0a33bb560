"""Summers in real processes: nodes add for each other, one of them is killed in the middle of it
and comes back, and `lockstep verify` adds again.

The others go on without the killed node, at a pace that has nothing to do with how long its start
takes. So the run has no end of its own: the operator ends it, some rounds after that node is back.
"""

import pytest

from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from tests.processes.operating import operate
from tests.processes.summing import added_again, commits_of, summing_spec
from tests.processes.test_cluster import came_back, kill
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus

NODES = 4

STEPS = 100_000
"""The run does not come to its end by itself."""

COMMITS = 24
"""The least number of commits at its end: the loss is far below its start by then."""

TOGETHER = 4
"""Commits after the killed node is back."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A run that has ended, of nodes of which one was killed with SIGKILL meanwhile: while it is
    away the others are enough for sums.
    """
    directory = tmp_path_factory.mktemp("sums")
    data, run_file = tiny_corpus(directory / "data"), directory / "run.toml"
    spec = summing_spec(steps=STEPS, members=NODES, lease_ms=3_000, share_samples_first=6)
    write_run_file(run_file, spec, force=True)
    with Cluster(ClusterSettings(directory, run_file, data, nodes=NODES)) as cluster:
        cluster.start()
        watch_until(cluster, lambda: committed(cluster) >= 3, "three commits")
        kill(cluster.nodes[1])
        watch_until(cluster, lambda: came_back(cluster.nodes[1]), "the killed node in a round")
        last = max(COMMITS, committed(cluster) + TOGETHER)
        watch_until(cluster, lambda: committed(cluster) >= last, f"{last} commits")
        operate(directory, "finish")
        watch_until(cluster, lambda: cluster.finished, "the end of the run")
        cluster.wait()
    return cluster


@pytest.mark.slow
def test_nodes_that_add_for_each_other_end_equal_although_one_was_killed(finished: Cluster) -> None:
    status = finished.coordinator.status
    assert status["steps"]["committed"] >= COMMITS
    assert status["digests"]["agreed"]
    assert status["digests"]["rounds_disputed"] == 0
    assert {node.status["state_digest"] for node in finished.nodes} == {status["digests"]["last"]}
    assert status["loss"] < 4.0, "a byte drawn evenly costs 5.5 nats"


@pytest.mark.slow
def test_most_rounds_are_committed_as_sums_of_all_ranges(finished: Cluster) -> None:
    commits = commits_of(finished)
    summed = [commit for commit in commits if commit.sums]
    assert len(summed) > len(commits) / 2, f"{len(summed)} of {len(commits)}"
    whole = [each for each in summed if each.sums and len(each.sums.results) == each.sums.ranges]
    assert len(whole) >= len(summed) - 2, "one fault costs a range or two, not a round"
    assert any(len(commit.entries) == NODES for commit in summed)


@pytest.mark.slow
def test_verify_replays_the_sums_and_adds_again(finished: Cluster) -> None:
    verified = added_again(finished)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert f"{committed(finished)} commits" in verified.stdout
    assert f"lead to state {finished.coordinator.status['digests']['last']}" in verified.stdout

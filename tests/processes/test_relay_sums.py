"""A relay that adds, in real processes: it signs results, is killed in the middle of it and comes
back, and `lockstep verify` adds again.
"""

from collections import defaultdict

import pytest

from coordinator.journal import JOURNAL_NAME, Journal
from coordinator.machine.events.inputs import Summed
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from protocol.ids import Digest
from tests.processes.summing import added_again, commits_of, summing_spec
from tests.processes.test_cluster import kill
from tests.processes.watching import PATIENCE_S, watch_until
from tests.support.tiny import tiny_corpus

STEPS, NODES = 30, 3


pytestmark = pytest.mark.timeout(1500)


def ranges_added(cluster: Cluster) -> int:
    """Committed results that the relay has signed, as far as the coordinator remembers."""
    return sum(row["ranges_added"] for row in cluster.coordinator.status.get("relays", ()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A run that has ended, of nodes and a relay that adds, which was killed with SIGKILL and has
    added again.
    """
    directory = tmp_path_factory.mktemp("relay-sums")
    data, run_file = tiny_corpus(directory / "data"), directory / "run.toml"
    spec = summing_spec(steps=STEPS, members=NODES, lease_ms=3_000, share_samples_first=6)
    write_run_file(run_file, spec, force=True)
    settings = ClusterSettings(directory, run_file, data, nodes=NODES, relay=True)
    with Cluster(settings) as cluster:
        (relay,) = cluster.relays
        relay.arguments += ("--sums",)
        cluster.start()
        watch_until(cluster, lambda: ranges_added(cluster) > 0, "a result of the relay")
        before = ranges_added(cluster)
        kill(relay)
        watch_until(cluster, lambda: not ranges_added(cluster), "a run without it")
        watch_until(cluster, lambda: ranges_added(cluster) > before, "another result of it")
        watch_until(cluster, lambda: cluster.finished, "the end of the run", 2 * PATIENCE_S)
        cluster.wait()
    return cluster


@pytest.mark.slow
def test_the_relays_results_are_in_commits_before_and_after_it_was_killed(
    finished: Cluster,
) -> None:
    results = {
        (commit.round, result.number): result.digest
        for commit in commits_of(finished)
        for result in (commit.sums.results if commit.sums else ())
    }
    rounds = defaultdict[int, set[Digest]](set)
    (relay,) = finished.relays
    journal = Journal(finished.coordinator.directory / JOURNAL_NAME)
    try:
        for _, _, event in journal.numbered_events(0):
            if isinstance(event, Summed) and event.peer == relay.status["peer_id"]:
                assert results.get((event.round, event.number), event.digest) == event.digest
                rounds[event.round].add(event.digest)
    finally:
        journal.close()
    signed = [round for round in rounds if rounds[round] & set(results.values())]
    without = {commit.round for commit in commits_of(finished)} - rounds.keys()
    assert without, "the run went on while it was away"
    assert min(signed) < min(without)
    assert max(signed) > min(without)


@pytest.mark.slow
def test_its_death_costs_one_round_at_most_and_the_replicas_end_equal(finished: Cluster) -> None:
    status = finished.coordinator.status
    assert status["steps"]["committed"] == STEPS
    assert status["steps"]["skipped"] <= 1
    assert status["digests"]["rounds_disputed"] == 0
    assert {node.status["state_digest"] for node in finished.nodes} == {status["digests"]["last"]}


@pytest.mark.slow
def test_verify_adds_again_what_the_relay_has_added(finished: Cluster) -> None:
    verified = added_again(finished)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert f"{STEPS} commits" in verified.stdout
    assert f"lead to state {finished.coordinator.status['digests']['last']}" in verified.stdout

"""Clusters of real processes: coordinators that get killed, parents that die, orders that are
impossible.
"""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from lockstep.service.order_socket import Look, send
from lockstep.service.tokens import TOKEN_BYTES
from protocol.errors import SettingsError
from protocol.runfile import RunSpec
from tests.lockstep.shared import kill, require_refused, visitor, wait_for_end

PARENT = """
import sys
from pathlib import Path
from lockstep.cluster.local import Cluster, ClusterSettings
directory = Path(sys.argv[1])
cluster = Cluster(ClusterSettings(directory, directory / "run.toml", directory / "data", 0))
cluster.start()
print(cluster.coordinator.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def settings(tmp_path: Path) -> ClusterSettings:
    """A coordinator without nodes: it waits for members for ever."""
    write_run_file(tmp_path / "run.toml", RunSpec())
    return ClusterSettings(tmp_path, tmp_path / "run.toml", tmp_path / "data", nodes=0)


@pytest.fixture
def cluster(settings: ClusterSettings) -> Iterator[Cluster]:
    with Cluster(settings) as cluster:
        yield cluster


def test_a_started_coordinator_has_an_address_and_a_status(cluster: Cluster) -> None:
    cluster.start()
    assert cluster.address.startswith("127.0.0.1:")
    assert cluster.watch() == []
    assert cluster.coordinator.status["steps"]["committed"] == 0
    assert not cluster.finished


def test_a_killed_coordinator_is_started_again_where_nodes_look_for_it(cluster: Cluster) -> None:
    cluster.start()
    cluster.watch()
    run_id, pid = cluster.coordinator.status["run_id"], cluster.coordinator.pid
    kill(cluster.coordinator)
    assert cluster.watch() == ["coordinator was killed by signal 9; starting it again"]
    assert cluster.wait_for_coordinator() == cluster.address
    cluster.watch()
    assert cluster.coordinator.status["run_id"] == run_id
    assert cluster.coordinator.pid != pid


def test_stopping_leaves_no_process_and_no_note(settings: ClusterSettings) -> None:
    with Cluster(settings) as cluster:
        cluster.start()
        pid = cluster.coordinator.pid
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert cluster.coordinator.note() is None


def test_a_cluster_whose_parent_is_killed_ends_by_itself(settings: ClusterSettings) -> None:
    command = [sys.executable, "-c", PARENT, str(settings.directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        coordinator = int(parent.stdout.readline())
        parent.kill()
    wait_for_end(coordinator)


def test_an_error_that_stays_is_passed_on_with_the_child_s_last_words(
    settings: ClusterSettings,
) -> None:
    settings.run_file.write_text("[algorithm]\ntop_k = 5000\n")
    with (
        Cluster(settings) as cluster,
        pytest.raises(SettingsError, match=r"algorithm\.top_k.*5000"),
    ):
        cluster.start()


def test_settings_of_the_person_s_environment_do_not_reach_the_cluster(
    settings: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_ADMIN", "nonsense")
    monkeypatch.setenv("LOCKSTEP_SETTINGS", "/nowhere.toml")
    with Cluster(settings) as cluster:
        cluster.start()
        assert cluster.watch() == []


def test_a_relay_is_known_to_the_coordinator_before_any_node_is_started(
    settings: ClusterSettings,
) -> None:
    with Cluster(dataclasses.replace(settings, relay=True)) as cluster:
        cluster.start()
        (relay,) = cluster.relays
        assert relay.started_s > cluster.coordinator.started_s
        assert [row["name"] for row in cluster.coordinator.status["relays"]] == ["relay"]
        pid = relay.pid
        kill(relay)
        assert cluster.watch() == ["relay was killed by signal 9; starting it again"]
        assert relay.pid != pid


def test_a_relay_that_cannot_start_is_told_with_its_last_words(settings: ClusterSettings) -> None:
    class Impossible(Cluster):
        def listens(self, name: str) -> str:
            return "127.0.0.1:0" if name == "coordinator" else "127.0.0.1:99999"

    with (
        Impossible(dataclasses.replace(settings, relay=True)) as cluster,
        pytest.raises(SettingsError, match=r"the relay did not start: .*127\.0\.0\.1:99999"),
    ):
        cluster.start()


def test_transports_are_given_to_the_nodes_in_turn_and_the_relay_has_them_all(
    settings: ClusterSettings,
) -> None:
    asked = dataclasses.replace(settings, nodes=3, relay=True, links=("libp2p", "grpc,libp2p"))
    cluster = Cluster(asked)
    given = [
        child.arguments[child.arguments.index("--links") + 1]
        for child in (*cluster.nodes, *cluster.relays)
    ]
    assert given == ["libp2p", "grpc,libp2p", "libp2p", "libp2p,grpc"]


def test_where_tokens_admit_the_relay_has_one_and_a_visitor_is_told_to_ask_for_one(
    settings: ClusterSettings,
) -> None:
    with Cluster(dataclasses.replace(settings, relay=True, by_token=True)) as cluster:
        cluster.start()
        (relay,) = cluster.relays
        assert [row["name"] for row in cluster.coordinator.status["relays"]] == ["relay"]
        assert cluster.coordinator.status["operator"]["admission"] == "token"
        assert relay.environment["LOCKSTEP_TOKEN"] not in " ".join(relay.arguments)
        (token,) = send(cluster.coordinator.directory, Look())["document"]["admission"]["tokens"]
        assert (token["uses"], token["uses_max"], token["vouches"]) == (1, 1, False)
        require_refused(visitor(cluster.address, settings.directory / "visitor"))
        kill(cluster.coordinator)
        cluster.watch()
        cluster.wait_for_coordinator()
        require_refused(visitor(cluster.address, settings.directory / "visitor"))


def test_nodes_share_a_token_that_vouches_for_them(settings: ClusterSettings) -> None:
    with Cluster(dataclasses.replace(settings, nodes=2, by_token=True)) as cluster:
        cluster.start()
        (token,) = send(cluster.coordinator.directory, Look())["document"]["admission"]["tokens"]
        assert (token["uses_max"], token["vouches"]) == (2, True)
        secrets = {node.environment["LOCKSTEP_TOKEN"] for node in cluster.nodes}
        assert [len(secret) for secret in secrets] == [2 * TOKEN_BYTES]

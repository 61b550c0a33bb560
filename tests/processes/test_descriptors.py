"""Processes that run short of descriptors, because strangers take them or the machine has none, go
on: coordinator, relay and nodes of one run, which may open as few files as on macOS.
"""

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from lockstep.service.tokens import new_token
from protocol.ids import RunId
from tests.processes.siege.frames import OPENING
from tests.processes.strangers.client import Target
from tests.processes.strangers.door import node_ports
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = pytest.mark.slow

DESCRIPTORS = 256
"""The limit of open files on macOS, and in this run no process may raise it."""

IDLE_CONNECTIONS = 1100
"""More than the descriptors that a process usually has."""

WATCH_S = 15.0
"""Time without strangers, and with them."""

SHORTAGE_S = 8.0
"""More than a payload's way: every process needs a file in it."""

ROUND_MS = {"compute_ms": 4_000, "publish_ms": 1_000, "exchange_ms": 1_500}
"""A public round lasts at least a quarter of its compute time: the clock decides the pace."""


BOUNDED = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")
"""Goes before a command whose process has this limit, and may not raise it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Child]]:
    """Two nodes at work beside a relay, and a third that has not begun."""
    directory = tmp_path_factory.mktemp("descriptors")
    spec = tiny_spec(steps=1_000_000, members=2, quorum=2, overlap=0, **ROUND_MS)
    public = spec.membership.model_copy(update={"trust": "public"})
    run_file = spec.model_copy(update={"membership": public})
    write_run_file(directory / "run.toml", run_file, force=True)
    data = tiny_corpus(directory / "data")
    settings = ClusterSettings(
        directory, directory / "run.toml", data, nodes=3, relay=True, by_token=True
    )
    spawn = Child._spawn
    with Cluster(settings) as cluster, pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            Child, "_spawn", lambda self, command, log: spawn(self, [*BOUNDED, *command], log)
        )
        fresh = cluster.nodes.pop()
        cluster.start()
        watch_until(cluster, lambda: committed(cluster) >= 4, "first commits")
        yield cluster, fresh


def commits_in(cluster: Cluster, seconds: float) -> int:
    """Commits in this time, in which no process may end."""
    before, until_s = committed(cluster), time.monotonic() + seconds
    while time.monotonic() < until_s:
        assert [child.obituary() for child in cluster.children if child.died] == []
        cluster.watch()
        time.sleep(0.2)
    return committed(cluster) - before


@contextlib.contextmanager
def idle_connections(ports: list[str]) -> Iterator[None]:
    """`IDLE_CONNECTIONS` to each port for the block, of one stranger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        for port in ports * IDLE_CONNECTIONS:
            with contextlib.suppress(ConnectionError):  # one too many
                idle = socket.create_connection(("127.0.0.1", int(port)), 10)
                opened.enter_context(idle).sendall(OPENING)
        yield


def test_strangers_leave_every_process_the_descriptors_that_it_needs(
    cluster: tuple[Cluster, Child], tmp_path: Path
) -> None:
    run, fresh = cluster
    run_id = RunId(str(run.coordinator.status["run_id"]))
    target = Target(run.address, run.address, run_id, "127.0.0.1", tmp_path)
    quiet = commits_in(run, WATCH_S)
    ports = [*asyncio.run(node_ports(target)), run.address.rpartition(":")[2]]
    assert len(set(ports)) == 4, "expected those of two nodes, a relay and the coordinator"
    with idle_connections(ports):
        attacked = commits_in(run, WATCH_S)
    assert attacked >= quiet / 2
    token, *_ = new_token(run.coordinator.directory, "fresh", uses=1, vouches=True)
    fresh.environment["LOCKSTEP_TOKEN"] = token
    run.nodes.append(fresh)
    fresh.start(run.address)
    watch_until(run, lambda: fresh.status.get("rounds", {}).get("counted"), "a payload of it")
    assert [child.restarts for child in run.children] == [0] * 5


def test_a_shortage_passes_and_no_process_has_ended(cluster: tuple[Cluster, Child]) -> None:
    run, _ = cluster
    limits = {}
    for child in run.children:
        assert child.pid
        limits[child.pid] = resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (8, DESCRIPTORS))
    commits_in(run, SHORTAGE_S)
    waiting = "waits for descriptors or memory"
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    lines = [child.log.read_text().count(waiting) for child in run.nodes]
    assert sum(lines) >= 1
    assert max(lines) <= 3  # one for each time that it began
    before = committed(run)
    watch_until(run, lambda: committed(run) >= before + 3, "further commits")
    assert [child.restarts for child in run.children] == [0] * len(run.children)
    watch_until(run, lambda: run.coordinator.status["digests"]["agreed"], "equal states")

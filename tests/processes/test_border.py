"""A host without a key, at the port of a real coordinator: what it says beneath a call costs the
process little memory, and newcomers are let in meanwhile. `tests.benchmarks.strangers` plays the
same beside a run at work.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from protocol.ids import RunId
from tests.processes.strangers import beneath
from tests.processes.strangers.client import Target
from tests.processes.strangers.run import public_spec, resident
from tests.processes.watching import watch_until
from tests.support.tiny import tiny_corpus

DESCRIPTORS = 1024
"""The limit of open files on most machines, and here no process may raise it."""

BOUNDED = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")
"""Goes before a command whose process has this limit."""

ATTACK_S = 6.0
MEMORY_BYTES = 64_000_000
ATTACKS = ("header-blocks", "half-messages", "half-calls", "silent-crowd")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A coordinator alone."""
    directory = tmp_path_factory.mktemp("border")
    write_run_file(directory / "run.toml", public_spec(), force=True)
    data = tiny_corpus(directory / "data")
    spawn = Child._spawn
    with (
        Cluster(ClusterSettings(directory, directory / "run.toml", data, nodes=0)) as cluster,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(
            Child, "_spawn", lambda self, command, log: spawn(self, [*BOUNDED, *command], log)
        )
        cluster.start()
        watch_until(cluster, lambda: cluster.coordinator.status.get("run_id"), "a status")
        yield cluster


@pytest.mark.parametrize("name", ATTACKS)
def test_a_host_without_a_key_costs_little_memory_and_keeps_nobody_out(
    name: str, cluster: Cluster
) -> None:
    child = cluster.coordinator
    run_id = RunId(str(child.status["run_id"]))
    honest = Target(cluster.address, cluster.address, run_id, "127.0.0.1", child.directory)
    before = resident(child)
    with strangers(honest, name) as attack:
        most = asyncio.run(_watched(child, honest, attack))
    assert most - before <= MEMORY_BYTES
    assert honest.did["newcomers let in"] >= 2, honest.did
    assert honest.did["newcomers kept out"] == 0, honest.did
    child.refresh()
    assert child.exit_status is None


@contextlib.contextmanager
def strangers(target: Target, name: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that attacks, and must have done so."""
    command = [sys.executable, "-m", "tests.processes.strangers", name, "127.0.0.70"]
    told = {"address": target.address, "run_id": target.run_id, "seconds": ATTACK_S}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as attack:
        assert attack.stdin
        assert attack.stdout
        attack.stdin.write(json.dumps(told | {"directory": str(target.directory)}) + "\n")
        attack.stdin.flush()
        yield attack
        assert json.loads(attack.stdout.read().splitlines()[-1])["connected"]


async def _watched(child: Child, honest: Target, attack: "subprocess.Popen[str]") -> int:
    """Most bytes of the process in memory during an attack; newcomers knock meanwhile."""
    most, knocking = 0, asyncio.create_task(beneath.knocking(honest))
    while attack.poll() is None:
        most = max(most, resident(child))
        await asyncio.sleep(0.1)
    knocking.cancel()
    await asyncio.gather(knocking, return_exceptions=True)
    return most

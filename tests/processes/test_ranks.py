"""Nodes of many ranks in real processes: a run of nodes with 1, 2 and 4 ranks stays equal while
ranks are killed and stopped, and torchrun's ranks are one node too.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from lockstep.service.serve import NOTE_NAME, read_note
from tests.processes.watching import PATIENCE_S, committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]


def ranks_of(pid: int | None) -> dict[int, int]:
    """Process ids of the ranks that a process, and those below it, have started, by rank."""
    found, threads = dict[int, int](), list[Path]()
    with suppress(FileNotFoundError):
        threads = [*Path(f"/proc/{pid}/task").iterdir()]
    for thread in threads:
        for child in map(int, read(thread / "children").split()):
            environment = read(Path(f"/proc/{child}/environ")).split(b"\0")
            words = dict(word.partition(b"=")[::2] for word in environment)
            if b"MASTER_PORT" in words:
                found[int(words[b"RANK"])] = child
            found |= ranks_of(child)
    return found


def read(path: Path) -> bytes:
    """A file of a thread or a process; empty where that has ended."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def run_of(place: Path, steps: int, nodes: int, members: int) -> ClusterSettings:
    spec = tiny_spec(
        steps=steps,
        members=members,
        quorum=1,
        overlap=1,
        lease_ms=12_000,
        batch_samples_max=12 * members,
        share_samples_first=6,
    )
    write_run_file(place / "run.toml", spec, force=True)
    data = tiny_corpus(place / "data")
    return ClusterSettings(place, place / "run.toml", data, nodes=nodes)


def test_a_run_of_nodes_with_1_2_and_4_ranks_stays_equal_although_ranks_are_lost(
    tmp_path: Path,
) -> None:
    with Cluster(run_of(tmp_path, steps=1_000_000, nodes=3, members=3)) as cluster:
        _, two, four = cluster.nodes
        two.arguments += ("--device", "cpu,cpu")
        four.arguments += ("--device", "cpu,cpu,cpu,cpu")
        cluster.start()

        def goes_on(what: str) -> None:
            """Each node counts in some rounds from now on."""
            before = [node.status.get("rounds", {}).get("counted", 0) for node in cluster.nodes]

            def counted() -> bool:
                now = [node.status.get("rounds", {}).get("counted", 0) for node in cluster.nodes]
                return all(
                    then != many and many > 1 for then, many in zip(before, now, strict=True)
                )

            watch_until(cluster, counted, what, PATIENCE_S)

        goes_on("a round of each node")
        assert [len(node.status["ranks"]) for node in cluster.nodes] == [0, 2, 4]
        assert two.status["hardware"].startswith("2 x ")
        assert all(each["memory_bytes"] > 10**8 for each in four.status["ranks"])
        assert sum(each["samples_per_second"] is not None for each in four.status["ranks"]) > 1
        os.kill(ranks_of(four.pid)[3], signal.SIGKILL)
        watch_until(cluster, lambda: "begins anew" in four.log.read_text(), "a fault", PATIENCE_S)
        os.kill(ranks_of(two.pid)[1], signal.SIGSTOP)
        watch_until(cluster, lambda: "begins anew" in two.log.read_text(), "a fault", PATIENCE_S)
        goes_on("a round of each node after the faults")
        four.ask_to_leave()
        assert four.wait(time.monotonic() + PATIENCE_S) == 0, four.last_words()
        four.arguments = (*four.arguments[:-1], "cpu,cpu")
        four.start(*cluster._arguments(four))
        goes_on("a round of each node, of which one goes on with half of its ranks")
        assert [len(node.status["ranks"]) for node in cluster.nodes] == [0, 2, 2]
        cluster.coordinator.refresh()
        status = cluster.coordinator.status
        left = ranks_of(four.pid) | ranks_of(two.pid)
        for node in cluster.nodes:
            node.ask_to_leave()
        for node in cluster.nodes:
            assert node.wait(time.monotonic() + PATIENCE_S) == 0, node.last_words()
    assert "rank 3 (x86_64 CPU" in four.log.read_text() or sys.platform != "linux"
    assert "was killed by SIGKILL; what is saved stays" in four.log.read_text()
    assert "gave no sign of life for" in two.log.read_text()
    assert "saved state cannot be used" not in four.log.read_text()
    assert not [pid for pid in left.values() if Path(f"/proc/{pid}").exists()]
    assert status["digests"]["agreed"]
    assert status["digests"]["rounds_checked"] > 3
    assert status["digests"]["rounds_disputed"] == 0


def test_ranks_of_torchrun_are_one_node_that_comes_back_and_finishes_its_round(
    tmp_path: Path,
) -> None:
    with Cluster(run_of(tmp_path, steps=1_000_000, nodes=0, members=1)) as cluster:
        cluster.start()
        options = {"--directory": tmp_path / "node", "--data": tmp_path / "data", "--device": "cpu"}
        join = ["-m", "lockstep", "join", cluster.address, "--on-battery", "--micro-batch", "8"]
        join += [str(word) for option in options.items() for word in option]
        join += ["--nice", "0", "--admin", "127.0.0.1:0"]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        launch += ["--nproc-per-node", "2"]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}

        def until(condition: Callable[[], object], what: str) -> None:
            deadline_s = time.monotonic() + PATIENCE_S
            while not condition():
                assert time.monotonic() < deadline_s, f"{what}: {said.read_text()[-3000:]}"
                cluster.coordinator.refresh()
                time.sleep(0.1)

        said = tmp_path / "said"
        with said.open("wb") as log:
            command = [*launch, "--max-restarts", "1", *join]
            node = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            try:
                until(lambda: committed(cluster) > 2, "commits")
                note = read_note(tmp_path / "node" / NOTE_NAME) or {}
                with urllib.request.urlopen(f"{note['admin']}/status.json") as answer:
                    overhead = json.load(answer)["traffic"]["overhead_up_bytes"]
                again = subprocess.run(
                    [*launch, *join], capture_output=True, text=True, env=environment
                )
                os.kill(ranks_of(node.pid)[1], signal.SIGKILL)
                until(lambda: said.read_text().count(" started admin=") == 2, "a second start")
                cluster.coordinator.refresh()
                before = committed(cluster)
                until(lambda: committed(cluster) > before + 3, "commits after a rank was killed")
                node.send_signal(signal.SIGINT)
                node.wait(PATIENCE_S)
            finally:
                node.kill()
    assert 0 < overhead < 1_000_000, "what ranks exchange is no traffic"
    errors = [line for line in again.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, again.stderr
    assert "is at work in" in errors[0]
    assert f"exitcode  : {int(ExitCode.STORAGE)}" in again.stderr
    words = said.read_text()
    assert "left after its round; the same command goes on from here" in words
    assert "bug" not in words

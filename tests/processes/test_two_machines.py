"""Two machines at the ends of a cable are one node: two network namespaces, a veth pair between
them, torchrun on both; then rank 0 is killed, and later the cable is pulled.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from lockstep.service.serve import NOTE_NAME, read_note
from tests.lockstep.wan.lab.fixture import needs_ground
from tests.processes.watching import PATIENCE_S
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = [pytest.mark.slow, needs_ground]

NAMES = ("lockstep-two-a", "lockstep-two-b")
LINK = re.compile(r" join '(\S+)'")

OVERHEAD_MAX = 1_000_000
"""Bytes of a few rounds that this node may send beyond its own: some 80,000 are sent."""

ADDRESSES = ("192.168.7.1", "192.168.7.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def cable() -> Iterator[None]:
    """Two namespaces that reach each other, and nothing else."""
    try:
        for name in NAMES:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ends = ("type", "veth", "peer", "name", "eth0", "netns", NAMES[1])
        ip("link", "add", "eth0", "netns", NAMES[0], *ends)
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def until(condition: Callable[[], object], log: Path, what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what}: {log.read_text()[-3000:]}"
        time.sleep(0.2)


def overhead_of(directory: Path) -> int:
    """The bytes that the node on the first machine sent, beyond those that have an owner."""
    url = (read_note(directory / NOTE_NAME) or {})["admin"]
    ask = f"import urllib.request as web; print(web.urlopen('{url}/status.json').read().decode())"
    asking = ["ip", "netns", "exec", NAMES[0], sys.executable, "-c", ask]
    seen = subprocess.run(asking, check=True, capture_output=True, text=True)
    return int(json.loads(seen.stdout)["traffic"]["overhead_up_bytes"])


@pytest.mark.usefixtures("cable")
def test_two_machines_are_one_node_that_outlives_rank_0_and_says_when_the_cable_is_pulled(
    tmp_path: Path,
) -> None:
    spec = tiny_spec(steps=1_000_000, members=1, quorum=1, overlap=0, batch_samples_max=12)
    write_run_file(tmp_path / "run.toml", spec, force=True)
    data = tiny_corpus(tmp_path / "data")
    children = list[subprocess.Popen[bytes]]()

    def start(where: int, name: str, *words: str) -> Path:
        said = tmp_path / f"{name}.log"
        command = ["ip", "netns", "exec", NAMES[where], sys.executable, "-m", *words]
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": "eth0",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        with said.open("wb") as log:
            children.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
        return said

    def machine(where: int, link: str) -> Path:
        """The guide's command on one of the two."""
        launch = ("--nnodes", "2", "--node-rank", f"{where}", "--nproc-per-node", "1")
        launch += ("--max-restarts", "1")
        launch += ("--master-addr", ADDRESSES[0], "--master-port", "29500")
        join = ("-m", "lockstep", "join", link, "--yes", "--device", "cpu")
        join += ("--directory", str(tmp_path / f"node-{where}"), "--data", str(data))
        join += ("--nice", "0", "--on-battery", "--micro-batch", "4")
        return start(where, f"machine-{where}", "torch.distributed.run", *launch, *join)

    try:
        listen = ("--listen", f"{ADDRESSES[0]}:4000")
        folder = ("--directory", str(tmp_path / "coordinator"))
        coordinator = start(
            0,
            "coordinator",
            "lockstep",
            "coordinator",
            str(tmp_path / "run.toml"),
            *listen,
            *folder,
        )
        until(lambda: LINK.search(coordinator.read_text()), coordinator, "a link")
        link = LINK.findall(coordinator.read_text())[0]
        first, second = machine(0, link), machine(1, link)

        def commits() -> int:
            return coordinator.read_text().count("round committed")

        until(lambda: commits() > 3, first, "commits")
        overhead = overhead_of(tmp_path / "node-0")
        rank_0 = Path(f"/proc/{children[1].pid}/task/{children[1].pid}/children").read_text()
        os.kill(int(rank_0), signal.SIGKILL)
        before = commits()
        until(lambda: "rank 0 gave no sign of life" in second.read_text(), second, "its end")
        until(lambda: commits() > before + 3, first, "commits of the ranks that began anew")
        ip("-n", NAMES[1], "link", "set", "eth0", "down")
        children[1].wait(PATIENCE_S)
        words = first.read_text()
    finally:
        for child in children:
            child.kill()
        for name in NAMES:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in pids.stdout.split():
                subprocess.run(["kill", "-9", pid], capture_output=True)
        for child in children:
            child.wait()
    assert 0 < overhead < OVERHEAD_MAX, "seven million with what the ranks exchanged"
    assert "rank 1" in words, words[-3000:]
    assert f"exitcode  : {int(ExitCode.DEVICE)}" in words, words[-3000:]
    assert "gave no sign of life" in words, words[-3000:]
    assert "Traceback" not in second.read_text()[:2000]

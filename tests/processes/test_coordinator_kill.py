"""kill -9 in the middle of rounds: every commit that a node was told is on disk, and the same
directory continues from there.

The coordinator is a real process. Two scripted nodes drive rounds through it without a pause, and
SIGKILL ends it at whatever instruction it has reached.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from protocol.codec.commits import Commit
from protocol.handshake import public_bytes
from protocol.runfile import run_id
from tests.coordinator.client import (
    COORDINATOR_KEY,
    ScriptedNode,
    check_chain,
    node_key,
    opened,
    quiet_spec,
)

ROOT = Path(__file__).parents[2]
LIVES = 4
ROUNDS_PER_LIFE = 6
RUN = run_id(quiet_spec(), public_bytes(COORDINATOR_KEY))

PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.coordinator.client import quiet_spec, running

async def main():
    async with running(Path(sys.argv[1]), quiet_spec()) as process:
        print(process.address, flush=True)
        await process.finished()

asyncio.run(main())
"""


class Coordinator:
    """A coordinator in its own process."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-c", PROGRAM, str(directory)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the coordinator did not start"

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        assert self._process.wait(20) == -signal.SIGKILL
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Iterator[Coordinator]]:
    """One coordinator after the other on the same directory; the last is killed at the end."""
    started: list[Coordinator] = []

    def live() -> Iterator[Coordinator]:
        while True:
            started.append(Coordinator(tmp_path))
            yield started[-1]

    yield live()
    started[-1].kill()


async def train_until_it_dies(node: ScriptedNode, other: ScriptedNode, heard: list[Commit]) -> None:
    """Work on every round without a pause; append the commits that the node receives to `heard`."""

    async def work(round: int) -> None:
        await node.announce(round)
        await node.hold(round, other.peer)

    welcome = await node.join()
    await work(welcome.decided_round + 1)  # it may have been under way when the coordinator died
    while True:
        message = await node.hear("opened", "committed")
        if message.WhichOneof("kind") == "opened":
            await work(message.opened.round)
        else:
            heard.append(opened(message.committed.commit))


async def whole_log(address: str) -> list[Commit]:
    async with ScriptedNode(address, RUN, node_key(3)) as reader:
        log: list[Commit] = []
        while page := (await reader.commits_after(log[-1].round if log else -1))[1]:
            log += page
        return log


async def a_life(coordinator: Coordinator, heard: list[Commit]) -> None:
    """Train for some rounds and kill the coordinator while the next is under way. The commits that
    the nodes have received until then are in `heard`.
    """
    before = len(heard)
    async with (
        ScriptedNode(coordinator.address, RUN, node_key(1)) as one,
        ScriptedNode(coordinator.address, RUN, node_key(2)) as two,
    ):
        training = [
            asyncio.create_task(train_until_it_dies(*pair, heard))
            for pair in ((one, two), (two, one))
        ]
        async with asyncio.timeout(60):
            while len(heard) < before + 2 * ROUNDS_PER_LIFE:
                done, _ = await asyncio.wait(training, timeout=0.001)
                assert not done, f"a node stopped before the kill: {done}"
        coordinator.kill()
        ends = await asyncio.wait_for(asyncio.gather(*training, return_exceptions=True), 20)
        assert all(
            isinstance(end, grpc.aio.AioRpcError | asyncio.InvalidStateError | AssertionError)
            for end in ends
        )


async def test_a_killed_coordinator_loses_no_commit_and_makes_none_twice(
    lives: Iterator[Coordinator],
) -> None:
    heard: list[Commit] = []
    for _ in range(LIVES):
        await a_life(next(lives), heard)
    log = await whole_log(next(lives).address)
    by_round = {commit.round: commit for commit in log}
    assert len(by_round) == len(log) >= LIVES * ROUNDS_PER_LIFE
    for commit in heard:
        assert by_round[commit.round] == commit, (
            f"round {commit.round} was told and is not, or is otherwise, on disk"
        )
    check_chain(RUN, log)
    assert [commit.step for commit in log] == list(range(len(log)))

"""Whole nodes, one of which computes wrong results, once or always: healed or refused, and the
others go on.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from node.replica.digest import state_digest
from node.replica.replica import Replica
from protocol.errors import DivergedError
from tests.node.test_process import NodeTask, coordinator_of
from tests.support.tiny import tiny_corpus, tiny_spec
from tests.support.waiting import PATIENCE_SECONDS

STEPS = 16


def break_replica(node: NodeTask, wrong: Callable[[int], bool]) -> None:
    """Move one parameter by its last bit after each application whose number is `wrong`. To flip
    the bit would not do: two flips may leave the right state, and a node that agrees in between is
    not wrong twice in a row.
    """
    replica: Replica = node.process.started.replica
    right, applications = replica.apply, iter(range(10**9))

    def apply(*arguments: object) -> int:
        digest = right(*arguments)  # type: ignore[arg-type]
        if wrong(next(applications)):
            next(iter(replica.committed.values())).view(torch.int32).view(-1)[0] += 1
            replica.digest = digest = state_digest(replica.committed)
        return digest

    replica.apply = apply  # type: ignore[method-assign]


class BrokenNode(NodeTask):
    """A node whose memory or processor is at fault."""

    wrong: Callable[[int], bool] = staticmethod(lambda number: True)

    async def __aenter__(self) -> "BrokenNode":
        await self.process.start()
        break_replica(self, self.wrong)
        self.task = asyncio.create_task(self.process.run())
        return self


class NodeOfOneFlip(BrokenNode):
    """Its fifth application goes wrong, and no other."""

    wrong = staticmethod(lambda number: number == 4)


async def test_a_flipped_bit_is_found_and_healed_by_a_replay(tmp_path: Path) -> None:
    data = tiny_corpus(tmp_path / "data")
    async with coordinator_of(
        tiny_spec(steps=STEPS, members=3), tmp_path / "coordinator"
    ) as coordinator:
        one, two = (NodeTask(coordinator.address, tmp_path, data, number) for number in range(2))
        flipped = NodeOfOneFlip(coordinator.address, tmp_path, data, 2)
        async with one, two, flipped:
            reasons = [await node.ended() for node in (one, two, flipped)]
            statuses = [node.process.status() for node in (one, two, flipped)]
            status = coordinator.status()
    assert reasons == [f"all {STEPS} steps are done"] * 3
    assert [node["resyncs"] for node in statuses] == [0, 0, 1]
    assert {node["state_digest"] for node in statuses} == {status["digests"]["last"]}
    assert status["digests"]["rounds_disputed"] == 1


async def test_one_against_one_the_replay_decides_and_nobody_is_refused(tmp_path: Path) -> None:
    data = tiny_corpus(tmp_path / "data")
    async with coordinator_of(tiny_spec(steps=STEPS), tmp_path / "coordinator") as coordinator:
        one = NodeTask(coordinator.address, tmp_path, data, 0)
        flipped = NodeOfOneFlip(coordinator.address, tmp_path, data, 1)
        async with one, flipped:
            reasons = [await node.ended() for node in (one, flipped)]
            statuses = [node.process.status() for node in (one, flipped)]
            status = coordinator.status()
    assert reasons == [f"all {STEPS} steps are done"] * 2
    assert [node["resyncs"] for node in statuses] == [1, 1]
    assert {node["state_digest"] for node in statuses} == {status["digests"]["last"]}


async def test_a_machine_that_is_always_wrong_ends_with_the_reason_and_a_restart_does_not_help(
    tmp_path: Path,
) -> None:
    data = tiny_corpus(tmp_path / "data")
    async with coordinator_of(
        tiny_spec(steps=STEPS, members=3), tmp_path / "coordinator"
    ) as coordinator:
        one, two = (NodeTask(coordinator.address, tmp_path, data, number) for number in range(2))
        broken, again = (BrokenNode(coordinator.address, tmp_path, data, 2) for _ in range(2))
        async with one, two:
            async with broken:
                with pytest.raises(
                    DivergedError, match="removed this node: this machine computes wrong results"
                ):
                    await broken.ended()
                assert broken.process.status()["resyncs"] == 1
            async with again:
                with pytest.raises(
                    DivergedError, match="wrong results: its key is refused for 60 more minutes"
                ):
                    await again.ended()
            for node in (one, two):
                await node.ended()
            await asyncio.wait_for(coordinator.finished(), PATIENCE_SECONDS)
            status = coordinator.status()
            statuses = [node.process.status() for node in (one, two)]
    assert status["steps"]["committed"] == STEPS
    assert {node["state_digest"] for node in statuses} == {status["digests"]["last"]}
    assert [node["resyncs"] for node in statuses] == [0, 0]


def setup_module() -> None:
    torch.set_num_threads(1)

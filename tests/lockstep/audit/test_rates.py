"""Nodes and audits go on over changes of length and rate that the operator has signed."""

import asyncio
import json
from pathlib import Path

import pytest
import torch

from coordinator.machine.events.acts import Extend, Rate
from lockstep.exit_codes import ExitCode
from tests.lockstep.audit.runs import coordinator_in, spec_of
from tests.lockstep.audit.test_verify import verified
from tests.node.test_process import NodeTask
from tests.support.tiny import tiny_corpus
from tests.support.waiting import PATIENCE_SECONDS, until


async def _extended(directory: Path) -> None:
    data = tiny_corpus(directory / "data")
    coordinator = coordinator_in(directory, spec_of(100_000))
    await coordinator.start()
    try:
        nodes = [NodeTask(coordinator.address, directory, data, number) for number in range(2)]
        async with nodes[0], nodes[1]:
            for order in (Rate(0.004), Extend(5)):
                await until(lambda: coordinator.rounds.state.head_round >= 1)
                await coordinator.desk.order(order)
                head = coordinator.rounds.state.head_round
                await until(lambda head=head: coordinator.rounds.state.head_round >= head + 2)
            nodes[0].process.leave()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await nodes[0].ended()
    finally:
        await coordinator.stop()


def test_nodes_and_verify_go_on_over_signed_changes_of_the_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    asyncio.run(_extended(tmp_path))
    findings = tmp_path / "findings.json"
    assert verified(tmp_path / "coordinator", "--json", findings) == ExitCode.OK
    found = json.loads(findings.read_text())
    assert (found["schedules"], found["replayed"]) == (2, found["commits"])
    words = " ".join(capsys.readouterr().out.split())
    assert "the operator has changed length or rate 2 times" in words

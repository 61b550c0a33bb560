"""A small run in this process, whose record the tests of this folder read."""

import asyncio
import shutil
from pathlib import Path

import torch

from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from lockstep.service.keys import load_or_create_key
from protocol.runfile import RunSpec
from protocol.sections.retention import RetentionSpec
from tests.node.test_process import NodeTask
from tests.support.tiny import tiny_corpus, tiny_spec
from tests.support.waiting import PATIENCE_SECONDS

STEPS = 8


def spec_of(steps: int) -> RunSpec:
    return tiny_spec(steps=steps).model_copy(update={"retention": RetentionSpec(snapshot_every=3)})


def coordinator_in(directory: Path, spec: RunSpec) -> CoordinatorProcess:
    settings = CoordinatorSettings(directory / "coordinator", "127.0.0.1:0", goodbye_ms=5000)
    return CoordinatorProcess(spec, settings, load_or_create_key(settings.directory))


async def train(directory: Path) -> None:
    data = tiny_corpus(directory / "data")
    coordinator = coordinator_in(directory, spec_of(STEPS))
    await coordinator.start()
    nodes = [NodeTask(coordinator.address, directory, data, number) for number in range(2)]
    async with nodes[0], nodes[1]:
        for node in nodes:
            await node.ended()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await coordinator.finished()
    await coordinator.stop()
    shutil.copytree(nodes[0].checkpoint, directory / "checkpoint")


def trained(directory: Path) -> Path:
    """A finished run of two nodes, with the directories that a demo leaves."""
    torch.set_num_threads(1)
    asyncio.run(train(directory))
    return directory

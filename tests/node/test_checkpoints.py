"""A run comes to its end with a model in the coordinator's directory: whole nodes, one process."""

import asyncio
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from node.model.build import named_parameters_once
from node.model.checkpoint import load_checkpoint
from node.replica.digest import canonical_sha256, state_digest
from protocol.sections.retention import RetentionSpec
from tests.node.test_process import NodeTask
from tests.support.tiny import tiny_corpus, tiny_spec
from tests.support.waiting import PATIENCE_SECONDS, until

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


async def test_the_run_ends_with_a_checkpoint_that_two_members_vouch_for_and_a_latecomer_is_told(
    tmp_path: Path,
) -> None:
    data = tiny_corpus(tmp_path / "data")
    retention = RetentionSpec(snapshot_every=10, checkpoint_every=3)
    spec = tiny_spec(steps=8).model_copy(update={"retention": retention})
    settings = CoordinatorSettings(
        tmp_path / "coordinator", "127.0.0.1:0", goodbye_ms=5000, checkpoint_room=10**8
    )
    coordinator = CoordinatorProcess(spec, settings, KEY)
    await coordinator.start()
    try:
        nodes = [NodeTask(coordinator.address, tmp_path, data, number) for number in range(2)]
        async with nodes[0], nodes[1]:
            for node in nodes:
                await node.ended()
            await asyncio.wait_for(coordinator.finished(), PATIENCE_SECONDS)
        status = coordinator.status()
        made = status["checkpoint"]["made"]
        assert made, status["checkpoint"]
        newest = made[0]
        assert (newest["round"], newest["step"]) == (7, 7), status["checkpoint"]
        assert newest["confirmed_by"], "the other node has the same parameters"
        assert newest["state_digest"] == status["digests"]["last"]
        assert status["checkpoint"]["next"] == ""
        late = NodeTask(coordinator.address, tmp_path, data, 2)
        async with late:
            reason = await late.ended()
        assert f"the model after round 7: checkpoints/{newest['name']}" in reason
    finally:
        await coordinator.stop()
    directory = tmp_path / "coordinator" / "checkpoints"
    kept = {path.name for path in directory.iterdir() if path.is_dir()}
    assert kept == {each["name"] for each in made}, "files beside them are the coordinator's notes"
    loaded = load_checkpoint(directory / newest["name"])
    parameters = named_parameters_once(loaded.model)
    assert f"{state_digest(parameters):016x}" == newest["state_digest"]
    assert canonical_sha256(parameters).hex() == newest["sha256"]
    assert json.loads((directory / newest["name"] / "config.json").read_text())
    card = (directory / newest["name"] / "README.md").read_text()
    assert "8 steps" in card
    assert newest["state_digest"] in card
    for node in nodes:
        assert not (node.checkpoint.parent / "published").exists()


async def test_a_volunteers_own_directory_gets_the_model_though_the_coordinator_keeps_none(
    tmp_path: Path,
) -> None:
    data = tiny_corpus(tmp_path / "data")
    settings = CoordinatorSettings(tmp_path / "coordinator", "127.0.0.1:0", goodbye_ms=5000)
    coordinator = CoordinatorProcess(tiny_spec(steps=3, members=1), settings, KEY)
    await coordinator.start()
    try:
        node = NodeTask(coordinator.address, tmp_path, data, 0, str(tmp_path / "mine"))
        async with node:
            await node.ended()
        last = coordinator.status()["digests"]["last"]
    finally:
        await coordinator.stop()
    assert load_checkpoint(tmp_path / "mine").metadata["state_digest"] == last
    assert not (tmp_path / "coordinator" / "checkpoints").exists()


async def test_an_order_for_a_checkpoint_is_carried_out_while_the_run_goes_on(
    tmp_path: Path,
) -> None:
    from coordinator.machine.events.acts import Checkpoint

    data = tiny_corpus(tmp_path / "data")
    settings = CoordinatorSettings(
        tmp_path / "coordinator", "127.0.0.1:0", goodbye_ms=5000, checkpoint_room=10**8
    )
    coordinator = CoordinatorProcess(tiny_spec(steps=10_000, members=1), settings, KEY)
    await coordinator.start()
    try:
        async with NodeTask(coordinator.address, tmp_path, data, 0):
            await until(lambda: coordinator.rounds.state.head_round >= 1)
            await coordinator.desk.order(Checkpoint())
            await until(lambda: coordinator.status()["checkpoint"]["made"])
            made = coordinator.status()["checkpoint"]["made"][0]
            assert made["confirmed_by"] is None, "there is no second member, and it is said"
    finally:
        await coordinator.stop()

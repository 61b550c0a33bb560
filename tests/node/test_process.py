"""Whole nodes and a coordinator in one event loop, over real gRPC: rounds, agreement, leaving,
coming back.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from node.control.client import CoordinatorClient
from node.data.publish import publish
from node.links.network import PeerAddress
from node.model.build import named_parameters_once
from node.model.checkpoint import load_checkpoint
from node.process import NodeProcess
from node.replica.digest import state_digest
from node.settings import NodeSettings
from protocol.border.join_link import parse_link
from protocol.codec.heads import PROOF_NAME, Heads, read_proof
from protocol.errors import DataError, EquivocationError, SettingsError, UnavailableError
from protocol.handshake import public_bytes
from protocol.runfile import DataSpec, RunSpec
from tests.node.links.net import neighbour
from tests.support.data_server import serving
from tests.support.history import History
from tests.support.tiny import tiny_corpus, tiny_spec
from tests.support.waiting import PATIENCE_SECONDS, until


@asynccontextmanager
async def coordinator_of(spec: RunSpec, directory: Path) -> AsyncIterator[CoordinatorProcess]:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    coordinator = CoordinatorProcess(
        spec, CoordinatorSettings(directory, "127.0.0.1:0", goodbye_ms=5000), key
    )
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop()


class NodeTask:
    """One node with its run in the background. The second one trains on two devices."""

    def __init__(
        self, address: str, directory: Path, data: Path | None, number: int, publish: str = ""
    ) -> None:
        settings = NodeSettings(
            address,
            directory / f"node-{number}",
            data=data,
            device="cpu,cpu" if number == 1 else "cpu",
            micro_batch=2,
            threads=1,
            publish=publish,
        )
        self.process = NodeProcess(
            settings, Ed25519PrivateKey.from_private_bytes(bytes([number + 1] * 32)), "test"
        )
        self.checkpoint = settings.directory / "checkpoint"
        self.task: asyncio.Task[str] | None = None
        self.round_at_start = -1

    async def __aenter__(self) -> "NodeTask":
        await self.process.start()
        self.round_at_start = self.process.status()["round"]
        self.task = asyncio.create_task(self.process.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.process.stop()

    async def ended(self) -> str:
        assert self.task is not None
        return await asyncio.wait_for(self.task, PATIENCE_SECONDS)


@pytest.mark.parametrize("overlap", [0, 1])
async def test_nodes_train_to_the_end_and_hold_the_same_parameters(
    tmp_path: Path, overlap: int
) -> None:
    data = tiny_corpus(tmp_path / "data")
    async with coordinator_of(
        tiny_spec(steps=8, overlap=overlap), tmp_path / "coordinator"
    ) as coordinator:
        nodes = [NodeTask(coordinator.address, tmp_path, data, number) for number in range(2)]
        async with nodes[0], nodes[1]:
            reasons = [await node.ended() for node in nodes]
            await asyncio.wait_for(coordinator.finished(), PATIENCE_SECONDS)
            status = coordinator.status()
            statuses = [node.process.status() for node in nodes]
    assert reasons == ["all 8 steps are done"] * 2
    assert status["steps"] == {"committed": 8, "skipped": 0, "total": 8}
    assert status["digests"]["agreed"]
    assert status["digests"]["rounds_checked"] == 8
    assert {node["state_digest"] for node in statuses} == {status["digests"]["last"]}
    assert all(node["rounds"]["counted"] == 8 for node in statuses)
    loaded = load_checkpoint(nodes[0].checkpoint)
    digest = state_digest(named_parameters_once(loaded.model))
    assert f"{digest:016x}" == status["digests"]["last"]
    assert loaded.metadata["round"] == 7


async def test_a_node_that_meets_another_history_says_goodbye_and_leaves(tmp_path: Path) -> None:
    data, spec = tiny_corpus(tmp_path / "data"), tiny_spec(steps=100_000, members=1, copies_min=0)
    async with coordinator_of(spec, tmp_path / "coordinator") as coordinator:
        key = Ed25519PrivateKey.from_private_bytes(bytes(32))
        other = Heads(coordinator.run_id, public_bytes(key))
        other.take(*History(key, coordinator.run_id, 2).signed[1])
        async with NodeTask(coordinator.address, tmp_path, data, 0) as node:
            process = node.process
            await until(lambda: process.status()["heads"]["round"] > 1)
            address = PeerAddress(process.started.mesh._identity.peer, (process.address,))
            async with neighbour(other, address):
                with pytest.raises(EquivocationError, match="has signed two different commits of"):
                    await node.ended()
            assert process.status()["heads"]["equivocation"]
            await until(lambda: not coordinator.rounds.members.roster)
    proof = read_proof((tmp_path / "node-0" / PROOF_NAME).read_bytes())
    assert proof.second == other.own


async def test_nodes_train_on_published_data_until_they_are_damaged(tmp_path: Path) -> None:
    manifest = publish(tiny_corpus(tmp_path / "data"), str(tmp_path / "published"))
    with serving(tmp_path / "published") as server:
        data = DataSpec(url=server.url, manifest_sha256=manifest.digest.hex(), sequence_length=32)
        spec = tiny_spec(steps=4).model_copy(update={"data": data})
        async with coordinator_of(spec, tmp_path / "coordinator") as coordinator:
            nodes = [NodeTask(coordinator.address, tmp_path, None, number) for number in range(2)]
            async with nodes[0], nodes[1]:
                for node in nodes:
                    assert await node.ended() == "all 4 steps are done"
                    status = node.process.status()["data"]
                    assert status["from"] == server.url
                    assert status["fetched_bytes"] > 0
        server.damaged = {shard.file: 10**6 for shard in manifest.splits["train"]}
        async with coordinator_of(spec, tmp_path / "another") as coordinator:
            nodes = [NodeTask(coordinator.address, tmp_path, None, number) for number in (2, 3)]
            async with nodes[0], nodes[1]:
                with pytest.raises(DataError, match="the data there are damaged"):
                    await nodes[0].ended()


async def test_a_node_that_left_comes_back_with_its_state_and_one_without_replays_the_log(
    tmp_path: Path,
) -> None:
    data = tiny_corpus(tmp_path / "data")
    spec = tiny_spec(steps=40)
    async with coordinator_of(spec, tmp_path / "coordinator") as coordinator:
        stays, leaves = (
            NodeTask(coordinator.address, tmp_path, data, number) for number in range(2)
        )
        async with stays:
            async with leaves:
                await until(lambda: coordinator.status()["steps"]["committed"] >= 3)
                leaves.process.leave()
                assert await leaves.ended() == "this node was stopped by its owner"
            saved = leaves.process.status()["round"]
            assert not leaves.process.status()["finished"]
            again, fresh = (
                NodeTask(coordinator.address, tmp_path, data, number) for number in (1, 2)
            )
            async with again, fresh:
                assert again.round_at_start == saved >= 2
                assert fresh.round_at_start == -1
                for node in (stays, again, fresh):
                    await node.ended()
                await asyncio.wait_for(coordinator.finished(), PATIENCE_SECONDS)
                digests = {node.process.status()["state_digest"] for node in (stays, again, fresh)}
                assert stays.process.status()["finished"]
                status = coordinator.status()
    assert status["steps"]["committed"] == 40
    assert status["digests"]["agreed"]
    assert digests == {status["digests"]["last"]}


@pytest.mark.parametrize(
    ("model_type", "change", "problem"),
    [
        ("roberta", {}, r'"roberta" sees later tokens.*is_decoder = true'),
        ("helium", {"num_key_value_heads": 20}, r"heads 2 does not fit num_key_value_heads 20"),
    ],
)
async def test_a_run_whose_model_cannot_be_trained_is_refused_before_a_node_joins(
    tmp_path: Path,
    model_type: str,
    change: dict[str, int],
    problem: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    data, spec = tiny_corpus(tmp_path / "data"), tiny_spec()
    config = {name: size for name, size in spec.model.config.items() if "key_value" not in name}
    model = spec.model.model_copy(update={"type": model_type, "config": config | change})
    spec = spec.model_copy(update={"model": model})
    async with coordinator_of(spec, tmp_path / "coordinator") as coordinator:
        node = NodeTask(coordinator.address, tmp_path, data, 0)
        with pytest.raises(SettingsError, match=problem):
            await node.process.start()
        await node.process.stop()
        status = coordinator.status()
        assert (status["steps"]["committed"], status["members"]) == (0, [])
        assert status["refusals"] == {"nodes": 1}
        assert "1 node refused this run file; the coordinator's log says why" in status["reason"]
        (told,) = [each for each in caplog.records if each.message == "run file refused"]
        assert re.search(problem, vars(told)["reason"])


async def test_an_unreachable_coordinator_is_named_with_what_to_check() -> None:
    client = CoordinatorClient(parse_link("127.0.0.1:9"), Ed25519PrivateKey.generate())
    with pytest.raises(UnavailableError, match=r"cannot reach a coordinator at 127\.0\.0\.1:9"):
        await client.calls.fetch_run(timeout_s=1)
    await client.close()


async def test_a_node_that_was_in_the_run_waits_for_a_coordinator_that_is_away(
    tmp_path: Path,
) -> None:
    data, spec = tiny_corpus(tmp_path / "data"), tiny_spec(steps=400)
    async with coordinator_of(spec, tmp_path / "coordinator") as coordinator:
        address = coordinator.address
        async with NodeTask(address, tmp_path, data, 0):
            pass
    node = NodeTask(address, tmp_path, data, 0).process
    starting = asyncio.create_task(node.start())
    await until(lambda: "asks again in" in node.status()["phase"])
    assert f"cannot reach a coordinator at {address}" in node.status()["phase"]
    assert node.status()["waiting_for"] == ""
    assert not starting.done()
    again = CoordinatorSettings(tmp_path / "coordinator", address, goodbye_ms=5000)
    coordinator = CoordinatorProcess(spec, again, Ed25519PrivateKey.from_private_bytes(bytes(32)))
    await coordinator.start()
    await asyncio.wait_for(starting, PATIENCE_SECONDS)
    await node.stop()
    await coordinator.stop()


async def test_a_node_whose_data_is_not_the_runs_is_told_so(tmp_path: Path) -> None:
    data = tiny_corpus(tmp_path / "data")
    spec = tiny_spec()
    spec = spec.model_copy(
        update={"data": spec.data.model_copy(update={"manifest_sha256": "0" * 64})}
    )
    async with coordinator_of(spec, tmp_path / "coordinator") as coordinator:
        node = NodeTask(coordinator.address, tmp_path, data, 0)
        with pytest.raises(DataError, match="expected the data with manifest 0000"):
            await node.process.start()
        await node.process.stop()


def setup_module() -> None:
    torch.set_num_threads(1)


async def test_a_node_at_work_takes_another_duty_cycle_and_refuses_a_share_of_no_gpu(
    tmp_path: Path,
) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes([9] * 32))
    process = NodeProcess(NodeSettings("127.0.0.1:1", tmp_path, device="cpu"), key, "test")
    process.limit(duty_cycle=40, gpu_memory=100, upload=50_000, download=0)
    assert process._duty.percent == 40
    with pytest.raises(SettingsError, match="gpu_memory: expected a GPU"):
        process.limit(duty_cycle=30, gpu_memory=50, upload=0, download=0)
    assert process._duty.percent == 40, "nothing was changed"
    await process.stop()

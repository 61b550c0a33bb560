"""A relay, as an auditor is one: what it is shown on a link tells it of another history."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.process import CoordinatorProcess
from coordinator.service.heads import HeadDesk
from node.control import heads as keeping
from node.links.network import PeerAddress
from node.relay.process import RelayProcess
from protocol.codec.heads import PROOF_NAME, Heads, read_proof
from protocol.errors import EquivocationError
from protocol.handshake import public_bytes
from tests.coordinator.client import COORDINATOR_KEY, joined_pair, quiet_spec, train
from tests.node.links.net import neighbour
from tests.node.relay.test_process import KEY, settings
from tests.support.history import History
from tests.support.waiting import PATIENCE_SECONDS, until


@asynccontextmanager
async def relaying(
    directory: Path, coordinator: CoordinatorProcess
) -> AsyncIterator[tuple[RelayProcess, "asyncio.Task[str]"]]:
    relay = RelayProcess(settings(directory, coordinator.address, archive=True), KEY, "test")
    await relay.start()
    running = asyncio.create_task(relay.run())
    try:
        await until(lambda: relay.status()["session"] == "connected")
        yield relay, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await relay.stop()


def address_of(relay: RelayProcess) -> PeerAddress:
    return PeerAddress(relay.peer, relay.addresses)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "LOOK_S", 0.05)


async def test_a_head_on_a_link_proves_two_histories_and_ends_the_relay(tmp_path: Path) -> None:
    async with joined_pair(tmp_path / "coordinator", quiet_spec()) as (process, one, two):
        own = await train([one, two], 2)
        other = Heads(process.run_id, public_bytes(COORDINATOR_KEY))
        other.take(*History(COORDINATOR_KEY, process.run_id, 2).signed[1])
        async with relaying(tmp_path / "relay", process) as (relay, running):
            await until(lambda: relay.status()["heads"]["round"] == own[-1].round)
            async with neighbour(other, address_of(relay)), asyncio.timeout(PATIENCE_SECONDS):
                with pytest.raises(EquivocationError, match="two different commits of round 1"):
                    await running
    proof = read_proof((tmp_path / "relay" / PROOF_NAME).read_bytes())
    assert proof.second == other.own


async def test_a_head_that_only_a_peer_knows_is_shown_to_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = list[Any]()

    async def objection(desk: HeadDesk, peer: str, said: Any) -> str:
        shown.append(said.heartbeat.head)
        return ""

    monkeypatch.setattr(HeadDesk, "objection", objection)
    async with joined_pair(tmp_path / "coordinator", quiet_spec()) as (process, _, _):
        newer = Heads(process.run_id, public_bytes(COORDINATOR_KEY))
        newer.take(*History(COORDINATOR_KEY, process.run_id, 5).signed[4])
        async with relaying(tmp_path / "relay", process) as (relay, running):
            async with neighbour(newer, address_of(relay)):
                assert newer.own is not None
                await until(lambda: newer.own and newer.own.message in shown)
            assert not running.done()


async def test_a_forged_head_on_a_link_is_counted_and_the_relay_goes_on(tmp_path: Path) -> None:
    async with joined_pair(tmp_path / "coordinator", quiet_spec()) as (process, one, two):
        await train([one, two], 2)
        forged = Heads(process.run_id, public_bytes(KEY))
        forged.take(*History(KEY, process.run_id, 2).signed[1])
        async with relaying(tmp_path / "relay", process) as (relay, running):
            await until(lambda: relay.status()["heads"]["round"] == 1)
            async with neighbour(forged, address_of(relay)):
                await until(lambda: relay.status()["heads"]["forged"] == 1)
            assert not running.done()
            assert not relay.status()["heads"]["equivocation"]

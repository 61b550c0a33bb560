"""The tokens of the compose file: who makes them, who may read them, what they give."""

import asyncio
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.process import CoordinatorProcess
from deploy.invite import INVITATION, VOUCHES, invite
from lockstep.service.order_socket import SOCKET_NAME, OrderSocket
from tests.coordinator.client import node_of, quiet_spec, running


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[CoordinatorProcess]:
    """A coordinator of a public run that takes orders."""
    async with running(tmp_path, quiet_spec(membership={"trust": "public"})) as process:
        orders = OrderSocket(tmp_path, process.desk)
        await orders.start()
        yield process
        await orders.stop()


async def test_each_token_is_made_once_and_is_its_owner_s_alone(
    tmp_path: Path, process: CoordinatorProcess
) -> None:
    place = tmp_path / "invitation"
    await asyncio.to_thread(invite, tmp_path, place)
    first = {path.name: path.read_text() for path in place.iterdir()}
    assert first.keys() == VOUCHES.keys()
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o400}
    await asyncio.to_thread(invite, tmp_path, place)
    assert {path.name: path.read_text() for path in place.iterdir()} == first
    assert len(process.rounds.state.operator.admission.tokens) == len(VOUCHES)


@pytest.mark.parametrize("name", VOUCHES)
async def test_nodes_are_vouched_for_and_relays_are_not(
    tmp_path: Path, process: CoordinatorProcess, name: str
) -> None:
    await asyncio.to_thread(invite, tmp_path, tmp_path / "invitation")
    token = (tmp_path / "invitation" / name).read_text()
    async with node_of(process, 1) as one:
        await one.say(one.hello(await one.connect(), token=token))
        assert (await one.hear("welcome", "refused")).WhichOneof("kind") == "welcome"
        assert process.rounds.members.standing.has(one.peer) == (name == "nodes")


async def test_a_token_waits_for_a_coordinator_that_is_not_there_yet(tmp_path: Path) -> None:
    place = tmp_path / "invitation"
    making = threading.Thread(target=invite, args=(tmp_path, place), daemon=True)
    making.start()
    assert not place.exists()
    async with running(tmp_path, quiet_spec()) as process:
        orders = OrderSocket(tmp_path, process.desk)
        await orders.start()
        assert (tmp_path / SOCKET_NAME).exists()
        await asyncio.to_thread(making.join)
        await orders.stop()
    assert {path.name for path in place.iterdir()} == VOUCHES.keys()


def test_the_script_that_shows_a_token_reads_it_where_it_is_made() -> None:
    script = (Path(__file__).parents[2] / "deploy/invited.sh").read_text()
    assert f"token={INVITATION}/$1\n" in script
    assert "|".join(VOUCHES) in script

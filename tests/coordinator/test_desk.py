"""The operator's orders against a whole coordinator, with scripted nodes over real gRPC."""

import asyncio
from pathlib import Path

import pytest

from coordinator.machine.events import acts
from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from protocol import wire_pb2 as wire
from protocol.errors import SettingsError
from protocol.ids import sha256
from tests.coordinator.client import (
    COORDINATOR_KEY,
    ScriptedNode,
    joined_pair,
    node_of,
    quiet_spec,
    running,
    train,
)

HOST = "127.0.0.1"
SECRET = "0123456789abcdef"


def written(directory: Path) -> bytes:
    """Everything in the journal's files."""
    return b"".join(path.read_bytes() for path in directory.glob("journal.sqlite*"))


async def refused(node: ScriptedNode, **hello: object) -> str:
    """The reason with which a hello is refused for good."""
    await node.say(node.hello(await node.connect(), **hello))
    told = (await node.hear("refused")).refused
    assert not told.retry
    assert not told.wrong_results
    return str(told.reason)


async def welcomed(node: ScriptedNode, **hello: object) -> bool:
    await node.say(node.hello(await node.connect(), **hello))
    return (await node.hear("welcome", "refused")).WhichOneof("kind") == "welcome"


async def test_a_paused_run_says_so_to_everyone_and_goes_on_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    async with joined_pair(tmp_path, quiet_spec()) as (process, one, two):
        await train([one, two], 1)  # the next round is open
        await process.desk.order(acts.Pause("new disk"))
        await train([one, two], 1)
        reply = await one.ping()
        assert (reply.state, reply.reason) == ("waiting", "paused by the operator: new disk")
        status = process.status()
        assert (status["phase"], status["reason"]) == (
            "paused",
            "paused by the operator: new disk",
        )
        assert status["operator"]["paused"]
        await process.desk.order(acts.Resume())
        assert (await one.hear("opened")).opened.round == 2
        assert not process.status()["operator"]["paused"]


async def test_a_finished_run_lets_its_nodes_go_with_the_operators_reason(tmp_path: Path) -> None:
    async with joined_pair(tmp_path, quiet_spec()) as (process, one, two):
        await train([one, two], 1)
        await process.desk.order(acts.Finish("good enough"))
        await train([one, two], 1)
        told = (await one.hear("finished")).finished
        assert told.reason == "the operator ended the run after 2 steps: good enough"
        assert process.status()["finished"]


async def test_every_node_hears_a_notice(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as one:
        await one.join()
        await process.desk.order(acts.Announce("the disk is full on Sunday"))
        assert (await one.hear("notice")).notice.text == "the disk is full on Sunday"
        (notice,) = process.status()["operator"]["notices"]
        assert notice["text"] == "the disk is full on Sunday"


async def test_an_evicted_node_is_told_why(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as one:
        await one.join()
        await process.desk.order(acts.Evict(one.peer, "too hot"))
        assert "too hot" in (await one.hear("evicted")).evicted.reason
        await one.hear_end()
        await one.say(one.hello(await one.connect()))
        told = (await one.hear("refused")).refused
        assert told.retry
        assert "too hot" in told.reason


async def test_a_banned_key_and_a_banned_host_are_refused_with_the_reason(tmp_path: Path) -> None:
    async with joined_pair(tmp_path, quiet_spec()) as (process, one, two):
        await process.desk.order(acts.Ban(one.peer, "noise"))
        await one.hear("evicted")
        assert "noise" in await refused(one)
        assert "noise" in await refused(one, relay=True)
        await process.desk.order(acts.Ban(HOST, "flood"))
        assert "flood" in (await two.hear("refused")).refused.reason
        two.call = two.stub.Session(wait_for_ready=True)  # it is not even asked who it is
        assert "flood" in (await two.hear("refused")).refused.reason
        await process.desk.order(acts.Unban(HOST))
        assert await welcomed(two)


async def test_a_run_with_tokens_admits_whoever_shows_one_nodes_and_relays_alike(
    tmp_path: Path,
) -> None:
    settings = CoordinatorSettings(tmp_path, f"{HOST}:0", admit="token")
    process = CoordinatorProcess(quiet_spec(), settings, COORDINATOR_KEY)
    try:
        await process.start()
        async with (
            node_of(process, 1) as one,
            node_of(process, 2) as two,
            node_of(process, 3) as three,
        ):
            await process.desk.order(acts.Token("t", sha256(SECRET.encode()), 2))
            assert "--token" in await refused(one)
            assert "not one of this run's" in await refused(three, token="f" * 16)
            assert "at most 64 bytes" in await refused(three, token="f" * 65)
            assert "--token" in await refused(two, relay=True)
            assert await welcomed(one, token=SECRET)
            assert await welcomed(two, token=SECRET, relay=True)
            assert "used up" in await refused(three, token=SECRET)
            one.call.cancel()
            await asyncio.sleep(0)
            assert await welcomed(one), "a key that was admitted once stays admitted"
    finally:
        await process.stop()
    assert SECRET.encode() not in written(tmp_path)


async def test_an_order_that_changes_nothing_is_refused_and_not_in_the_chain(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, quiet_spec()) as process:
        head = process.rounds.state.operator.head
        for act in (acts.Resume(), acts.Admit("open"), acts.Unban(HOST), acts.Evict("a" * 32)):
            with pytest.raises(SettingsError):
                await process.desk.order(act)
        assert process.rounds.state.operator.head == head


async def test_orders_at_the_same_time_follow_each_other(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process:
        texts = [f"notice {number}" for number in range(20)]
        await asyncio.gather(*[process.desk.order(acts.Announce(text)) for text in texts])
        assert process.rounds.state.operator.acts == 20
        document = await process.desk.document()
        assert document["audit"]["acts"] == 20


async def test_the_operator_sees_hosts_and_tokens_that_the_status_does_not_show(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as one:
        await one.join()
        await process.desk.order(acts.Token("t", sha256(b"s"), 2))
        await process.desk.order(acts.Ban("192.0.2.7", "noise"))
        document = await process.desk.document()
        (member,) = document["members"]
        assert (member["peer_id"], member["host"]) == (one.peer, HOST)
        assert document["bans"] == [{"target": "192.0.2.7", "reason": "noise"}]
        assert [token["name"] for token in document["admission"]["tokens"]] == ["t"]
        public = (await one.stub.GetStatus(wire.GetStatusRequest())).json
        assert b"192.0.2.7" not in public

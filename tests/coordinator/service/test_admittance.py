"""A node that only asks at the door is told what it would be told if it joined, and changes nothing
by it.
"""

import asyncio
from pathlib import Path

import pytest

from coordinator.machine.events import acts
from coordinator.process import CoordinatorProcess
from lockstep.service import contact
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
from protocol.errors import RefusedError
from protocol.ids import sha256
from protocol.run_info import RunInfo
from tests.coordinator.client import ScriptedNode, node_key, node_of, quiet_spec, running, train

SECRET = "0123456789abcdef"


async def asked(node: ScriptedNode, **hello: object) -> wire.CoordinatorMessage:
    """The answer to a node that only asks; an empty message where nothing is against it."""
    await node.say(node.hello(await node.connect(), only_asks=True, **hello))
    before = len(node.heard)
    await node.hear_end()
    return node.heard[-1] if len(node.heard) > before else wire.CoordinatorMessage()


async def test_a_node_that_may_come_hears_nothing_and_is_no_member(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as one:
        assert (await asked(one)).WhichOneof("kind") is None
        assert process.status()["members"] == []
        assert await one.join()


async def test_a_token_that_is_asked_about_is_not_used(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
    ):
        await process.desk.order(acts.Admit("token"))
        assert "--token TOKEN" in (await asked(one)).refused.reason
        assert "not one of this run's" in (await asked(one, token="wrong")).refused.reason
        assert "at most" in (await asked(one, token="t" * 200)).refused.reason
        await process.desk.order(acts.Token("t", sha256(SECRET.encode()), uses=1))
        used = process.rounds.state.operator.admission.tokens["t"]
        for node in (one, two):
            assert (await asked(node, token=SECRET)).WhichOneof("kind") is None
        assert used.uses == 0
        await one.say(one.hello(await one.connect(), token=SECRET))
        await one.hear("welcome")
        assert used.uses == 1
        assert "used up" in (await asked(two, token=SECRET)).refused.reason


async def test_the_end_of_the_run_is_told(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as three,
    ):
        await one.join()
        await two.join()
        await train([one, two], 1)
        await process.desk.order(acts.Finish("good enough"))
        await train([one, two], 1)
        await one.hear("finished")
        told = (await asked(three)).finished
        assert told.reason.startswith("the operator ended the run after 2 steps: good enough")
        assert len(process.status()["members"]) == 2


def knocked(process: CoordinatorProcess, number: int, token: str = "") -> wire.CoordinatorMessage:
    """What a node hears before it loads torch."""
    link = parse_link(process.address).with_token(token)
    return contact.knock(link, contact.ask_run(link), node_key(number))


async def test_a_node_knocks_before_it_loads_what_it_is_made_of(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as one:
        assert (await asyncio.to_thread(knocked, process, 1)).WhichOneof("kind") is None
        await one.join()
        await process.desk.order(acts.Evict(one.peer, "too hot"))
        told = await asyncio.to_thread(knocked, process, 1)
        assert told.refused.retry
        assert "too hot" in told.refused.reason
        await process.desk.order(acts.Ban(one.peer, "noise"))
        with pytest.raises(RefusedError, match="banned this node: noise"):
            await asyncio.to_thread(knocked, process, 1)
        await process.desk.order(acts.Admit("token"))
        with pytest.raises(RefusedError, match="not one of this run's"):
            await asyncio.to_thread(knocked, process, 2, "wrong")


async def test_a_coordinator_that_does_not_answer_at_the_door_is_asked_by_the_node_itself(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, quiet_spec()) as process:
        link = parse_link(process.address)
        info: RunInfo = await asyncio.to_thread(contact.ask_run, link)
    told = await asyncio.to_thread(contact.knock, link, info, node_key(1))
    assert told.WhichOneof("kind") is None

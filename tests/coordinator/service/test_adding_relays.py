"""A relay that offers to add, over the wire: it is asked, its word counts, and others take its
place when it goes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.process import CoordinatorProcess
from protocol import wire_pb2 as wire
from protocol.sums.plan import SumPlan
from protocol.sums.receipts import receipt_name
from tests.coordinator.client import (
    ScriptedNode,
    node_of,
    opened,
    quiet_spec,
    running,
    until_after,
)
from tests.coordinator.machine.driver import payload_digest
from tests.coordinator.service.test_sums import RESULT, questions, word

EVERY_RANGE = 2**16 - 1


def spec(**membership: Any) -> Any:
    return quiet_spec(
        algorithm={"name": "local_steps"},
        rounds={"sums": 2},
        membership={"start_members": 2} | membership,
    )


@asynccontextmanager
async def a_run(
    directory: Path,
) -> AsyncIterator[tuple[CoordinatorProcess, ScriptedNode, ScriptedNode, ScriptedNode]]:
    """A coordinator, two nodes and a relay, of which nobody has joined."""
    async with (
        running(directory, spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as relay,
    ):
        yield process, one, two, relay


async def offer(node: ScriptedNode, **changes: Any) -> None:
    """A relay joins, and offers to add."""
    hello = node.hello(await node.connect(), relay=True, **({"sums": True} | changes))
    await node.say(hello)
    await node.hear("welcome")
    await node.ping()


async def hold(node: ScriptedNode, round: int, authors: list[ScriptedNode]) -> None:
    names = sorted(
        receipt_name(each.peer, payload_digest(each.peer, round))
        for each in authors
        if each is not node
    )
    held = wire.HeldParts(payloads=names, ranges=EVERY_RANGE)
    await node.say(wire.NodeMessage(parts=wire.PartsHeld(round=round, held=[held])))


def adds(process: CoordinatorProcess) -> list[bool]:
    return [row["adds"] for row in process.status()["relays"]]


async def test_a_round_is_committed_with_the_results_that_a_relay_has_signed(
    tmp_path: Path,
) -> None:
    async with a_run(tmp_path) as (process, one, two, relay):
        await offer(relay)
        assert adds(process) == [True]
        authors = [one, two]
        for node in authors:
            await node.join()
        plan = SumPlan.of((await relay.hear("opened")).opened)
        assert plan is not None
        assert list(plan.ranges_of(relay.peer)) == list(range(16))
        for node in authors:
            await node.hear("opened")
            await node.announce(0)
        for node in (*authors, relay):
            await hold(node, 0, authors)
        for node in (relay, *authors):
            asked = (await node.hear("sums_asked")).sums_asked
            for question in questions(asked, plan.ranges, process.run_id):
                await node.say(wire.NodeMessage(summed=word(question, node.key)))
        told = (await relay.hear("committed")).committed
        commit = opened(told.commit)
        assert commit.sums is not None
        assert [each.digest for each in commit.sums.results] == [RESULT] * 16
        assert all(relay.peer in each.peer_ids for each in told.holders)
        (row,) = process.status()["relays"]
        assert (row["ranges_added"], row["halved"]) == (16, 0)


async def test_when_it_goes_everybody_hears_who_adds_in_its_place(tmp_path: Path) -> None:
    async with a_run(tmp_path) as (process, one, two, relay):
        await offer(relay)
        for node in (one, two):
            await node.join()
        await one.hear("opened")
        relay.call.cancel()
        added = (await one.hear("summer_added")).summer_added
        assert (added.round, added.peer_id in (one.peer, two.peer)) == (0, True)
        await until_after(lambda: not process.status()["relays"], one.ping)


@pytest.mark.parametrize("changes", [{"sums": False}, {"addresses": []}])
async def test_a_relay_that_does_not_offer_or_has_no_address_adds_nothing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    async with a_run(tmp_path) as (process, one, two, relay):
        await offer(relay, **changes)
        for node in (one, two):
            await node.join()
        plan = SumPlan.of((await relay.hear("opened")).opened)
        assert plan is not None
        assert not plan.ranges_of(relay.peer)
        await hold(relay, 0, [one, two])
        assert (await relay.ping()).sent_ms == 1, "it is not heard, and stays"
        assert adds(process) == [False]


async def test_in_a_public_run_a_free_key_adds_nothing_until_the_operator_vouches_for_it(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, spec(trust="public")) as process,
        node_of(process, 3) as relay,
    ):
        await offer(relay)
        assert adds(process) == [False]
        process.rounds.members.standing.vouched.add(relay.peer)
        await relay.ping()
        assert adds(process) == [True]


@pytest.mark.parametrize(
    "said",
    [
        wire.NodeMessage(parts=wire.PartsHeld(round=-1)),
        wire.NodeMessage(summed=wire.Summed(round=0, digest=RESULT, result_bytes=0)),
    ],
)
async def test_a_word_out_of_bounds_ends_its_session(
    tmp_path: Path, said: wire.NodeMessage
) -> None:
    async with running(tmp_path, spec()) as process, node_of(process, 3) as relay:
        await offer(relay)
        await relay.say(said)
        assert "expected" in (await relay.hear("refused")).refused.reason
        await relay.hear_end()
        await until_after(lambda: not process.rounds.relays.here(), lambda: _look(process))


async def _look(process: CoordinatorProcess) -> None:
    """A node that comes and goes: what was posted before it was handled."""
    async with node_of(process, 4) as node:
        await node.join()

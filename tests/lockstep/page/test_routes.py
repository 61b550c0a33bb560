"""The page's routes, over real sockets, on a coordinator with scripted nodes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coordinator.process import CoordinatorProcess
from lockstep.page.routes import Page
from lockstep.service.admin import AdminServer
from protocol import wire_pb2 as wire
from protocol.border.join_link import JoinLink
from tests.coordinator.client import joined_pair, node_of, quiet_spec, running, train


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[CoordinatorProcess, str]]:
    async with running(tmp_path, quiet_spec()) as process:
        server = AdminServer(process, page=Page(process).routes())
        yield process, await server.start()
        await server.stop()


async def get(url: str) -> tuple[int, Any, aiohttp.ClientResponse]:
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        kind = reply.content_type
        return reply.status, await (reply.json() if "json" in kind else reply.text()), reply


async def test_the_page_and_its_parts_are_served_with_a_strict_policy(
    served: tuple[CoordinatorProcess, str],
) -> None:
    _, url = served
    status, text, reply = await get(f"{url}/")
    assert (status, reply.content_type) == (200, "text/html")
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "://" not in text, "the page names another host"
    for name in ("page.js", "charts.js", "operator.js", "page.css", "icon.svg", "uplot.js"):
        assert f"assets/{name}" in text
        assert (await get(f"{url}/assets/{name}"))[0] == 200


@pytest.mark.parametrize(
    "path", ["assets/index.html", "assets/..%2Froutes.py", "assets/uplot.LICENSE", "x.json"]
)
async def test_nothing_but_the_page_s_parts_is_served(
    served: tuple[CoordinatorProcess, str], path: str
) -> None:
    assert (await get(f"{served[1]}/{path}"))[0] == 404


async def test_rounds_and_credit_are_those_that_were_committed(
    served: tuple[CoordinatorProcess, str],
) -> None:
    process, url = served
    async with node_of(process, 1) as one, node_of(process, 2) as two:
        await one.join()
        await two.join()
        told = await train([one, two], 3)
        _, document, _ = await get(f"{url}/rounds.json")
        assert [each["round"] for each in document["rounds"]] == [0, 1, 2]
        first = document["rounds"][0]
        assert (first["outcome"], first["contributors"], first["assigned"]) == ("committed", 2, 2)
        assert first["payload_bytes"] == sum(each.payload_bytes for each in told[0].entries)
        assert 0 <= first["seconds"] <= first["slot_seconds"]
        _, later, _ = await get(f"{url}/rounds.json?after=1")
        assert [each["round"] for each in later["rounds"]] == [2]
        _, credit, _ = await get(f"{url}/contributors.json")
        assert {row[0]: row[3] for row in credit["rows"]} == {one.peer[:12]: 3, two.peer[:12]: 3}
        assert {row[1] for row in credit["rows"]} == {"scripted"}


async def test_validation_losses_are_those_that_members_measured(tmp_path: Path) -> None:
    spec = quiet_spec(retention={"snapshot_every": 1, "checkpoint_every": 0})
    async with (
        running(tmp_path, spec) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
    ):
        server = AdminServer(process, page=Page(process).routes())
        url = await server.start()
        await one.join()
        await two.join()
        await train([one, two], 1)
        turn = process.rounds.state.evaluation.turn
        assert turn is not None
        node = one if turn.peer == one.peer else two
        said = wire.Evaluated(round=turn.round, loss=1.25, samples=8)
        await node.say(wire.NodeMessage(evaluated=said))
        reply = await node.ping()
        assert (reply.validation_loss, reply.validation_round) == (1.25, turn.round)
        _, found, _ = await get(f"{url}/curve.json")
        assert (found["validation_rounds"], found["validation_losses"]) == ([turn.round], [1.25])
        _, status, _ = await get(f"{url}/status.json")
        assert (status["validation"]["loss"], status["validation"]["name"]) == (1.25, "scripted")
        assert "evaluation" in {message.WhichOneof("kind") for message in node.heard}
        await server.stop()
    async with running(tmp_path, spec) as again:
        newest = again.rounds.state.evaluation.newest
        assert newest is not None
        assert newest.loss == 1.25, "it is in the journal"


@pytest.mark.parametrize("after", ["x", "1.5", "", "9" * 5000])
async def test_a_wrong_number_of_a_round_is_told(
    served: tuple[CoordinatorProcess, str], after: str
) -> None:
    status, answer, _ = await get(f"{served[1]}/rounds.json?after={after}")
    if after.isdecimal():
        assert (status, answer) == (200, {"rounds": []})
    else:
        assert status == 400
        assert "expected a round as a whole number" in answer


async def test_the_run_tells_how_to_join_it(served: tuple[CoordinatorProcess, str]) -> None:
    process, url = served
    _, run, _ = await get(f"{url}/operator.json")
    assert run["join"] == f"lockstep join '{process.link.text()}'"
    assert run["only_this_machine"] is True
    assert run["own_address"] is False
    _, public, _ = await get(f"{url}/run.json")
    assert (public["run_id"], public["join"]) == (process.run_id, ""), "nobody else reaches it"


async def test_the_page_says_that_the_machine_chose_the_address_of_the_link(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, quiet_spec()) as process:
        other = JoinLink("run.example:1", process.link.run_id, process.link.key)
        server = AdminServer(process, page=Page(process, lambda _: other).routes())
        _, run, _ = await get(f"{await server.start()}/operator.json")
        assert (run["own_address"], run["only_this_machine"]) == (True, False)
        assert "run.example:1" in run["join"]
        await server.stop()


async def test_a_restart_keeps_rounds_losses_and_credit(tmp_path: Path) -> None:
    spec = quiet_spec()
    async with joined_pair(tmp_path, spec) as (process, one, two):
        await train([one, two], 2)
        before = process.history.after(-1)
    async with running(tmp_path, spec) as again:
        after = again.history.after(-1)
        known = ("round", "outcome", "step", "loss", "contributors", "payload_bytes")
        assert [[each[name] for name in known] for each in after] == [
            [each[name] for name in known] for each in before
        ]
        assert {credit.rounds for credit in again.history.credit.values()} == {2}
        assert set(again.history.names) == set(again.history.credit), "also of those that went"
        assert set(again.history.names.values()) == {"scripted"}

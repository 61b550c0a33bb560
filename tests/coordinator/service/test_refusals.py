"""Refusals of the run file: counted by node, bounded, and their reasons for the operator alone."""

import json
import logging
from pathlib import Path

import pytest

from coordinator.machine.events import acts
from coordinator.service.refusals import NODES_KEPT, REASON_MAX, RunRefusals
from protocol.ids import PeerId
from tests.coordinator.client import ScriptedNode, node_of, quiet_spec, running
from tests.coordinator.machine.driver import A, B, C


def test_each_node_counts_once() -> None:
    refusals = RunRefusals()
    assert refusals.words == ""
    refusals.note(A)
    assert refusals.words == "1 node refused this run file; the coordinator's log says why"
    for peer in (B, C, B):
        refusals.note(peer)
    assert refusals.words.startswith("3 nodes refused this run file")


def test_a_node_that_joins_after_all_is_forgotten() -> None:
    refusals = RunRefusals()
    refusals.note(A)
    refusals.forget(A)
    refusals.forget(B)
    assert (len(refusals), refusals.words) == (0, "")


def test_strangers_cannot_fill_memory() -> None:
    refusals = RunRefusals()
    for number in range(NODES_KEPT + 9):
        refusals.note(PeerId(f"{number:032x}"))
    assert len(refusals) == NODES_KEPT


async def told(node: ScriptedNode, reason: str) -> str:
    """The coordinator's answer to a node that cannot train."""
    await node.say(node.hello(await node.connect(), cannot_train=reason))
    answer = (await node.hear("refused")).refused.reason
    await node.hear_end()
    return answer


async def test_the_reason_is_in_the_log_in_one_short_line_and_in_no_public_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as stranger:
        with caplog.at_level(logging.WARNING):
            assert await told(stranger, "\x1b[2Jbuy\u202eit\r\n" + "x" * 1_000) == "noted"
        document = json.dumps(process.status())
    assert "1 node refused this run file" in document
    assert "buy" not in document
    (record,) = [each for each in caplog.records if each.message == "run file refused"]
    reason = vars(record)["reason"]
    assert reason.startswith("[2Jbuy it xxx")
    assert reason.isprintable()
    assert len(reason) == REASON_MAX


async def test_nobody_is_heard_who_would_not_be_admitted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as stranger:
        await process.desk.order(acts.Admit("token"))
        assert "token" in await told(stranger, "buy it")
        assert process.status()["refusals"] == {"nodes": 0}
    assert "buy" not in caplog.text

"""Metrics of the coordinator's bytes: by owner, and never falling."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from coordinator.machine.rounds import Rounds
from coordinator.metrics import registry
from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from coordinator.traffic import Traffic
from protocol import wire_pb2 as wire
from protocol.ids import RunId
from protocol.runfile import RunSpec
from tests.coordinator.client import (
    COORDINATOR_KEY,
    ScriptedNode,
    node_key,
    quiet_spec,
    running,
    train,
)


def counters(metrics: CollectorRegistry) -> dict[tuple[str, str], float]:
    found = [
        family
        for family in metrics.collect()
        if family.name == "lockstep_coordinator_traffic_bytes"
    ]
    return {
        (each.labels["kind"], each.labels["direction"]): each.value
        for family in found
        for each in family.samples
    }


def test_overhead_is_asked_for_with_all_that_has_an_owner_and_no_counter_falls() -> None:
    asked, known = list[tuple[int, int]](), [(50, 60), (40, 70)]

    def overhead(up: int, down: int) -> tuple[int, int]:
        asked.append((up, down))
        return known.pop(0)

    traffic = Traffic(overhead)
    traffic.left(bytes)(b"four")
    traffic.left(bytes, "catch_up")(b"fifteen")
    traffic.came(bytes)(b"six")
    metrics = registry(Rounds(RunSpec(), RunId("ab" * 16)), traffic)
    assert counters(metrics)["overhead", "up"] == 50
    now = counters(metrics)
    assert asked == [(11, 3)] * 2
    assert now == {
        ("control", "up"): 4,
        ("control", "down"): 3,
        ("catch_up", "up"): 7,
        ("catch_up", "down"): 0,
        ("overhead", "up"): 50,
        ("overhead", "down"): 70,
    }


def test_overhead_that_is_not_known_is_absent() -> None:
    metrics = registry(Rounds(RunSpec(), RunId("ab" * 16)), Traffic())
    assert {kind for kind, _ in counters(metrics)} == {"control", "catch_up"}
    assert not counters(registry(Rounds(RunSpec(), RunId("ab" * 16)))), "nobody counts"


async def test_a_run_and_its_commits_are_catch_up_and_everything_else_is_control(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        ScriptedNode(process.address, process.run_id, node_key(1)) as node,
        ScriptedNode(process.address, process.run_id, node_key(2)) as other,
    ):
        for each in (node, other):
            await each.join()
        await train([node, other], 2)
        for each in (node, other):  # nothing more is said by itself
            await each.hear("opened")
            await each.ping()
        before = process.status()["traffic"]
        run = await node.stub.GetRun(wire.GetRunRequest())
        commits, told = await node.commits_after(-1)
        assert len(told) == 2
        after = process.status()["traffic"]
        assert (
            after["catch_up_up_bytes"] - before["catch_up_up_bytes"]
            == run.ByteSize() + commits.ByteSize()
        )
        assert after["control_up_bytes"] == before["control_up_bytes"] > 500
        members = await node.stub.GetMembers(wire.GetMembersRequest())
        last = process.status()["traffic"]
        assert last["control_up_bytes"] - after["control_up_bytes"] == members.ByteSize()
        assert last["payload_bytes"] == 400, "of committed payloads, as ever"
        exported = counters(process.registry)
        assert all(exported[kind, way] == last[f"{kind}_{way}_bytes"] for kind, way in exported)


def test_a_process_asks_for_its_overhead(tmp_path: Path) -> None:
    process = CoordinatorProcess(
        quiet_spec(),
        CoordinatorSettings(tmp_path, "127.0.0.1:0"),
        COORDINATOR_KEY,
        lambda up, down: (1, 2),
    )
    assert counters(process.registry)["overhead", "down"] == 2
    process.journal.close()

"""Metrics of a run, and of the coordinator's bytes by owner."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.history import RoundTimes
from coordinator.machine.events.effects import Point
from coordinator.machine.machine import RunMachine
from coordinator.metrics import registry
from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from coordinator.traffic import CoordinatorTraffic
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
from tests.coordinator.machine.driver import PHASES, RUN, A, B, C, D, Driver, driver_in


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

    traffic = CoordinatorTraffic(overhead)
    traffic.counted_encoder(bytes)(b"four")
    traffic.counted_encoder(bytes, "catch_up")(b"fifteen")
    traffic.counted_decoder(bytes)(b"six")
    metrics = registry(RunMachine(RunSpec(), RunId("ab" * 16)), traffic)
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
    metrics = registry(RunMachine(RunSpec(), RunId("ab" * 16)), CoordinatorTraffic())
    assert {kind for kind, _ in counters(metrics)} == {"control", "catch_up"}
    assert not counters(registry(RunMachine(RunSpec(), RunId("ab" * 16)))), "no traffic is counted"


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


def samples_of(driver: Driver) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(registry(driver.machine)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("phase", PHASES)
def test_the_gauge_of_the_phase_is_1_and_those_of_the_others_are_0(phase: str) -> None:
    samples = samples_of(driver_in(phase))
    found = {
        dict(labels)["phase"]: value
        for (name, labels), value in samples.items()
        if name.endswith("_phase")
    }
    assert found == {name: float(name == phase) for name in PHASES}


def test_counters_end_in_total_and_gauges_do_not() -> None:
    text = generate_latest(registry(Driver(A, B).machine)).decode()
    families = list(text_string_to_metric_families(text))
    assert {family.type for family in families} == {"counter", "gauge", "histogram"}
    for family in families:
        assert family.name.startswith("lockstep_coordinator_")
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")


def test_metrics_follow_the_machine() -> None:
    driver = Driver(A, B, membership={"strikes_to_mute": 1})
    driver.exchange(0, A, B)
    driver.apply(A, 0)
    driver.apply(B, 0, digest=666)
    driver.hello(C)
    driver.leave(C)
    driver.announce(A, 1)
    driver.wait(3000)
    found = {
        name.removeprefix("lockstep_coordinator_"): value
        for (name, _), value in samples_of(driver).items()
    }
    assert found["rounds_committed_total"] == 1
    assert found["rounds_skipped_total"] == driver.machine.state.totals.skipped == 1
    assert found["samples_trained_total"] == driver.machine.state.totals.samples_trained
    assert found["samples_left_out_total"] == driver.machine.state.totals.samples_left_out > 0
    assert found["samples_lost_total"] == driver.machine.state.totals.samples_lost == 0
    assert found["payload_bytes_total"] == 200
    assert (found["rounds_checked_total"], found["rounds_disputed_total"]) == (1, 1)
    assert (found["decided_round"], found["steps_planned"], found["loss_nats_per_token"]) == (
        1,
        100,
        2.0,
    )


def test_members_are_counted_by_state() -> None:
    driver = Driver(A, B, C, membership={"strikes_to_mute": 1})
    driver.end_first_step(C)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.wait(1500)
    driver.hello(B)
    driver.join(D)
    driver.part(D)
    samples = samples_of(driver)
    found = {
        dict(labels)["state"]: value
        for (name, labels), value in samples.items()
        if name.endswith("_members")
    }
    assert found == {"ready": 1, "muted": 1, "held": 0, "catching_up": 1, "away": 1}


def test_before_the_first_commit_there_is_no_loss() -> None:
    assert not any("loss_nats" in name for name, _ in samples_of(Driver(A, B)))


def test_a_state_that_nobody_holds_is_a_metric() -> None:
    driver = Driver(A, membership={"start_members": 1}, rounds={"quorum": 1, "copies_min": 0})
    driver.exchange(0, A)
    driver.apply(A, 0)
    driver.leave(A)
    metrics = registry(driver.machine, now_ms=lambda: driver.now_ms)
    assert "lockstep_coordinator_state_lost 0.0" in generate_latest(metrics).decode()
    driver.hello(B)
    driver.now_ms += 60_000
    assert "lockstep_coordinator_state_lost 1.0" in generate_latest(metrics).decode()


def test_the_run_and_the_times_of_its_rounds_are_metrics() -> None:
    times = RoundTimes()
    for seconds in (0.3, 4, 4, 1000):
        times.add(seconds)
    text = generate_latest(registry(Driver(A, B).machine, times=times)).decode()
    assert 'lockstep_coordinator_round_seconds_bucket{le="5.0"} 3.0' in text
    assert 'lockstep_coordinator_round_seconds_bucket{le="+Inf"} 4.0' in text
    assert "lockstep_coordinator_round_seconds_count 4.0" in text
    assert "lockstep_coordinator_round_seconds_sum 1008.3" in text
    [line] = [line for line in text.splitlines() if line.startswith("lockstep_coordinator_run_in")]
    assert 'algorithm="local_steps"' in line
    assert f'run="{RUN}"' in line


def test_the_validation_loss_is_a_metric_once_it_is_measured() -> None:
    driver = Driver(A, B)
    assert not any("validation" in name for name, _ in samples_of(driver))
    driver.machine.state.evaluation.points.append(Point(9, 9, 2.5, 8, b"", A, ""))
    samples = samples_of(driver)
    assert samples["lockstep_coordinator_validation_loss", ()] == 2.5
    assert samples["lockstep_coordinator_validation_round", ()] == 9

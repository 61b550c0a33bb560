"""What people and Prometheus are told about a run."""

from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coordinator import metrics, status_document
from coordinator.journal import RecordedCommit
from protocol.commits import SignedCommit
from tests.coordinator.machine.driver import A, B, C, D, Driver, state_digest


def status_of(driver: Driver) -> dict[str, Any]:
    recorded = [
        (
            RecordedCommit(
                effect.commit.round, SignedCommit(b"", b""), effect.loss, 0xABC, 2, 1, b""
            ),
            effect.commit,
        )
        for effect in reversed(driver.commits)
    ]
    return status_document.status(
        driver.machine, recorded[: status_document.COMMITS_SHOWN], driver.now_ms
    )


def samples_of(driver: Driver) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(metrics.registry(driver.machine)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_run_that_nobody_has_joined_can_be_shown() -> None:
    status = status_of(Driver())
    assert (status["phase"], status["round"], status["loss"]) == ("waiting", -1, None)
    assert status["members"] == []
    assert status["reason"] == "no member has joined yet"
    assert status["digests"] == {
        "agreed": True,
        "rounds_checked": 0,
        "rounds_disputed": 0,
        "last": None,
    }


def test_the_status_is_json_with_the_runs_numbers() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    driver.apply(A, 0)
    driver.apply(B, 0)
    status = msgspec.json.decode(msgspec.json.encode(status_of(driver)))
    assert status["steps"] == {"committed": 1, "skipped": 0, "total": 100}
    assert status["round"] == 1
    assert status["loss"] == 2.0
    assert status["traffic"] == {"payload_bytes": 200, "payloads": 2}
    assert status["data"] == {"samples_trained": 16, "samples_lost": 0}
    assert status["digests"]["last"] == f"{state_digest(0):016x}"
    assert status["last_commits"] == [
        {
            "round": 0,
            "step": 0,
            "contributors": [A, B],
            "payload_bytes": 200,
            "loss": 2.0,
            "state_digest": "0000000000000abc",
            "digest_reports": 2,
            "digests_agree": False,
        }
    ]


def test_a_commit_without_samples_has_a_loss_that_json_can_hold() -> None:
    driver = Driver(A, B, rounds={"copies_min": 0})
    driver.announce(A, 0, samples=0)
    driver.announce(B, 0, samples=0)
    assert len(driver.commits) == 1
    assert msgspec.json.decode(msgspec.json.encode(status_of(driver)))["loss"] is None


def test_each_member_has_a_state_and_a_reason_in_words() -> None:
    driver = Driver(A, B, membership={"strikes_to_mute": 1})
    driver.hello(C)
    driver.announce(A, 0)
    rows = {row["peer_id"]: (row["state"], row["reason"]) for row in status_of(driver)["members"]}
    assert rows == {
        A: ("announced", "its payload of round 0 is in"),
        B: ("training", "computes round 0"),
        C: ("catching up", "its state holds round -1, the log -1"),
    }
    driver.ready(C)
    driver.wait(1500)
    rows = {row["peer_id"]: (row["state"], row["reason"]) for row in status_of(driver)["members"]}
    assert rows[B] == ("muted", "late in 1 rounds: counted again after a punctual one")
    assert rows[C] == ("ready", "takes part from the next round")
    driver.part(C)
    rows = {row["peer_id"]: (row["state"], row["reason"]) for row in status_of(driver)["members"]}
    assert rows[C] == ("away", "its session was lost; it is removed when its lease ends")


def test_a_member_is_shown_with_its_measures() -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)
    driver.now_ms += 61_500
    row = status_of(driver)["members"][0]
    assert (row["samples"], row["samples_per_second"], row["member_seconds"]) == (8, 8.0, 61)


@pytest.mark.parametrize("phase", metrics.PHASES)
def test_each_phase_is_reached_and_has_one_word(phase: str) -> None:
    driver = Driver(A, B, schedule={"steps": 1})
    if phase == "waiting":
        driver = Driver(A, membership={"start_members": 2})
    elif phase == "exchanging":
        driver.announce(A, 0)
        driver.wait(1000)
    elif phase == "finished":
        driver.exchange(0, A, B)
    assert status_document.phase(driver.machine.state) == phase
    samples = samples_of(driver)
    found = {
        dict(labels)["phase"]: value
        for (name, labels), value in samples.items()
        if name.endswith("_phase")
    }
    assert found == {name: float(name == phase) for name in metrics.PHASES}


def test_counters_end_in_total_and_gauges_do_not() -> None:
    text = generate_latest(metrics.registry(Driver(A, B).machine)).decode()
    families = list(text_string_to_metric_families(text))
    assert {family.type for family in families} == {"counter", "gauge"}
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
    assert found["samples_lost_total"] == driver.machine.state.totals.samples_lost > 0
    assert found["payload_bytes_total"] == 200
    assert (found["rounds_checked_total"], found["rounds_disputed_total"]) == (1, 1)
    assert (found["decided_round"], found["steps_planned"], found["loss_nats_per_token"]) == (
        1,
        100,
        2.0,
    )


def test_members_are_counted_by_state() -> None:
    driver = Driver(A, B, C, membership={"strikes_to_mute": 1})
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

"""The status document of a run."""

from typing import Any

import msgspec
import pytest

from coordinator import status_document
from coordinator.journal import RecordedCommit
from coordinator.machine.events.inputs import LinksMeasured
from protocol.codec.commits import SignedCommit
from protocol.mixing.link_report import MeasuredLink
from tests.coordinator.machine.driver import PHASES, A, B, C, Driver, driver_in, state_digest


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


def test_a_run_without_members_has_a_status() -> None:
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


def test_links_are_shown_as_both_ends_measure_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(A, B, C)
    assert status_of(driver)["links"] is None
    driver.tell(LinksMeasured(A, (MeasuredLink(B, 5, 7_000), MeasuredLink(C, 0))))
    driver.tell(LinksMeasured(B, (MeasuredLink(A, 9),)))
    links = msgspec.json.decode(msgspec.json.encode(status_of(driver)))["links"]
    assert links == {
        "peers": [A, B, C],
        "round_trip_ms": [[None, 9, 0], [9, None, None], [0, None, None]],
        "bit_per_second": [[None] * 3, [7_000, None, None], [None] * 3],
    }
    monkeypatch.setattr(status_document, "LINKS_SHOWN", 2)
    assert status_of(driver)["links"] is None


def test_the_status_is_json_with_the_runs_numbers() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    driver.apply(A, 0)
    driver.apply(B, 0)
    status = msgspec.json.decode(msgspec.json.encode(status_of(driver)))
    assert status["steps"] == {"committed": 1, "skipped": 0, "total": 100}
    assert status["round"] == 1
    assert status["loss"] == 2.0
    assert status["traffic"] == {"payload_bytes": 200, "payloads": 2, "result_bytes": 0}
    assert status["data"] == {
        "samples_trained": 16,
        "samples_left_out": 0,
        "samples_lost": 0,
    }
    assert status["digests"]["last"] == f"{state_digest(0):016x}"
    assert status["last_commits"] == [
        {
            "round": 0,
            "step": 0,
            "contributors": [A, B],
            "payload_bytes": 200,
            "result_bytes": 0,
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
    driver.end_first_step(B)
    driver.hello(C)
    driver.announce(A, 0)
    rows = {row["peer_id"]: (row["state"], row["reason"]) for row in status_of(driver)["members"]}
    assert rows == {
        A: ("announced", "its payload of round 0 is in"),
        B: ("training", "computes round 0, the first that it will announce"),
        C: ("catching up", "its state holds round -1, the log -1"),
    }
    driver.ready(C)
    driver.wait(1500)
    rows = {row["peer_id"]: (row["state"], row["reason"]) for row in status_of(driver)["members"]}
    assert rows[B] == ("muted", "late in 1 round: counted again after a punctual one")
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


@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_is_reached(phase: str) -> None:
    assert status_of(driver_in(phase))["phase"] == phase

"""Announcements and receipts that count, and those that are ignored or refused."""

import pytest

from coordinator.machine.events.effects import OpenRound
from coordinator.machine.events.inputs import Holding, InstantReached
from protocol.errors import RemoteProtocolError
from protocol.ids import sha256
from tests.coordinator.machine.driver import A, B, C, D, Driver, of_kind, payload_digest


def test_an_announcement_at_publish_by_counts_and_one_after_it_does_not() -> None:
    driver = Driver(A, B, C, rounds={"copies_min": 0})
    driver.wait(1499)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.now_ms += 1
    driver.tell(InstantReached(0, "publish_by"))
    assert driver.authors() == [A, B]
    assert driver.announce(C, 0) == []


def test_a_late_announcement_is_ignored_and_struck() -> None:
    driver = Driver(A, B, C, rounds={"copies_min": 2})
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.wait(1500)
    trained = driver.machine.state.totals.samples_trained
    assert driver.member(C).strikes == 1
    assert driver.announce(C, 0) == []
    assert driver.member(C).strikes == 1
    assert driver.machine.state.totals.samples_trained == trained
    driver.hold(A, 0, [B])
    driver.hold(B, 0, [A])
    driver.hold(C, 0, [A, B])
    assert driver.authors() == [A, B]


@pytest.mark.parametrize("between", ["one session", "a new session", "removed, and back"])
def test_what_a_member_announces_first_in_a_round_stands(between: str) -> None:
    """Whether its process was killed, or a copy of its directory speaks."""
    driver = Driver(A, B)
    driver.announce(A, 0)
    trained = driver.machine.state.totals.samples_trained
    if between == "removed, and back":
        driver.lapse(A)
    if between != "one session":
        assert of_kind(OpenRound, driver.join(A)) == [], "it is not asked again"
    driver.announce(A, 0, digest=payload_digest(D, 9), samples=1)
    undecided = driver.machine.undecided(0)
    assert undecided is not None
    assert undecided.announced[A].digest == payload_digest(A, 0)
    assert driver.machine.state.totals.samples_trained == trained


def test_an_announcement_of_a_decided_round_changes_nothing() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    before = driver.machine.state.totals.samples_trained
    assert driver.announce(A, 0) == []
    assert driver.announce(A, 7) == []
    assert driver.machine.state.totals.samples_trained == before


def test_an_announcement_of_a_member_that_was_not_asked_changes_nothing() -> None:
    driver = Driver(A, B)
    driver.join(C)
    driver.announce(C, 0)
    undecided = driver.machine.undecided(0)
    assert undecided is not None
    assert undecided.announced == {}


def test_an_announcement_of_a_stranger_changes_nothing() -> None:
    driver = Driver(A, B)
    assert driver.announce(D, 0) == []
    assert driver.machine.members.get(D) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 9}, "expected at most 8 samples used, got 9"),
        ({"payload_bytes": 0}, "expected a payload of 1..4096 bytes, got 0"),
        ({"payload_bytes": 4097}, "expected a payload of 1..4096 bytes, got 4097"),
    ],
)
def test_an_impossible_announcement_is_an_error_with_its_sender_and_changes_nothing(
    changes: dict[str, int], words: str
) -> None:
    driver = Driver(A, B)
    with pytest.raises(RemoteProtocolError, match=f"{A}: {words}"):
        driver.announce(A, 0, **changes)
    assert driver.machine.state.totals.samples_trained == 0
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B]


def test_a_muted_member_may_not_send_a_payload() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    driver.join(C)
    driver.mute(C)
    driver.exchange(1, A, B)
    with pytest.raises(
        RemoteProtocolError, match="expected no payload from a muted member in round 2"
    ):
        driver.announce(C, 2, digest=payload_digest(C, 2))
    driver.announce(C, 2)
    driver.exchange(2, A, B)
    assert driver.authors() == [A, B]


def test_an_announcement_without_a_payload_is_punctual_and_not_counted() -> None:
    driver = Driver(A, B, C)
    driver.announce(C, 0, digest=b"", samples=0)
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B]
    assert driver.member(C).strikes == 0


def test_junk_receipts_of_one_member_do_not_shut_out_the_others() -> None:
    driver = Driver(A, B, C)
    for number in range(100):
        driver.tell(
            Holding(C, 0, tuple(sha256(f"junk {number} {part}".encode()) for part in range(10)))
        )
    driver.exchange(0, A, B)
    driver.announce(C, 0, digest=b"")
    assert driver.authors() == [A, B]


def test_receipts_before_the_announcement_count() -> None:
    driver = Driver(A, B)
    driver.hold(A, 0, [B])
    driver.hold(B, 0, [A])
    driver.announce(A, 0)
    driver.announce(B, 0)
    assert driver.authors() == [A, B]


def test_receipts_of_a_stranger_do_not_count() -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.hold(D, 0, [A, B])
    driver.wait(3000)
    assert driver.commits == []

"""A committed payload that cannot be had becomes void, and only then; liars can neither force nor
hinder it while they are a third at most.
"""

import pytest

from coordinator.machine.events.effects import AskResync, Effect, RecordDigest
from coordinator.machine.events.inputs import Restarted, VoidDue
from coordinator.machine.rules.voiding import LEAST_MS, PATIENCE_MS, SLOTS
from coordinator.state_snapshot import decode_state, encode_state
from protocol.codec.chain import entry_digest
from tests.coordinator.machine.driver import (
    RUN,
    A,
    B,
    C,
    D,
    Driver,
    of_kind,
    payload_digest,
    state_digest,
)

SOON_MS = max(LEAST_MS, SLOTS * 3000)


def poisoned(*peers: str, liars: tuple[str, ...] = (D,), overlap: int = 0) -> Driver:
    """A run whose round 0 counts a payload of the last liar that nobody else will get."""
    rounds = {"quorum": 1, "overlap": overlap}
    driver = Driver(*peers, *liars, rounds=rounds, membership={"lease_ms": 600_000})
    driver.exchange(0, *peers, *liars)
    assert len(driver.commits) == 1
    return driver


def test_a_payload_that_everybody_lacks_is_void_after_two_slots() -> None:
    driver = poisoned(A, B, C)
    driver.leave(D)
    for peer in (A, B, C):
        driver.lack(peer, 0, D)
    driver.wait(SOON_MS - 1)
    assert driver.voids == []
    driver.wait(1)
    (void,) = driver.voids
    commit = driver.commits[0].commit
    assert (void.run_id, void.round) == (RUN, 0)
    assert void.digest == payload_digest(D, 0)
    assert void.reason == "nobody has it"
    assert commit.entries[-1].digest == void.digest
    assert driver.machine.state.head == entry_digest(void)


def test_the_next_commit_follows_the_void_in_the_chain() -> None:
    driver = poisoned(A)
    driver.leave(D)
    driver.lack(A, 0, D)
    driver.wait(SOON_MS)
    driver.apply(A, 0, voids=1)
    round = driver.machine.state.undecided[-1].round
    driver.exchange(round, A)
    assert driver.commits[-1].commit.previous == entry_digest(driver.voids[0])


def test_a_member_that_applied_the_commit_keeps_its_payload_from_being_void() -> None:
    """It has the payload and serves it; a third of the voters is too few to make history."""
    driver = poisoned(A, B, liars=(C, D))
    driver.leave(C, D)
    driver.lack(A, 0, D)
    driver.apply(B, 0)
    driver.wait(10 * PATIENCE_MS)
    assert driver.voids == []


@pytest.mark.parametrize("honest", [(A, B), (A, B, C)])
def test_a_third_of_liars_cannot_save_a_payload_that_the_others_lack(honest: tuple[str]) -> None:
    driver = poisoned(*honest)
    driver.apply(D, 0, digest=666)
    for peer in honest:
        driver.lack(peer, 0, D)
    driver.wait(PATIENCE_MS - 1)
    assert driver.voids == []
    driver.wait(1)
    assert [void.reason for void in driver.voids] == ["most lack it"]


def test_a_third_of_liars_cannot_make_a_payload_void() -> None:
    driver = poisoned(A, B)
    driver.lack(D, 0, A)
    driver.wait(10 * PATIENCE_MS)
    assert driver.voids == []


def test_what_more_than_a_third_applied_is_never_void_whoever_is_left() -> None:
    driver = poisoned(A, B)
    driver.apply(A, 0)
    driver.apply(B, 0)
    driver.leave(A, B)
    driver.lack(D, 0, D)
    driver.hello(C)
    driver.lack(C, 0, D)
    driver.wait(10 * PATIENCE_MS)
    assert driver.voids == []


def test_a_newcomer_cannot_rewrite_what_was_before_it() -> None:
    driver = poisoned(A, B)
    driver.apply(A, 0)
    driver.leave(A, B, D)
    driver.hello(C)
    driver.lack(C, 0, D)
    driver.wait(10 * PATIENCE_MS)
    assert driver.voids == []


def test_those_who_are_left_go_on_when_all_voters_are_gone_and_none_had_applied() -> None:
    driver = poisoned(A)
    driver.leave(A, D)
    driver.hello(C)
    driver.lack(C, 0, D)
    driver.wait(SOON_MS)
    assert len(driver.voids) == 1


def test_who_has_not_come_to_the_round_keeps_nobody_from_going_on() -> None:
    driver = poisoned(A)
    driver.leave(A, D)
    driver.hello(B)  # is still further back, and can say nothing of the round
    driver.hello(C)
    driver.lack(C, 0, D)
    driver.wait(SOON_MS)
    assert len(driver.voids) == 1


def test_a_holder_without_a_session_is_given_its_lease_to_come_back() -> None:
    driver = poisoned(A, B)
    driver.part(D)
    driver.lack(A, 0, D)
    driver.lack(B, 0, D)
    driver.wait(SOON_MS)
    assert driver.voids == []
    driver.lapse(D)
    driver.wait(0)
    assert len(driver.voids) == 1


def test_a_member_that_gets_the_payload_after_all_takes_its_complaint_back() -> None:
    driver = poisoned(A, B)
    driver.leave(D)
    driver.lack(A, 0, D)
    driver.lack(B, 0, D)
    driver.wait(SOON_MS - 1)
    driver.apply(A, 0)
    driver.wait(PATIENCE_MS // 2)
    assert driver.voids == []


def test_reports_of_states_that_count_the_payload_are_passed_over_without_blame() -> None:
    driver = poisoned(A, B)
    driver.apply(D, 0, digest=666)
    driver.lack(A, 0, D)
    driver.lack(B, 0, D)
    effects = driver.wait(PATIENCE_MS)
    assert of_kind(RecordDigest, effects)[0] == RecordDigest(0, 0, 0, 0, b"")
    assert driver.member(D).state == "catching up"
    assert driver.apply(D, 0, digest=666) == []
    for peer in (A, B):
        driver.apply(peer, 0, voids=1)
    told = of_kind(RecordDigest, driver.effects)[-1]
    assert (told.state_digest, told.reports) == (state_digest(0), 2)
    assert of_kind(AskResync, driver.effects) == []
    assert D not in driver.machine.state.verdicts.records


def test_complaints_about_anything_else_are_no_news() -> None:
    driver = poisoned(A, B)
    before = encode_state(driver.machine.state)
    driver.lack(A, 7, D)
    driver.lack(A, 0, C)
    driver.lack(C, 0, D)  # no member
    assert encode_state(driver.machine.state) == before


def test_a_restart_gives_members_the_time_of_the_outage_on_top() -> None:
    driver = poisoned(A)
    driver.leave(D)
    driver.lack(A, 0, D)
    driver.wait(SOON_MS - 100)
    driver.now_ms += 50_000
    driver.tell(Restarted())
    driver.wait(50)
    assert driver.voids == []
    driver.wait(SOON_MS)
    assert len(driver.voids) == 1


def test_a_void_that_is_due_when_its_member_goes_is_none() -> None:
    driver = poisoned(A)
    driver.leave(D)
    driver.lack(A, 0, D)
    driver.leave(A)
    effects: list[Effect] = driver.tell(VoidDue(0, payload_digest(D, 0)))
    assert driver.voids == []
    assert effects == []


def test_complaints_and_voids_survive_in_the_saved_state() -> None:
    driver = poisoned(A, B)
    driver.leave(D)
    driver.lack(A, 0, D)
    state = driver.machine.state
    assert decode_state(encode_state(state)) == state
    assert state.voids.rounds[0].lacked
    driver.lack(B, 0, D)
    driver.wait(SOON_MS)
    assert decode_state(encode_state(state)).voids.made == [0]


def test_rounds_that_were_applied_are_not_kept() -> None:
    driver = Driver(A, B)
    for round in range(3):
        driver.exchange(round, A, B)
        for peer in (A, B):
            driver.apply(peer, round)
    assert driver.machine.state.voids.rounds == {}

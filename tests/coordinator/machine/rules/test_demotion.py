"""A key loses its standing by the evidence of a named auditor, and gets it back by the operator."""

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.machine.events import acts
from coordinator.machine.events.effects import Effect, OpenRound
from coordinator.machine.rules import orders
from coordinator.machine.rules.demotion import REJECTED_MAX, alarm
from coordinator.machine.state.standing import COUNTED_ROUNDS
from coordinator.state_snapshot import decode_state, encode_state
from coordinator.status_document import standing
from protocol.codec.evidence import Evidence, WorkAudit, sign_evidence
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId, peer_id
from tests.coordinator.machine.driver import (
    RUN,
    A,
    B,
    C,
    D,
    Driver,
    of_kind,
    payload_digest,
)
from tests.coordinator.machine.rules.test_auditing import order
from tests.coordinator.machine.test_public_run import newest, play, public

KEY = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
AUDITOR = peer_id(public_bytes(KEY))


def demote(author: PeerId, *rounds: int, run_id: RunId = RUN) -> acts.Demote:
    audits = tuple(WorkAudit(round, payload_digest(author, round), 5000, 9000) for round in rounds)
    signed = sign_evidence(Evidence(run_id, author, "other work", audits), KEY)
    return acts.Demote(signed.body, signed.public_key, signed.signature)


def reject(author: PeerId, *rounds: int, reason: str = "expected more") -> acts.Reject:
    said = demote(author, *rounds)
    return acts.Reject(said.body, said.public_key, said.signature, reason)


def audited(*peers: PeerId) -> Driver:
    driver = Driver(*peers)
    order(driver, acts.Appoint(AUDITOR))
    for _ in range(2):
        driver.exchange(newest(driver), *peers)
    return driver


def objection(driver: Driver, act: acts.Act) -> str:
    return orders.objection(act, driver.machine)


def workers(effects: list[Effect]) -> set[PeerId]:
    opened = of_kind(OpenRound, effects)[-1]
    return {assignment.peer for assignment in opened.assignments}


def test_a_demoted_member_gets_no_work_and_decides_nothing_but_hears_why() -> None:
    driver = audited(A, B, C)
    order(driver, demote(C, 0, 1))
    round = newest(driver)
    driver.exchange(round, A, B, C)
    assert workers(driver.effects) == {A, B}
    member = driver.machine.members.roster[C]
    assert not driver.machine.members.decides(C)
    assert standing(driver.machine, member) == (
        "muted",
        "work audit: agreed in 50 % of signs where honest work agrees in 90 %; round 0, 1",
    )


def test_the_others_go_on_with_the_quorum_that_they_have() -> None:
    driver = audited(A, B, C)
    order(driver, demote(C, 0))
    before = len(driver.commits)
    for _ in range(3):
        driver.exchange(newest(driver), A, B)
    assert len(driver.commits) >= before + 3


def test_standing_in_a_public_run_is_lost_and_is_not_earned_again() -> None:
    driver = public(A, B, C)
    order(driver, acts.Appoint(AUDITOR))
    play(driver, A, B, C)
    order(driver, demote(C, 0))
    members = driver.machine.members
    assert (members.standing.word(C), members.decides(C)) == ("fresh", False)
    for _ in range(COUNTED_ROUNDS + 1):
        members.standing.credit(C)
    assert not members.decides(C)
    assert members.decides(A)


def test_the_operator_gives_standing_back_and_old_evidence_counts_no_more() -> None:
    driver = audited(A, B, C)
    order(driver, demote(C, 0))
    order(driver, acts.Vouch(C))
    assert driver.machine.members.decides(C)
    assert "has vouched" in objection(driver, demote(C, 0, 1))
    for _ in range(3):
        driver.exchange(newest(driver), A, B, C)
    later = driver.machine.state.head_round
    assert objection(driver, demote(C, later)) == ""
    assert C in workers(driver.effects)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (demote(C, 1000), "expected evidence of rounds up to"),
        (msgspec.structs.replace(demote(C, 0), signature=bytes(64)), "expected a signature"),
        (msgspec.structs.replace(demote(C, 0), body=b"?"), "expected a signature"),
    ],
)
def test_evidence_that_proves_nothing_is_objected_to(act: acts.Demote, words: str) -> None:
    assert words in objection(audited(A, B, C), act)


def test_evidence_of_a_key_that_is_no_auditor_is_objected_to_and_the_same_twice_too() -> None:
    stranger = Driver(A, B)
    assert "expected evidence of an auditor" in objection(stranger, demote(B, 0))
    driver = audited(A, B, C)
    order(driver, demote(C, 0))
    assert "already" in objection(driver, demote(C, 1))


def test_rejected_evidence_changes_no_standing_and_is_an_alarm_until_its_auditor_is_taken_off() -> (
    None
):
    driver = audited(A, B, C)
    order(driver, reject(C, 0))
    state = driver.machine.state
    assert driver.machine.members.decides(C)
    assert "rejected already" in objection(driver, reject(C, 0))
    order(driver, reject(B, 0, 1, reason="expected yet more"))
    assert alarm(state) == (
        f"auditor {AUDITOR[:8]} accuses with evidence that proves nothing (2 times; expected yet "
        f"more): see lockstep run audit, and take it off: lockstep run auditor remove {AUDITOR}"
    )
    assert decode_state(encode_state(state)).operator.rejected == state.operator.rejected
    assert acts.words(reject(C, 0)) == (
        f"refuse the evidence of auditor {AUDITOR} against {C}: expected more"
    )
    order(driver, acts.Dismiss(AUDITOR))
    assert alarm(state) == ""
    assert "expected evidence of an auditor" in objection(driver, reject(A, 0))


def test_an_auditor_cannot_fill_the_chain_with_evidence_that_proves_nothing() -> None:
    driver = audited(A, B, C)
    for number in range(REJECTED_MAX):
        order(driver, reject(C, number))
    assert "16 pieces of evidence" in objection(driver, reject(C, REJECTED_MAX))
    order(driver, acts.Ban(AUDITOR))
    assert not driver.machine.state.operator.rejected


def test_evidence_of_another_run_changes_nothing() -> None:
    driver = audited(A, B, C)
    order(driver, demote(C, 0, run_id=RunId("00" * 16)))
    assert driver.machine.members.decides(C)


def test_it_survives_a_snapshot_and_stands_in_the_log_in_words() -> None:
    driver = audited(A, B, D)
    act = demote(D, 0, 1)
    order(driver, act)
    again = decode_state(encode_state(driver.machine.state))
    assert again.members.standing == driver.machine.members.standing
    assert acts.words(act) == (
        f"demote {D} by auditor {AUDITOR}: work audit: agreed in 50 % of signs where honest work "
        "agrees in 90 %; round 0, 1"
    )

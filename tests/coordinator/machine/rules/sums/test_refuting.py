"""A summer loses its standing by a wrong sum that it signed, on the word of a named auditor."""

from typing import Any

import msgspec
import pytest

from coordinator.machine.events import acts
from coordinator.machine.rules import orders
from coordinator.state_snapshot import decode_state, durable_part, encode_state
from coordinator.status_document import standing
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId, peer_id, sha256
from protocol.sums.signed import SumSigned, WrongSum, wrong_sum_bytes
from tests.coordinator.client import node_key
from tests.coordinator.machine.driver import RUN
from tests.coordinator.machine.rules.test_auditing import order
from tests.coordinator.machine.rules.test_orders import NOW_S
from tests.coordinator.machine.summing import SummingDriver, result

KEYS = {peer_id(public_bytes(node_key(number))): node_key(number) for number in range(1, 7)}
SIX = sorted(KEYS)
AUDITOR = PeerId("a" * 32)


def refute(summer: PeerId, round: int = 0, run_id: RunId = RUN, **changes: Any) -> acts.Refute:
    wrong = SumSigned(3, sha256(b"wrong"), public_bytes(KEYS[summer]), bytes(64))
    said = msgspec.structs.replace(wrong, **changes)
    evidence = WrongSum(run_id, round, said, result(round, 3))
    return acts.Refute(AUDITOR, wrong_sum_bytes(evidence))


def audited() -> SummingDriver:
    driver = SummingDriver(*SIX)
    order(driver, acts.Appoint(AUDITOR))
    driver.make_sums(*SIX)
    return driver


def test_both_liars_are_drawn_no_more_get_no_work_and_hear_why() -> None:
    driver, liars = audited(), SIX[:2]
    for liar in liars:
        order(driver, refute(liar))
    driver.make_sums(*SIX)
    for _ in range(3):
        plan = driver.opened[-1].plan
        assert len(plan) == 16
        assert not {who for row in plan for who in row} & set(liars)
        driver.make_sums(*SIX[2:])
    assert driver.authors() == SIX[2:]
    member = driver.machine.members.roster[liars[0]]
    said, added = sha256(b"wrong").hex()[:16], result(0, 3).hex()[:16]
    reason = (
        f"sum audit: signed {said} as the sum of range 3 in round 0, where the parts add up to "
        f"{added}"
    )
    assert standing(driver.machine, member) == ("muted", reason)
    again = decode_state(encode_state(driver.machine.state))
    assert durable_part(again) == durable_part(driver.machine.state)


def test_the_commit_is_recorded_with_all_that_was_signed() -> None:
    driver = SummingDriver(*SIX)
    for each in SIX:
        driver.announce(each, 0)
    (liar, question), *others = driver.asks(driver.spread(0, SIX))
    driver.sign(liar, question, "wrong")
    for who, asked in others:
        driver.add(driver.sign(who, asked))
    (committed,) = driver.commits
    digests = {(each.number, each.digest) for each in committed.signed}
    assert (question.number, result(0, question.number, "wrong")) in digests
    assert {number for number, _ in digests} == set(range(16))
    assert not any(each.silent for each in committed.signed)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (refute(SIX[0], round=99), "expected a sum of rounds up to"),
        (refute(SIX[0], run_id=RunId("c" * 64)), "expected a sum of run"),
    ],
)
def test_what_is_no_evidence_changes_nothing(act: acts.Refute, words: str) -> None:
    driver = audited()
    assert words in orders.objection(act, driver.machine)
    driver.tell(acts.ordered(act, NOW_S, driver.machine.state.operator.head))
    assert not driver.machine.members.standing.demoted


def test_what_cannot_be_read_or_says_that_the_sum_is_right_is_no_act() -> None:
    driver = audited()
    right = refute(SIX[0], digest=result(0, 3))
    assert "added to the same digest" in orders.objection(right, driver.machine)
    assert orders.objection(acts.Refute(AUDITOR, b"junk"), driver.machine)


def test_only_a_named_auditor_accuses_and_the_operator_has_the_last_word() -> None:
    driver = audited()
    stranger = acts.Refute(PeerId("b" * 32), refute(SIX[0]).body)
    assert "an auditor of this run" in orders.objection(stranger, driver.machine)
    order(driver, refute(SIX[0]))
    assert "has lost its standing already" in orders.objection(refute(SIX[0]), driver.machine)
    order(driver, acts.Vouch(SIX[0]))
    assert "a later round" in orders.objection(refute(SIX[0]), driver.machine)
    assert driver.machine.members.decides(SIX[0])

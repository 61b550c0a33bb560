"""The word of an auditor is final: it decides disputes whatever the majority says, blames no member
that agrees with it, and holds the run when another auditor contradicts it.
"""

import random

import pytest

from coordinator.machine.events import acts
from coordinator.machine.events.effects import (
    AskResync,
    CommitRound,
    Effect,
    Evict,
    OpenRound,
    RecordDigest,
)
from coordinator.machine.events.inputs import Applied, Audited, Heartbeat, Holding
from coordinator.machine.rules import orders
from coordinator.machine.rules.auditing import alarm
from coordinator.machine.rules.voiding import PATIENCE_MS
from coordinator.machine.screening import screened
from coordinator.machine.state.records import REFUSED_MS, WRONG_RESULTS
from coordinator.machine.state.verdicts import AUDITORS_MAX
from coordinator.state_snapshot import decode_state, encode_state
from protocol.codec.chain import Void
from protocol.ids import PeerId
from tests.coordinator.machine.driver import (
    A,
    B,
    C,
    D,
    Driver,
    E,
    entries_of,
    of_kind,
    payload_digest,
    state_digest,
)
from tests.coordinator.machine.test_public_run import LEAST_MS, newest, public

WRONG = 666
X, Y = AUDITORS = PeerId("a" * 32), PeerId("b" * 32)


def order(driver: Driver, act: acts.Act) -> list[Effect]:
    state = driver.machine.state
    assert orders.objection(act, driver.machine) == ""
    return driver.tell(acts.ordered(act, 1_700_000_000, state.operator.head))


def audited(*peers: PeerId, auditors: tuple[PeerId, ...] = (X,)) -> Driver:
    """A run whose auditors are named before its members come."""
    driver = Driver(membership={"start_members": len(peers), "lease_ms": 600_000})
    for auditor in auditors:
        order(driver, acts.Appoint(auditor))
    driver.join(*peers)
    return driver


def say(driver: Driver, auditor: PeerId, round: int, digest: int | None = None) -> list[Effect]:
    return driver.tell(Audited(auditor, round, state_digest(round) if digest is None else digest))


def a_round(driver: Driver, honest: tuple[PeerId, ...], liars: tuple[PeerId, ...] = ()) -> int:
    """The newest round is exchanged and applied; liars come to another digest."""
    round = newest(driver)
    driver.exchange(round, *honest, *liars)
    for liar in liars:
        driver.apply(liar, round, WRONG)
    for peer in honest:
        driver.apply(peer, round)
    return round


def blamed(effects: list[Effect]) -> set[PeerId]:
    return {each.peer for each in effects if isinstance(each, AskResync | Evict)}


# ---- disputes


def test_a_majority_of_liars_is_overruled_and_nobody_with_the_right_digest_is_touched() -> None:
    driver = audited(A, B, C, D, E)
    round = a_round(driver, (A, B), liars=(C, D, E))
    assert not blamed(driver.effects), "votes blame nobody where an auditor is named"
    effects = say(driver, X, round)
    assert blamed(effects) == {C, D, E}
    assert of_kind(RecordDigest, effects)[-1] == RecordDigest(round, state_digest(0), 5, 3, b"")


def test_liars_that_go_on_are_refused_and_the_honest_go_on() -> None:
    driver = audited(A, B, C, D, E)
    say(driver, X, a_round(driver, (A, B), liars=(C, D, E)))
    for liar in (C, D, E):
        driver.ready(liar, digest=WRONG)
    assert blamed(driver.effects) >= {C, D, E}
    assert set(driver.machine.members.roster) == {A, B}
    (evicted, *_) = of_kind(Evict, driver.effects)
    assert WRONG_RESULTS in evicted.reason
    assert not blamed(driver.effects) & {A, B}
    say(driver, X, a_round(driver, (A, B)))
    assert driver.machine.state.head_round == 1


def test_a_word_that_comes_before_the_members_reports_judges_each_of_them() -> None:
    driver = audited(A, B, C)
    driver.exchange(0, A, B, C)
    assert say(driver, X, 0) == []
    assert driver.apply(A, 0) == []
    assert blamed(driver.apply(B, 0, WRONG)) == {B}
    effects = driver.apply(C, 0)
    assert of_kind(RecordDigest, effects)[-1] == RecordDigest(0, state_digest(0), 3, 1, b"")
    assert driver.machine.state.verdicts.tally.rounds_disputed == 1


def test_what_all_report_alike_stands_on_record_until_the_word_comes() -> None:
    driver = audited(A, B)
    round = newest(driver)
    driver.exchange(round, A, B)
    driver.apply(A, round)
    assert driver.apply(B, round) == [RecordDigest(round, state_digest(round), 2, 0, b"")]
    assert of_kind(RecordDigest, say(driver, X, round, WRONG)) == [
        RecordDigest(round, WRONG, 2, 2, b"")
    ]


def test_a_level_vote_waits_for_the_word_and_sends_nobody_through_the_log() -> None:
    driver = audited(A, B)
    round = a_round(driver, (A,), liars=(B,))
    assert not blamed(driver.effects)
    assert f"round {round}" in alarm(driver.machine.state.verdicts)
    assert blamed(say(driver, X, round)) == {B}
    assert alarm(driver.machine.state.verdicts) == ""


def test_liars_about_genesis_that_came_first_do_not_decide_it() -> None:
    driver = Driver(membership={"start_members": 4})
    order(driver, acts.Appoint(X))
    for liar in (C, D):
        driver.hello(liar)
        driver.ready(liar, digest=WRONG)
    driver.join(A, B)
    assert not blamed(driver.effects)
    assert blamed(say(driver, X, -1)) == {C, D}


def test_reports_of_a_state_that_is_being_discarded_are_no_second_offence() -> None:
    driver = audited(A, B, C)
    first = a_round(driver, (A, B), liars=(C,))
    second = a_round(driver, (A, B), liars=(C,))
    assert blamed(say(driver, X, first)) == {C}
    driver.ready(C)
    assert say(driver, X, second) == [] or not blamed(say(driver, X, second))
    assert driver.machine.members.get(C) is not None


def test_a_node_that_healed_counts_again_on_the_word() -> None:
    driver = audited(A, B, C)
    say(driver, X, a_round(driver, (A, B), liars=(C,)))
    driver.ready(C)
    assert driver.machine.state.verdicts.muted_reason(C)
    say(driver, X, a_round(driver, (A, B)))  # it was opened without C
    round = newest(driver)
    driver.exchange(round, A, B, C)
    for peer in (A, B, C):
        driver.apply(peer, round)
    assert driver.machine.state.verdicts.muted_reason(C)
    say(driver, X, round)
    assert not driver.machine.state.verdicts.muted_reason(C)


def test_a_fresh_key_of_a_public_run_is_judged_by_the_word_that_comes_after_its_report() -> None:
    driver = public(A, B, D)
    order(driver, acts.Appoint(X))
    for _ in range(2):
        driver.wait(LEAST_MS)
        round = newest(driver)
        driver.exchange(round, A, B, *({D} & driver.machine.state.undecided[-1].assignments.keys()))
        for peer in (A, B):
            driver.apply(peer, round)
        assert not blamed(driver.apply(D, round, WRONG)), "votes"
    assert blamed(say(driver, X, round)) == {D}


def test_the_auditors_word_stands_above_vouched_keys() -> None:
    driver = public(A, B, C)
    order(driver, acts.Appoint(X))
    driver.wait(LEAST_MS)
    round = a_round(driver, (A,), liars=(B, C))
    assert blamed(say(driver, X, round)) == {B, C}


def test_keys_without_standing_ring_no_alarm_and_dispute_no_round() -> None:
    driver = public(A, B, D, E)
    order(driver, acts.Appoint(X))
    driver.wait(LEAST_MS)
    verdicts = driver.machine.state.verdicts
    for _ in range(3):
        round = newest(driver)
        driver.exchange(round, A, B)
        for liar in (D, E):
            driver.apply(liar, round, WRONG)
        assert alarm(verdicts) == "", "before the others have spoken"
        for peer in (A, B):
            driver.apply(peer, round)
        assert alarm(verdicts) == ""
        assert blamed(say(driver, X, round)) <= {D, E}
        driver.wait(LEAST_MS)
    assert blamed(driver.effects) == {D, E}, "each is told or put out all the same"
    assert (verdicts.tally.rounds_disputed, verdicts.tally.agreed) == (0, True)


# ---- without it, as before


def test_the_word_of_a_key_that_is_not_named_changes_nothing() -> None:
    driver = Driver(A, B, C)
    round = a_round(driver, (A,), liars=(B, C))
    assert blamed(driver.effects) == {A}, "the majority decides"
    before = encode_state(driver.machine.state)
    event = Audited(X, round, state_digest(round))
    assert screened(event, driver.machine) == Heartbeat(X)
    assert say(driver, X, round) == []
    assert encode_state(driver.machine.state) == before


def test_a_dispute_that_no_auditor_decides_goes_back_to_the_votes_when_it_is_taken_off() -> None:
    driver = audited(A, B, C)
    a_round(driver, (A, B), liars=(C,))
    assert not blamed(driver.effects)
    assert blamed(order(driver, acts.Dismiss(X))) == {C}


def test_whoever_was_refused_on_a_word_of_the_majority_may_come_back_on_the_auditors() -> None:
    driver = Driver(A, B, C)
    round = a_round(driver, (A,), liars=(B, C))
    driver.ready(A)  # the state that the log makes, again
    assert driver.machine.members.get(A) is None
    assert driver.machine.state.verdicts.refusal(A, driver.now_ms)
    order(driver, acts.Appoint(X))
    say(driver, X, round)
    assert driver.machine.state.verdicts.refusal(A, driver.now_ms) == ""
    assert REFUSED_MS > 0


# ---- two auditors


def test_two_auditors_that_differ_hold_the_run_and_blame_nobody() -> None:
    driver = audited(A, B, auditors=(X, Y))
    round = newest(driver)
    driver.exchange(round, A, B)
    say(driver, X, round)
    say(driver, Y, round, WRONG)
    following = newest(driver)
    effects = driver.exchange(following, A, B)
    assert of_kind(CommitRound, effects), "the open round goes on to its end"
    assert not of_kind(OpenRound, effects)
    assert f"auditors differ on the state after round {round}" in driver.machine.state.reason
    assert "lockstep run auditor remove" in alarm(driver.machine.state.verdicts)
    assert not blamed(driver.apply(A, following, WRONG) + driver.apply(B, following))


@pytest.mark.parametrize("way", ["corrected", "taken off"])
def test_the_run_goes_on_when_the_wrong_auditor_is_taken_off_or_corrects_itself(way: str) -> None:
    driver = audited(A, B, auditors=(X, Y))
    round = a_round(driver, (A,), liars=(B,))
    say(driver, Y, round, WRONG)
    assert blamed(driver.effects) == {A}, "the first word counts at once"
    say(driver, X, round)
    driver.ready(A)
    effects = say(driver, Y, round) if way == "corrected" else order(driver, acts.Dismiss(Y))
    assert of_kind(RecordDigest, effects)[-1].state_digest == state_digest(round)
    assert not driver.machine.state.verdicts.contradiction
    assert not driver.machine.state.verdicts.muted_reason(A), "it is forgiven"
    assert alarm(driver.machine.state.verdicts) == ""


def test_an_auditor_that_is_banned_is_none_any_more() -> None:
    driver = audited(A, B, auditors=(X, Y))
    order(driver, acts.Ban(Y))
    assert driver.machine.state.verdicts.auditors == {X}
    objection = orders.objection(acts.Appoint(Y), driver.machine)
    assert "banned" in objection


def test_a_run_has_a_bounded_number_of_auditors() -> None:
    names = tuple(PeerId(f"{number:032x}") for number in range(50, 50 + AUDITORS_MAX))
    driver = audited(A, B, auditors=names)
    words = orders.objection(acts.Appoint(X), driver.machine)
    assert f"at most {AUDITORS_MAX}" in words


# ---- payloads


def test_an_auditors_receipt_makes_a_payload_available() -> None:
    driver = audited(A, B, C)
    for peer in (A, B, C):
        driver.announce(peer, 0)
    driver.hold(B, 0, [A])
    driver.hold(C, 0, [A])
    assert not driver.commits
    (commit,) = of_kind(CommitRound, driver.hold(X, 0, [B, C]))
    assert [entry.author for entry in commit.commit.entries] == [A, B, C]
    assert X in commit.holders[1], "nodes are told where to get it"


def test_the_receipt_of_a_key_that_is_not_named_counts_for_nothing() -> None:
    driver = Driver(A, B, C)
    for peer in (A, B, C):
        driver.announce(peer, 0)
    event = Holding(X, 0, (payload_digest(A, 0), payload_digest(B, 0), payload_digest(C, 0)))
    assert screened(event, driver.machine) == Heartbeat(X)
    assert not of_kind(CommitRound, driver.tell(event))


def test_a_payload_that_the_auditor_has_applied_is_not_voided_by_two_thirds_of_liars() -> None:
    driver = audited(A, B, C)
    driver.exchange(0, A, B, C)
    say(driver, X, 0)
    driver.lack(B, 0, A)
    driver.lack(C, 0, A)
    assert not entries_of(Void, driver.wait(PATIENCE_MS))
    driver.lack(A, 0, A)
    assert entries_of(Void, driver.wait(PATIENCE_MS)), "nobody has it"


def test_a_word_about_a_state_from_before_a_void_is_no_news() -> None:
    driver = audited(A, B)
    driver.exchange(0, A, B)
    for peer in (A, B):
        driver.lack(peer, 0, A)
    assert entries_of(Void, driver.wait(PATIENCE_MS))
    assert say(driver, X, 0, WRONG) == []
    assert not driver.machine.state.verdicts.tally.by_round[0].words
    driver.tell(Audited(X, 0, state_digest(0), voids=1))
    assert driver.machine.state.verdicts.tally.by_round[0].verdict == state_digest(0)


# ---- the whole


def test_a_word_outlives_a_restart_of_the_coordinator() -> None:
    driver = audited(A, B, C)
    driver.exchange(0, A, B, C)
    say(driver, X, 0)
    restored = decode_state(encode_state(driver.machine.state))
    assert restored == driver.machine.state
    assert restored.verdicts.auditors == {X}


@pytest.mark.parametrize("seed", range(40))
def test_any_share_of_liars_in_any_order_touches_no_honest_member(seed: int) -> None:
    chance = random.Random(seed)
    driver = audited(A, B, C, D, E)
    honest = sorted(chance.sample([A, B, C, D, E], chance.randint(2, 5)))
    late: list[int] = []
    for _ in range(12):
        round = newest(driver)
        driver.exchange(round, *driver.machine.state.undecided[-1].assignments)
        voices = [(peer, None) for peer in driver.machine.members.roster]
        chance.shuffle(voices)
        late.append(round)
        for peer, _ in voices:
            if peer in driver.machine.members.roster:
                lie = peer not in honest and chance.random() < 0.7
                driver.tell(Applied(peer, round, WRONG if lie else state_digest(round), b""))
            if chance.random() < 0.4 and late:
                say(driver, X, late.pop(0))
        for peer in sorted({A, B, C, D, E} & driver.machine.members.roster.keys()):
            if driver.member(peer).state != "ready" and chance.random() < 0.7:
                driver.ready(peer, digest=None if chance.random() < 0.5 else WRONG) if (
                    peer not in honest
                ) else driver.ready(peer)
    for round in late:
        say(driver, X, round)
    assert not blamed(driver.effects) & {*honest}
    assert len(driver.commits) == 12
    for round in range(12):
        reports = driver.machine.state.verdicts.tally.by_round[round]
        assert reports.verdict == state_digest(round)
